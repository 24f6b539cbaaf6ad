package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
)

// DefaultDir holds the sockets where nothing else is said.
const DefaultDir = "/run/sluice-proxy"

// The names of the sockets in their directory.
const (
	SocketName    = "control.sock"
	ListenersName = "listeners.sock"
)

// Client talks to a [Handler] through its unix socket. The zero Client uses [DefaultDir]; fields are set before the
// first use and then left alone. It keeps no connection between calls, so that there is nothing to close, and may be
// used by many goroutines.
//
// Errors that the other side sent are *[Error] values. A call whose context ended returns the context's error.
type Client struct {
	// Dir is the directory of the socket.
	Dir string
	// UIDs are the users that may own the other end, besides root and the caller's own.
	UIDs []uint32
}

// Health asks for a round trip through the data plane. An unhealthy proxy is a Health with OK false.
func (c *Client) Health(ctx context.Context) (Health, error) {
	resp, err := c.send(ctx, http.MethodGet, "/v1/health", nil)
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
	return call[[]SessionStatus](ctx, c, http.MethodGet, "/v1/sessions", nil)
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

// Flows lists a session's open connections.
func (c *Client) Flows(ctx context.Context, id string) ([]Flow, error) {
	return perSession[[]Flow](ctx, c, http.MethodGet, id, "/flows", nil)
}

// Explain asks what would happen to target ("host:port" or "host") now.
func (c *Client) Explain(ctx context.Context, id, target string) (Explanation, error) {
	return perSession[Explanation](ctx, c, http.MethodGet, id, "/explain?target="+url.QueryEscape(target), nil)
}

// Metrics returns the metrics in Prometheus's text form.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	resp, err := c.send(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", failed(ctx, resp)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", because(ctx, fmt.Errorf("read metrics: %w", err))
	}
	return string(text), nil
}

// Events yields audit records as they are made, until ctx ends or the stream does; the last pair then has the error.
// A reader that falls too far behind gets one that says so.
func (c *Client) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		resp, err := c.send(ctx, http.MethodGet, "/v1/events", nil)
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			yield(Event{}, failed(ctx, resp))
			return
		}
		dec := json.NewDecoder(resp.Body)
		for {
			var line struct {
				Event
				Error *Error `json:"error"`
			}
			if err := dec.Decode(&line); err != nil {
				if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
					err = fmt.Errorf("the stream of events ended: the proxy stopped, or this reader was too slow")
				}
				yield(Event{}, because(ctx, err))
				return
			}
			if line.Error != nil {
				yield(Event{}, line.Error)
				return
			}
			if !yield(line.Event, nil) {
				return
			}
		}
	}
}

// perSession calls a path below a session's.
func perSession[T any](ctx context.Context, c *Client, method, id, rest string, body any) (T, error) {
	if err := CheckID(id); err != nil {
		var none T
		return none, err
	}
	return call[T](ctx, c, method, "/v1/sessions/"+id+rest, body)
}

// call sends body as JSON and decodes the answer.
func call[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	var result T
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return result, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return result, failed(ctx, resp)
	}
	return result, read(ctx, resp, &result)
}

func (c *Client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var data io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		data = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://sluice"+path, data)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	// Proxy variables of the environment have no say here, and no connection outlives its request.
	t := &http.Transport{DialContext: c.dial, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, because(ctx, err)
	}
	return resp, nil
}

func (c *Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	dir := c.Dir
	if dir == "" {
		dir = DefaultDir
	}
	path := filepath.Join(dir, SocketName)
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("%w: is the proxy running, with --control %s?", err, dir)
	}
	if err := CheckPeer(conn.(*net.UnixConn), c.UIDs...); err != nil {
		conn.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return conn, nil
}

// read decodes one JSON answer of any status.
func read(ctx context.Context, resp *http.Response, v any) error {
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return because(ctx, fmt.Errorf("read answer (%s): %w", resp.Status, err))
	}
	return nil
}

// failed turns an answer that is an error into that error.
func failed(ctx context.Context, resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return because(ctx, fmt.Errorf("read error answer (%s): %w", resp.Status, err))
	}
	var body failure
	if err := json.Unmarshal(text, &body); err == nil && body.Error != nil {
		return body.Error
	}
	// Not from our handler, but from the HTTP server below it.
	e := &Error{Code: CodeInternal, Message: strings.TrimSpace(resp.Status + ": " + string(text))}
	for code, status := range statuses {
		if status == resp.StatusCode {
			e.Code = code
		}
	}
	return e
}

// because prefers the context's error to what the transport made of it.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
