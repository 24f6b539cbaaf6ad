package control

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
)

// DefaultDir holds the sockets where nothing else is said.
const DefaultDir = "/run/sluice-proxy"

// The names of the sockets in their directory.
const (
	SocketName    = "control.sock"
	ListenersName = "listeners.sock"
)

// Client talks to a [Handler] through its unix socket, as a [Peer]. The zero Client uses [DefaultDir]; fields are set
// before the first use and then left alone.
type Client struct {
	// Dir is the directory of the socket.
	Dir string
	// UIDs are the users that may own the other end, besides root and the caller's own.
	UIDs []uint32
}

func (c *Client) peer() Peer {
	dir := c.Dir
	if dir == "" {
		dir = DefaultDir
	}
	return Peer{Path: filepath.Join(dir, SocketName), UIDs: c.UIDs, Hint: "is the proxy running, with --control " + dir + "?"}
}

// Health asks for a round trip through the data plane. An unhealthy proxy is a Health with OK false.
func (c *Client) Health(ctx context.Context) (Health, error) {
	resp, err := c.peer().send(ctx, http.MethodGet, "/v1/health", nil)
	if err != nil {
		return Health{}, err
	}
	defer resp.Body.Close()
	var body struct {
		Health
		Error *Error `json:"error"`
	}
	if err := read(ctx, resp, &body); err != nil {
		return Health{}, err
	}
	if body.Error != nil {
		return Health{}, body.Error
	}
	return body.Health, nil
}

// Sessions lists all sessions, without their policies.
func (c *Client) Sessions(ctx context.Context) ([]SessionStatus, error) {
	return Call[[]SessionStatus](ctx, c.peer(), http.MethodGet, "/v1/sessions", nil)
}

// Session returns one session with its policies.
func (c *Client) Session(ctx context.Context, id string) (SessionStatus, error) {
	return perSession[SessionStatus](ctx, c, http.MethodGet, id, "", nil)
}

// SetSession makes or changes a session and returns when that is in force.
func (c *Client) SetSession(ctx context.Context, id string, spec SessionSpec) (Receipt, error) {
	return perSession[Receipt](ctx, c, http.MethodPut, id, "", spec)
}

// DeleteSession ends a session and cuts its flows.
func (c *Client) DeleteSession(ctx context.Context, id string) (Receipt, error) {
	return perSession[Receipt](ctx, c, http.MethodDelete, id, "", nil)
}

// DropListeners ends the service of a session's listeners but those of the set keep, of all if that is 0. What was
// accepted from them is served to its end.
func (c *Client) DropListeners(ctx context.Context, id string, keep uint64) error {
	_, err := perSession[struct{}](ctx, c, http.MethodDelete, id, "/listeners?keep="+strconv.FormatUint(keep, 10), nil)
	return err
}

// Flows lists a session's open connections.
func (c *Client) Flows(ctx context.Context, id string) ([]Flow, error) {
	return perSession[[]Flow](ctx, c, http.MethodGet, id, "/flows", nil)
}

// Explain asks what would happen to target, "host:port", now.
func (c *Client) Explain(ctx context.Context, id, target string) (Explanation, error) {
	return perSession[Explanation](ctx, c, http.MethodGet, id, "/explain?target="+url.QueryEscape(target), nil)
}

// Metrics returns the metrics in Prometheus's text form.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	return c.peer().Text(ctx, "/metrics")
}

// Events yields audit records as they are made, as [Peer.Events] does.
func (c *Client) Events(ctx context.Context) iter.Seq2[Event, error] {
	return c.peer().Events(ctx, "/v1/events")
}

// Subscribe is [Client.Events] for those who must miss nothing, see [Peer.Subscribe].
func (c *Client) Subscribe(ctx context.Context) (iter.Seq2[Event, error], error) {
	return c.peer().Subscribe(ctx, "/v1/events")
}

// perSession calls a path below a session's.
func perSession[T any](ctx context.Context, c *Client, method, id, rest string, body any) (T, error) {
	if err := CheckID(id); err != nil {
		var none T
		return none, err
	}
	return Call[T](ctx, c.peer(), method, "/v1/sessions/"+id+rest, body)
}
