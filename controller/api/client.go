package api

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"

	"sluice/control"
)

// DefaultSocket is where the controller listens if nothing else is said.
const DefaultSocket = "/run/sluice/sluice.sock"

// Client talks to a [Handler] through its unix socket, as a [control.Peer]. The zero Client uses [DefaultSocket].
type Client struct {
	Socket string
}

func (c *Client) peer() control.Peer {
	path := c.Socket
	if path == "" {
		path = DefaultSocket
	}
	return control.Peer{Path: path, Hint: "is sluice serve running, with --socket " + path + "?"}
}

// List returns all containers that are looked after, without their policies.
func (c *Client) List(ctx context.Context) ([]Status, error) {
	return control.Call[[]Status](ctx, c.peer(), http.MethodGet, "/v1/containers", nil)
}

// Attach puts a container under policies, and returns when that is in force.
func (c *Client) Attach(ctx context.Context, a Attach) (Status, error) {
	return control.Call[Status](ctx, c.peer(), http.MethodPost, "/v1/containers", a)
}

// Status returns one container with its policies.
func (c *Client) Status(ctx context.Context, container string) (Status, error) {
	return perContainer[Status](ctx, c, http.MethodGet, container, "", nil)
}

// Detach takes a container's policies away.
func (c *Client) Detach(ctx context.Context, container string) error {
	_, err := perContainer[struct{}](ctx, c, http.MethodDelete, container, "", nil)
	return err
}

// Phase switches to a phase, and returns when that is in force. generation may be 0.
func (c *Client) Phase(ctx context.Context, container, phase string, generation uint64) (Receipt, error) {
	return perContainer[Receipt](ctx, c, http.MethodPut, container, "/phase", Phase{Phase: phase, Generation: generation})
}

// Set replaces the policies of all phases by those of a document, and returns when that is in force.
func (c *Client) Set(ctx context.Context, container string, document json.RawMessage, generation uint64) (Receipt, error) {
	return perContainer[Receipt](ctx, c, http.MethodPut, container, "/policy", Policy{Policy: document, Generation: generation})
}

// Explain asks what would happen to target ("host:port") now.
func (c *Client) Explain(ctx context.Context, container, target string) (control.Explanation, error) {
	return perContainer[control.Explanation](ctx, c, http.MethodGet, container, "/explain?target="+url.QueryEscape(target), nil)
}

// Report says what has happened to a container.
func (c *Client) Report(ctx context.Context, container string) (Report, error) {
	return perContainer[Report](ctx, c, http.MethodGet, container, "/report", nil)
}

// Flows lists a container's open proxied connections.
func (c *Client) Flows(ctx context.Context, container string) ([]control.Flow, error) {
	return perContainer[[]control.Flow](ctx, c, http.MethodGet, container, "/flows", nil)
}

// Networks lists the managed networks.
func (c *Client) Networks(ctx context.Context) ([]Network, error) {
	return control.Call[[]Network](ctx, c.peer(), http.MethodGet, "/v1/networks", nil)
}

// CreateNetwork makes a managed network. When it returns, nothing leaves it but by a policy.
func (c *Client) CreateNetwork(ctx context.Context, n NewNetwork) (Network, error) {
	return control.Call[Network](ctx, c.peer(), http.MethodPost, "/v1/networks", n)
}

// RemoveNetwork removes a managed network, with force also while containers are on it.
func (c *Client) RemoveNetwork(ctx context.Context, name string, force bool) error {
	path := "/v1/networks/" + url.PathEscape(name)
	if force {
		path += "?force"
	}
	_, err := control.Call[struct{}](ctx, c.peer(), http.MethodDelete, path, nil)
	return err
}

// Events yields audit records as they are made, as [control.Peer.Events] does.
func (c *Client) Events(ctx context.Context) iter.Seq2[control.Event, error] {
	return c.peer().Events(ctx, "/v1/events")
}

// Subscribe is [Client.Events] for those who must miss nothing, see [control.Peer.Subscribe].
func (c *Client) Subscribe(ctx context.Context) (iter.Seq2[control.Event, error], error) {
	return c.peer().Subscribe(ctx, "/v1/events")
}

// Metrics returns the metrics in Prometheus's text form.
func (c *Client) Metrics(ctx context.Context) (string, error) { return c.peer().Text(ctx, "/metrics") }

func perContainer[T any](ctx context.Context, c *Client, method, container, rest string, body any) (T, error) {
	return control.Call[T](ctx, c.peer(), method, "/v1/containers/"+url.PathEscape(container)+rest, body)
}
