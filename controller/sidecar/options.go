package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// Docker is what this package asks of the engine; [client.Client] has it. "No such object" is an error for which
// [errdefs.IsNotFound] holds.
type Docker interface {
	Info(ctx context.Context) (system.Info, error)
	ImageInspect(ctx context.Context, image string, options ...client.ImageInspectOption) (image.InspectResponse, error)
	ImageLoad(ctx context.Context, archive io.Reader, options ...client.ImageLoadOption) (image.LoadResponse, error)
	ImageRemove(ctx context.Context, image string, options image.RemoveOptions) ([]image.DeleteResponse, error)
	NetworkCreate(ctx context.Context, name string, options network.CreateOptions) (network.CreateResponse, error)
	NetworkInspect(ctx context.Context, network string, options network.InspectOptions) (network.Inspect, error)
	NetworkRemove(ctx context.Context, network string) error
	ContainerCreate(ctx context.Context, config *container.Config, host *container.HostConfig, networks *network.NetworkingConfig, platform *oci.Platform, name string) (container.CreateResponse, error)
	ContainerStart(ctx context.Context, container string, options container.StartOptions) error
	ContainerInspect(ctx context.Context, container string) (container.InspectResponse, error)
	ContainerLogs(ctx context.Context, container string, options container.LogsOptions) (io.ReadCloser, error)
	ContainerList(ctx context.Context, options container.ListOptions) ([]container.Summary, error)
	ContainerRemove(ctx context.Context, container string, options container.RemoveOptions) error
}

// Options of a [Sidecar]. They are read once; zero values take the defaults named.
type Options struct {
	Docker Docker
	// Binary is the path of sluice-proxy; beside the running program, if empty.
	Binary string
	// Dir holds the sockets; /run/sluice/proxy. Two controllers never share one: the names of network and containers
	// come from it. Where the controller is a container itself, Dir is mounted under the same path as on the host.
	Dir string
	// Logger takes what an operator must know; nil discards it.
	Logger *slog.Logger

	// Prepare, if set, is called with the sidecars' network before the first of them starts, and again whenever the
	// network was made anew: close the host to it there. On an error no sidecar starts, and it is called again later.
	Prepare func(context.Context, Network) error
	// Subnet4 and Subnet6 are the subnets of the sidecars' bridge. Without Subnet4 the engine chooses one; without
	// Subnet6 sidecars have no IPv6.
	Subnet4, Subnet6 netip.Prefix
	// MTU, if set, says how many bytes packets on the sidecars' bridge may have, when that is made; 0 is the engine's choice.
	MTU func(context.Context) (int, error)
	// Upstreams are the name servers of sessions that have none of their own; those of the engine otherwise.
	Upstreams []netip.AddrPort
	// Explicit are the loopback addresses in every container, one a family, that are redirected to the TCP listeners for
	// clients that are told of a proxy.
	Explicit []netip.AddrPort
	// Flags are further ones of "sluice-proxy serve", for instance --floor=false or --private-zone=corp.test.
	Flags []string
	// Metrics, if set, is a TCP listener that the newest sidecar serves its metrics on. Open it with SO_REUSEPORT, or
	// a controller that was restarted cannot open it again. It is closed when [Sidecar.Run] returns.
	Metrics *net.TCPListener

	Limits Limits
	Timing Timing
}

// Limits of one sidecar.
type Limits struct {
	Memory int64 // bytes; 1 GiB
	PIDs   int64 // threads; 256
	Files  int64 // descriptors, of which a quarter may be clients' connections; 262,144, or this process's limit if that is lower
}

// Timing says how long to wait for what.
type Timing struct {
	Start   time.Duration // for a new sidecar to be reachable; 30 s
	Adopt   time.Duration // for a running one to find a controller that was restarted; 5 s
	Call    time.Duration // for a sidecar to do as it is told, before it counts as hung; 3 s
	Health  time.Duration // between two checks; 1 s
	Healthy time.Duration // for a check to succeed; two that do not in a row make a sidecar hung; 3 s
	Drain   time.Duration // how long an old sidecar may keep its flows after an upgrade; 1 h
	Backoff time.Duration // the longest pause between two attempts to start one; 5 s
}

// The user and group that sidecars run as.
const sidecarUID, sidecarGID = 65532, 65532

// setDefaults checks o and fills in what is left out.
func (o *Options) setDefaults() error {
	if o.Docker == nil {
		return errors.New("sidecar: no Docker client")
	}
	if o.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the sidecar's binary: %w", err)
		}
		o.Binary = filepath.Join(filepath.Dir(self), "sluice-proxy")
	}
	o.Dir = cmp.Or(o.Dir, "/run/sluice/proxy")
	if !filepath.IsAbs(o.Dir) {
		return fmt.Errorf("directory %q of the sidecar's sockets: give an absolute path", o.Dir)
	}
	o.Dir = filepath.Clean(o.Dir)
	if longest := filepath.Join(o.Dir, "1000000", "listeners.sock"); len(longest) > maxSocketPath {
		return fmt.Errorf("directory %q of the sidecar's sockets: give a path of at most %d bytes (unix(7))", o.Dir,
			maxSocketPath-len(longest)+len(o.Dir))
	}
	if o.Subnet4.IsValid() && !o.Subnet4.Addr().Is4() || o.Subnet6.IsValid() && !o.Subnet6.Addr().Is6() {
		return fmt.Errorf("subnets %v and %v of the sidecar's bridge: give one of IPv4 and one of IPv6", o.Subnet4, o.Subnet6)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l, t := &o.Limits, &o.Timing
	l.Memory, l.PIDs, l.Files = cmp.Or(l.Memory, 1<<30), cmp.Or(l.PIDs, 256), cmp.Or(l.Files, maxFiles())
	t.Start, t.Adopt, t.Call = cmp.Or(t.Start, 30*time.Second), cmp.Or(t.Adopt, 5*time.Second), cmp.Or(t.Call, 3*time.Second)
	t.Health, t.Healthy = cmp.Or(t.Health, time.Second), cmp.Or(t.Healthy, 3*time.Second)
	t.Drain, t.Backoff = cmp.Or(t.Drain, time.Hour), cmp.Or(t.Backoff, 5*time.Second)
	return nil
}

// maxFiles is how many descriptors a sidecar should have. No engine can give more than it has, and it has as a rule what
// this process has.
func maxFiles() int64 {
	const plenty = 1 << 18
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return plenty
	}
	return int64(min(limit.Max, plenty))
}

// maxSocketPath is what an address of a unix socket holds besides its last zero (unix(7)).
const maxSocketPath = 107
