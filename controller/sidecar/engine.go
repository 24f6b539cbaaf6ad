package sidecar

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/docker/go-units"

	"sluice/dockernet/engine"
	"sluice/images"
)

// Labels of the network and the containers that this package makes.
const (
	// LabelInternal marks what belongs to Sluice itself, never to a workload. Its value here is "proxy".
	LabelInternal = "sluice.internal"

	labelDir    = "sluice.internal.dir"    // Options.Dir
	labelNumber = "sluice.internal.number" // of the sidecar
	labelRecipe = "sluice.internal.recipe" // a digest of the binary and all settings
)

// mountPoint is where a sidecar finds its sockets.
const mountPoint = "/run/sluice-proxy"

// Network is the bridge that sidecars are on, alone.
type Network struct {
	ID, Name string
	Bridge   string         // the interface on the host
	Subnets  []netip.Prefix // IPv4 first
	Gateways []netip.Addr   // the host's addresses there
}

// IPv6 reports whether sidecars have addresses of that family.
func (n Network) IPv6() bool {
	return slices.ContainsFunc(n.Subnets, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// recipe is all that makes one sidecar another one than the next.
type recipe struct {
	binary  [sha256.Size]byte // its digest
	image   string            // its tag, which has a part of that
	command []string
	digest  string // of all
}

// readRecipe reads the binary, which may have been replaced since the last time.
func (o *Options) readRecipe() (*recipe, error) {
	binary, err := o.readBinary()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(binary)
	r := &recipe{binary: sum, image: "sluice-proxy:" + hex.EncodeToString(sum[:8])}
	r.command = []string{"serve", "--control", mountPoint, "--audit", "none"} // records go over the control socket
	for _, u := range o.Upstreams {
		r.command = append(r.command, "--upstream", u.String())
	}
	r.command = append(r.command, o.Flags...)
	text, err := json.Marshal([]any{hex.EncodeToString(sum[:]), r.command, o.Limits, images.ProxySeccomp()})
	if err != nil {
		return nil, err
	}
	all := sha256.Sum256(text)
	r.digest = hex.EncodeToString(all[:])
	return r, nil
}

func (o *Options) readBinary() ([]byte, error) {
	binary, err := os.ReadFile(o.Binary)
	if err != nil {
		return nil, fmt.Errorf("read the sidecar's binary: %w: put sluice-proxy beside sluice", err)
	}
	return binary, nil
}

// hash tells controllers with different directories apart in the engine's names.
func (o *Options) hash() string {
	sum := sha256.Sum256([]byte(filepath.Clean(o.Dir)))
	return hex.EncodeToString(sum[:4])
}

// NetworkName and BridgeName give the names of the sidecars' network and of its interface on the host, which come from
// the directory alone. The second has at most 15 bytes, as the kernel wants it.
func NetworkName(dir string) string { return "sluice-proxy-" + (&Options{Dir: dir}).hash() }

// BridgeName is described at [NetworkName].
func BridgeName(dir string) string { return "sluice" + (&Options{Dir: dir}).hash() }

// ensureNetwork finds or makes the sidecars' network.
func (o *Options) ensureNetwork(ctx context.Context) (Network, error) {
	name := NetworkName(o.Dir)
	n, err := o.Docker.NetworkInspect(ctx, name, network.InspectOptions{})
	if errdefs.IsNotFound(err) {
		if err = o.createNetwork(ctx, name); err == nil {
			n, err = o.Docker.NetworkInspect(ctx, name, network.InspectOptions{})
		}
	}
	if err != nil {
		return Network{}, fmt.Errorf("network of the sidecar: %w", err)
	}
	if n.Driver != "bridge" || n.Labels[LabelInternal] != "proxy" || n.Labels[labelDir] != o.Dir {
		return Network{}, fmt.Errorf("network %s is not the sidecar's: it has driver %q and lacks our labels; remove it", name, n.Driver)
	}
	result := Network{ID: n.ID, Name: name, Bridge: n.Options["com.docker.network.bridge.name"]}
	for _, c := range n.IPAM.Config {
		subnet, err := netip.ParsePrefix(c.Subnet)
		if err != nil {
			return Network{}, fmt.Errorf("network of the sidecar: subnet: %w", err)
		}
		result.Subnets = append(result.Subnets, subnet)
		if gateway, err := netip.ParseAddr(c.Gateway); err == nil {
			result.Gateways = append(result.Gateways, gateway)
		} else {
			// Some engines name none and take the first address.
			result.Gateways = append(result.Gateways, subnet.Masked().Addr().Next())
		}
	}
	slices.SortStableFunc(result.Subnets, func(a, b netip.Prefix) int { return cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()) })
	return result, nil
}

func (o *Options) createNetwork(ctx context.Context, name string) error {
	ipam := &network.IPAM{Driver: "default"}
	for _, subnet := range []netip.Prefix{o.Subnet4, o.Subnet6} {
		if subnet.IsValid() {
			ipam.Config = append(ipam.Config, network.IPAMConfig{Subnet: subnet.Masked().String()})
		}
	}
	ipv6 := o.Subnet6.IsValid()
	options := map[string]string{
		"com.docker.network.bridge.name":       BridgeName(o.Dir),
		"com.docker.network.bridge.enable_icc": "false", // sidecars have nothing to tell each other
	}
	if o.MTU != nil {
		mtu, err := o.MTU(ctx)
		if err != nil {
			return err
		}
		if mtu > 0 {
			options["com.docker.network.driver.mtu"] = strconv.Itoa(mtu)
		}
	}
	ctx, cancel := toTheEnd(ctx)
	defer cancel()
	_, err := o.Docker.NetworkCreate(ctx, name, network.CreateOptions{
		Driver: "bridge", EnableIPv6: &ipv6, IPAM: ipam,
		Options: options,
		Labels:  map[string]string{LabelInternal: "proxy", labelDir: o.Dir},
	})
	return err
}

// ensureImage loads the image of the binary, if the engine does not have it.
func (o *Options) ensureImage(ctx context.Context, r *recipe) error {
	_, err := o.Docker.ImageInspect(ctx, r.image)
	if !errdefs.IsNotFound(err) {
		return err
	}
	binary, err := o.readBinary()
	if err != nil {
		return err
	}
	if sha256.Sum256(binary) != r.binary {
		return fmt.Errorf("%s is another one than it was, and the engine has lost its image: upgrade the sidecar", o.Binary)
	}
	img, err := images.SluiceProxy(binary)
	if err != nil {
		return err
	}
	img.Tag = r.image
	return images.Load(ctx, o.Docker, img)
}

// never are what a sidecar does not dial whatever a policy says, besides what it is told with each session: itself, and
// the host on its bridge.
func (n Network) never() (flags []string) {
	for _, p := range []string{"0.0.0.0/8", "127.0.0.0/8", "::/128", "::1/128"} {
		flags = append(flags, "--never="+p)
	}
	for _, p := range n.Subnets {
		flags = append(flags, "--never="+p.Masked().String())
	}
	return flags
}

// createTimeout is how long the engine may take to make something.
const createTimeout = 30 * time.Second

// toTheEnd is for what the engine would go on making when nobody waits for it any more, and nobody would remove.
func toTheEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
}

// security are the options of a sidecar's cage that the engine has words for.
func (o *Options) security(ctx context.Context) ([]string, error) {
	info, err := o.Docker.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("what the engine can: %w", err)
	}
	options := []string{"no-new-privileges"}
	if engine.SeccompDefault(info.SecurityOptions) == "" {
		o.Logger.Warn("the engine has no seccomp, so the sidecar runs without a filter of system calls")
		return options, nil
	}
	return append(options, "seccomp="+images.ProxySeccomp()), nil
}

// manyPorts keeps one session from using up the ports from which all sessions reach an upstream: a port of a connection that
// has ended stays taken for a minute otherwise (TIME_WAIT), and the search for a free one takes milliseconds when few are left.
// See tcp_tw_reuse and ip_local_port_range in the kernel's Documentation/networking/ip-sysctl.rst.
var manyPorts = map[string]string{
	"net.ipv4.tcp_tw_reuse":        "1",           // a second later, where the peer sends timestamps (RFC 6191)
	"net.ipv4.ip_local_port_range": "1024\t65535", // of IPv6 too
}

// createContainer makes and starts sidecar number n and returns its id.
func (o *Options) createContainer(ctx context.Context, r *recipe, on Network, n int, dir string) (string, error) {
	security, err := o.security(ctx)
	if err != nil {
		return "", err
	}
	whole, cancel := toTheEnd(ctx)
	defer cancel()
	created, err := o.Docker.ContainerCreate(whole, &container.Config{
		Image: r.image, Cmd: append(slices.Clone(r.command), on.never()...), User: fmt.Sprintf("%d:%d", sidecarUID, sidecarGID),
		Labels: map[string]string{
			LabelInternal: "proxy", labelDir: o.Dir, labelNumber: strconv.Itoa(n), labelRecipe: r.digest,
		},
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, // monitor asks more often, and without a process
	}, &container.HostConfig{
		NetworkMode:    container.NetworkMode(on.Name),
		Mounts:         []mount.Mount{{Type: mount.TypeBind, Source: dir, Target: mountPoint, ReadOnly: true}},
		ReadonlyRootfs: true,
		CapDrop:        []string{"ALL"},
		SecurityOpt:    security,
		UsernsMode:     "host", // user ids must mean the same on both sides of the sockets
		Sysctls:        manyPorts,
		RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig:      container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "10m", "max-file": "2"}},
		Resources: container.Resources{
			Memory: o.Limits.Memory, MemorySwap: o.Limits.Memory, PidsLimit: &o.Limits.PIDs,
			Ulimits: []*units.Ulimit{{Name: "nofile", Soft: o.Limits.Files, Hard: o.Limits.Files}},
		},
	}, nil, nil, fmt.Sprintf("%s-%d", NetworkName(o.Dir), n))
	if err != nil {
		return "", fmt.Errorf("create the sidecar: %w", err)
	}
	if err := o.Docker.ContainerStart(ctx, created.ID, container.StartOptions{}); err != nil {
		err = fmt.Errorf("start the sidecar: %w", err)
		o.removeContainer(created.ID)
		return "", err
	}
	return created.ID, nil
}

// found is a sidecar's container as the engine has it.
type found struct {
	id, recipe, image string
	number, pid       int // pid is 0 if it does not run
	addresses         []netip.Addr
}

func (o *Options) inspect(ctx context.Context, id string) (found, error) {
	c, err := o.Docker.ContainerInspect(ctx, id)
	if err != nil {
		return found{}, fmt.Errorf("inspect sidecar %.12s: %w", id, err)
	}
	f := found{id: id}
	if c.Config != nil {
		f.recipe, f.image = c.Config.Labels[labelRecipe], c.Config.Image
		f.number, _ = strconv.Atoi(c.Config.Labels[labelNumber])
	}
	if c.ContainerJSONBase != nil && c.State != nil && c.State.Running {
		f.pid = c.State.Pid
	}
	if c.NetworkSettings != nil {
		for _, e := range c.NetworkSettings.Networks {
			for _, text := range []string{e.IPAddress, e.GlobalIPv6Address} {
				if a, err := netip.ParseAddr(text); err == nil {
					f.addresses = append(f.addresses, a)
				}
			}
		}
	}
	return f, nil
}

// find lists the sidecars that there are, also those that have ended, by their numbers.
func (o *Options) find(ctx context.Context) ([]found, error) {
	list, err := o.Docker.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(
		filters.Arg("label", LabelInternal+"=proxy"), filters.Arg("label", labelDir+"="+o.Dir))})
	if err != nil {
		return nil, fmt.Errorf("find sidecars: %w", err)
	}
	var all []found
	for _, c := range list {
		f, err := o.inspect(ctx, c.ID)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.number, b.number) })
	return all, nil
}

// obituary says how a container ended, with the end of its log, as far as the engine knows.
func (o *Options) obituary(id string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	how := "its exit code is not known"
	for ctx.Err() == nil { // the engine sees the end a little later than we do
		c, err := o.Docker.ContainerInspect(ctx, id)
		if err != nil || c.ContainerJSONBase == nil || c.State == nil {
			break
		}
		if !c.State.Running {
			how = fmt.Sprintf("exit code %d", c.State.ExitCode)
			if c.State.OOMKilled {
				how = "no memory was left: raise its limit"
			}
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	r, err := o.Docker.ContainerLogs(ctx, id, container.LogsOptions{ShowStdout: true, ShowStderr: true, Tail: "20"})
	if err != nil {
		return how
	}
	defer r.Close()
	var text bytes.Buffer
	_, _ = stdcopy.StdCopy(&text, &text, io.LimitReader(r, 16<<10)) // what came before it was cut off is better than nothing
	if text.Len() == 0 {
		return how
	}
	return how + "; its last words: " + strings.TrimSpace(text.String())
}

// removeTimeout bounds what is done for a sidecar that nobody needs any more.
const removeTimeout = 30 * time.Second

// removeContainer kills and removes a container, whatever the caller's context says by now.
func (o *Options) removeContainer(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	if err := o.Docker.ContainerRemove(ctx, id, container.RemoveOptions{Force: true}); err != nil && !errdefs.IsNotFound(err) {
		o.Logger.Warn("a sidecar that has ended cannot be removed; it is tried again when the controller starts", "id", id, "error", err)
	}
}

// removeImage removes the image of a former binary.
func (o *Options) removeImage(tag string) {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	_, _ = o.Docker.ImageRemove(ctx, tag, image.RemoveOptions{}) // another controller may use it
}

// removeNetwork removes the sidecars' network, if there is one and nobody is on it.
func (o *Options) removeNetwork(ctx context.Context) error {
	if err := o.Docker.NetworkRemove(ctx, NetworkName(o.Dir)); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove the network of the sidecar: %w", err)
	}
	return nil
}

func (o *Options) dir(n int) string { return filepath.Join(o.Dir, strconv.Itoa(n)) }
