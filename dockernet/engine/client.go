package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
)

// API is what this package asks of an engine. [client.Client] has it.
type API interface {
	Ping(ctx context.Context) (types.Ping, error)
	ServerVersion(ctx context.Context) (types.Version, error)
	Info(ctx context.Context) (system.Info, error)
	Events(ctx context.Context, options events.ListOptions) (<-chan events.Message, <-chan error)
	ContainerInspect(ctx context.Context, container string) (container.InspectResponse, error)
	ContainerList(ctx context.Context, options container.ListOptions) ([]container.Summary, error)
	ContainerPause(ctx context.Context, container string) error
	ContainerUnpause(ctx context.Context, container string) error
	ImageInspect(ctx context.Context, image string, options ...client.ImageInspectOption) (image.InspectResponse, error)
	VolumeInspect(ctx context.Context, volume string) (volume.Volume, error)
	NetworkInspect(ctx context.Context, network string, options network.InspectOptions) (network.Inspect, error)
	NetworkList(ctx context.Context, options network.ListOptions) ([]network.Summary, error)
	NetworkCreate(ctx context.Context, name string, options network.CreateOptions) (network.CreateResponse, error)
	NetworkRemove(ctx context.Context, network string) error
	NetworkDisconnect(ctx context.Context, network, container string, force bool) error
	// DaemonHost returns where the engine listens, "unix:///var/run/docker.sock".
	DaemonHost() string
	Close() error
}

// Client talks to one engine. Its methods may be called by any number of goroutines.
type Client struct {
	open func() (API, error)

	mu   sync.Mutex // guards all below
	api  API
	info *Info // of the engine as it runs now, nil if it has not been asked
}

// Dial returns a client of the engine at host, "unix:///var/run/docker.sock" for instance, or of the one that
// DOCKER_HOST and its sisters name if host is empty. Nothing is sent yet. The version of the API is agreed upon with
// the engine, again whenever the engine has gone and come back.
func Dial(host string) (*Client, error) {
	return New(func() (API, error) {
		from := client.FromEnv
		if host != "" {
			from = client.WithHost(host)
		}
		return client.NewClientWithOpts(from, client.WithAPIVersionNegotiation())
	})
}

// New returns a client that asks what open returns. It is called at once, and again whenever the engine has gone.
func New(open func() (API, error)) (*Client, error) {
	api, err := open()
	if err != nil {
		return nil, fmt.Errorf("engine client: %w", err)
	}
	return &Client{open: open, api: api}, nil
}

// Close lets go of idle connections.
func (c *Client) Close() error { return c.engine().Close() }

func (c *Client) engine() API {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.api
}

// Conditions returns what the engine and this machine tell for [Container.Refusals], with the engine's own socket.
func (c *Client) Conditions(ctx context.Context) (Conditions, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return Conditions{}, err
	}
	servers, err := hostServers(hostResolvConf)
	if err != nil {
		return Conditions{}, err
	}
	o := Conditions{Info: info, HostServers: servers, Vsock: hasVsock(miscDevices)}
	if path, unix := strings.CutPrefix(c.engine().DaemonHost(), "unix://"); unix {
		o.Sockets = []string{path}
	}
	return o, nil
}

// Pause freezes the container's processes. It is no error if they are frozen already, or if there are none.
func (c *Client) Pause(ctx context.Context, id string) error {
	callCtx, cancel := bounded(ctx)
	defer cancel()
	err := c.engine().ContainerPause(callCtx, id)
	if errdefs.IsConflict(err) {
		// The engine says so of containers that are about to be restarted, too.
		now, err2 := c.engine().ContainerInspect(callCtx, id)
		if err2 == nil && now.ContainerJSONBase != nil && now.State != nil && (now.State.Paused || !now.State.Running && !now.State.Restarting) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("pause container %s: %w", id, err)
	}
	return nil
}

// Unpause lets them go on.
func (c *Client) Unpause(ctx context.Context, id string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := c.engine().ContainerUnpause(ctx, id); err != nil {
		return fmt.Errorf("unpause container %s: %w", id, err)
	}
	return nil
}

// reopen forgets what may be different when the engine comes back, which may be a newer one.
func (c *Client) reopen() {
	api, err := c.open()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.info = nil
	if err == nil {
		c.api.Close() // calls under way go on
		c.api = api
	}
}

// callTimeout bounds one question to the engine, which answers within milliseconds unless it hangs.
const callTimeout = 20 * time.Second

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callTimeout)
}
