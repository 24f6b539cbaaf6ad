package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"

	"sluice/dockernet/resolver"
)

// LabelPrefix begins the labels of containers and networks that mean something to Sluice.
const (
	LabelPrefix  = "sluice."
	LabelManaged = LabelPrefix + "managed" // of a network: "true"
	LabelPolicy  = LabelPrefix + "policy"  // JSON with the policies of the three phases
	LabelPhase   = LabelPrefix + "phase"
	// LabelInternal is on what Sluice itself makes; Holder is its value for a container that does nothing but hold the
	// network of others.
	LabelInternal = LabelPrefix + "internal"
	Holder        = "holder"
)

// Container is what the engine knew of one container when it was asked. It is a plain value.
type Container struct {
	ID     string
	Name   string // without a slash
	Labels map[string]string
	Image  string // its id
	// ImageLabels are those of the image that begin with [LabelPrefix].
	ImageLabels map[string]string
	// ImageGone is set if the engine has the image no more, so that nobody can tell which labels are the image's.
	ImageGone bool

	State   State
	Started time.Time // zero before the first start
	PID     int       // 0 if it does not run

	// SandboxKey leads to the network namespace, which belongs to SandboxID. Both are empty if the container does
	// not run or has no namespace of its own.
	SandboxKey, SandboxID string
	// NetworkMode is what it was created with: "bridge", "host", "none", a network, or "container:" with an id.
	NetworkMode string
	Endpoints   []Endpoint // by the names of the networks

	Hostname   string
	DNS        DNS
	ExtraHosts []ExtraHost
	Ports      []Port

	Restart      string   // "no", "always", "unless-stopped", "on-failure"
	Privileged   bool     // has every capability
	Capabilities []string // sorted, "NET_RAW"
	// Unconfined is set if no seccomp filter holds, and OpenPaths if /proc and /sys are writable.
	Unconfined, OpenPaths bool
	Vsock                 bool   // its seccomp profile may let it open sockets of AF_VSOCK
	PIDMode               string // "", "host" or "container:" with an id
	Runtime               string // its name, see [Info.Runtimes]
	Mounts                []Mount
}

// State is that of a container's life cycle.
type State string

// The states that the engine knows.
const (
	StateCreated    State = "created"
	StateRunning    State = "running"
	StatePaused     State = "paused"
	StateRestarting State = "restarting"
	StateRemoving   State = "removing"
	StateExited     State = "exited"
	StateDead       State = "dead"
)

// Running reports whether the container has processes, which it has while it is paused too.
func (c *Container) Running() bool { return c.State == StateRunning || c.State == StatePaused }

// Joined returns the container whose namespace this one shares, by the id or name that it was created with; "" if it
// has one of its own.
func (c *Container) Joined() (container string, ok bool) {
	if container, ok = strings.CutPrefix(c.NetworkMode, "container:"); !ok {
		return "", false // what CutPrefix leaves then is the network's name
	}
	return container, true
}

// Managed reports whether the container is on managed networks and on no others.
func (c *Container) Managed() bool {
	return len(c.Endpoints) > 0 && !slices.ContainsFunc(c.Endpoints, func(e Endpoint) bool { return !e.Managed() })
}

// Addresses returns all addresses of the container.
func (c *Container) Addresses() []netip.Addr {
	var all []netip.Addr
	for _, e := range c.Endpoints {
		for _, p := range e.Addresses {
			all = append(all, p.Addr())
		}
	}
	return all
}

// Endpoint is a container's place on a network.
type Endpoint struct {
	Network
	Addresses []netip.Prefix // each with the length of its subnet; none if the container does not run
	MAC       string
	Names     []string // under which the network's other containers find it
	// Links maps names to other containers' names or ids, for this container alone.
	Links map[string]string
}

// DNS says whom the container asks. What is unset is the engine's choice.
type DNS struct {
	Servers []netip.Addr
	Search  []string
	Options []string
	// Forwarders are where the engine's resolver forwards to, as far as the engine tells (26.0 and newer). The
	// container can change what it tells.
	Forwarders []resolver.Forwarder
}

// ExtraHost is a name that the engine was told when the container was created.
type ExtraHost struct {
	Name string
	// Address is what the name stands for; it is invalid for the host's gateway, see [Client.HostGateway].
	Address netip.Addr
}

// Port is a published one.
type Port struct {
	Protocol  string // "tcp", "udp", "sctp"
	Container uint16
	Host      netip.AddrPort // an unspecified address for all of the host's
}

// Mount is a part of the host's file system that the container sees.
type Mount struct {
	Source, Destination string
	ReadOnly            bool
}

// Inspect asks the engine for the container of an id (or name).
func (c *Client) Inspect(ctx context.Context, id string) (Container, error) {
	v, err := c.inspect(ctx, id)
	if err != nil {
		return Container{}, fmt.Errorf("inspect container %s: %w", id, err)
	}
	return v, nil
}

func (c *Client) inspect(ctx context.Context, id string) (Container, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return Container{}, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	r, err := c.engine().ContainerInspect(ctx, id)
	if err != nil {
		return Container{}, err
	}
	if r.ContainerJSONBase == nil || r.State == nil || r.HostConfig == nil || r.Config == nil || r.NetworkSettings == nil {
		return Container{}, errors.New("the engine's answer is incomplete")
	}
	h := r.HostConfig
	v := Container{
		ID:           r.ID,
		Name:         strings.TrimPrefix(r.Name, "/"),
		Labels:       r.Config.Labels,
		Image:        r.Image,
		State:        State(r.State.Status),
		PID:          r.State.Pid,
		SandboxKey:   r.NetworkSettings.SandboxKey,
		SandboxID:    r.NetworkSettings.SandboxID,
		NetworkMode:  string(h.NetworkMode),
		Hostname:     r.Config.Hostname,
		Restart:      string(h.RestartPolicy.Name),
		Privileged:   h.Privileged,
		Capabilities: capabilities(h.Privileged, h.CapAdd, h.CapDrop),
		Unconfined:   unconfined(h.SecurityOpt, h.Privileged, info),
		// The engine's defaults are not empty; nil is what engines without the setting send.
		OpenPaths: h.Privileged || h.ReadonlyPaths != nil && len(h.ReadonlyPaths) == 0,
		Vsock:     vsock(h.SecurityOpt, info),
		PIDMode:   string(h.PidMode),
		Runtime:   h.Runtime,
	}
	if v.Restart == "" {
		v.Restart = string(container.RestartPolicyDisabled)
	}
	if v.Runtime == "" {
		v.Runtime = info.DefaultRuntime
	}
	if v.Started, err = startTime(r.State.StartedAt); err != nil {
		return Container{}, err
	}
	if v.ExtraHosts, err = extraHosts(h.ExtraHosts); err != nil {
		return Container{}, err
	}
	if v.DNS, err = dnsOf(h, r.ResolvConfPath); err != nil {
		return Container{}, err
	}
	v.Ports = ports(r.NetworkSettings)
	if err := c.imageLabels(ctx, &v); err != nil {
		return Container{}, err
	}
	if v.Mounts, err = c.mounts(ctx, r.Mounts); err != nil {
		return Container{}, err
	}
	if _, joined := v.Joined(); !joined {
		v.Endpoints, err = c.endpoints(ctx, &v, r.NetworkSettings.Networks)
	}
	return v, err
}

// startTime reads the engine's time, which is in the year 1 before the first start.
func startTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("start time: %w", err)
	}
	return t, nil
}

// imageLabels fills in those that matter. A container has the labels of its image beside its own, so that most of the
// time there is nothing to ask.
func (c *Client) imageLabels(ctx context.Context, v *Container) error {
	if !hasPrefix(v.Labels) {
		return nil
	}
	i, err := c.engine().ImageInspect(ctx, v.Image)
	if errdefs.IsNotFound(err) {
		v.ImageGone = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", v.Image, err)
	}
	v.ImageLabels = make(map[string]string)
	if i.Config != nil {
		for k, value := range i.Config.Labels {
			if strings.HasPrefix(k, LabelPrefix) {
				v.ImageLabels[k] = value
			}
		}
	}
	return nil
}

func hasPrefix(labels map[string]string) bool {
	for k := range labels {
		if strings.HasPrefix(k, LabelPrefix) {
			return true
		}
	}
	return false
}

// mounts lists what of the host the container sees. A volume of the driver "local" can be a mount of anything.
func (c *Client) mounts(ctx context.Context, points []container.MountPoint) ([]Mount, error) {
	var list []Mount
	for _, p := range points {
		source := p.Source
		if p.Type == mount.TypeVolume && p.Driver == "local" {
			v, err := c.engine().VolumeInspect(ctx, p.Name)
			if err != nil && !errdefs.IsNotFound(err) {
				return nil, fmt.Errorf("volume %s: %w", p.Name, err)
			}
			if device := v.Options["device"]; strings.HasPrefix(device, "/") {
				source = device
			}
		}
		if source != "" {
			list = append(list, Mount{Source: source, Destination: p.Destination, ReadOnly: !p.RW})
		}
	}
	return list, nil
}

func (c *Client) endpoints(ctx context.Context, of *Container, settings map[string]*network.EndpointSettings) ([]Endpoint, error) {
	var list []Endpoint
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		s := settings[name]
		if s == nil {
			continue
		}
		id := s.NetworkID
		if id == "" {
			id = name // before the first start
		}
		n, err := c.network(ctx, id)
		if errdefs.IsNotFound(err) {
			if !of.Running() {
				continue // the engine's own bridge has another id after its restart, which the container learns at its start
			}
			err = fmt.Errorf("%v: try again, or take the container off that network", err) // not that there is no container
		}
		if err != nil {
			return nil, err
		}
		e := Endpoint{Network: n, MAC: s.MacAddress, Links: make(map[string]string)}
		for _, a := range []struct {
			address string
			bits    int
		}{{s.IPAddress, s.IPPrefixLen}, {s.GlobalIPv6Address, s.GlobalIPv6PrefixLen}} {
			if a.address == "" {
				continue
			}
			address, err := netip.ParseAddr(a.address)
			if err != nil {
				return nil, fmt.Errorf("network %s: %w", name, err)
			}
			e.Addresses = append(e.Addresses, netip.PrefixFrom(address, a.bits))
		}
		for _, gateway := range []string{s.Gateway, s.IPv6Gateway} {
			a, err := netip.ParseAddr(gateway)
			if err == nil && !slices.Contains(e.Gateways, a) {
				e.Gateways = append(e.Gateways, a)
			}
		}
		// The list is complete since 25.0. Before, the name and the short id went without saying.
		e.Names = slices.Concat(s.DNSNames, s.Aliases)
		if n.Name != defaultBridge {
			e.Names = append(e.Names, of.Name, of.ID[:min(12, len(of.ID))])
		}
		slices.Sort(e.Names)
		e.Names = slices.Compact(e.Names)
		for _, link := range s.Links {
			container, alias, found := strings.Cut(link, ":")
			if !found {
				alias = container
			}
			e.Links[alias] = container
		}
		list = append(list, e)
	}
	return list, nil
}

func ports(s *container.NetworkSettings) []Port {
	var list []Port
	for port, bindings := range s.Ports {
		for _, b := range bindings {
			// The engine writes what it has bound. Anything else is nothing that could be reached.
			host, err := netip.ParseAddr(b.HostIP)
			if b.HostIP == "" {
				host, err = netip.IPv4Unspecified(), nil
			}
			number, err2 := parsePort(b.HostPort)
			inside := port.Int()
			if err != nil || err2 != nil || inside <= 0 || inside > 65535 {
				continue
			}
			list = append(list, Port{port.Proto(), uint16(inside), netip.AddrPortFrom(host, number)})
		}
	}
	slices.SortFunc(list, func(a, b Port) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	return list
}

// extraHosts reads "name:address" and "name=address"; the address may be the word "host-gateway".
func extraHosts(list []string) ([]ExtraHost, error) {
	var hosts []ExtraHost
	for _, s := range list {
		i := strings.IndexAny(s, ":=")
		if i <= 0 {
			return nil, fmt.Errorf("extra host %q: want name:address", s)
		}
		h := ExtraHost{Name: s[:i]}
		if value := strings.Trim(s[i+1:], "[]"); value != "host-gateway" {
			a, err := netip.ParseAddr(value)
			if err != nil {
				return nil, fmt.Errorf("extra host %s: %w", h.Name, err)
			}
			h.Address = a
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// Summary is one container of a list.
type Summary struct {
	ID, Name string
	Labels   map[string]string
	State    State
	// Networks has the ids of its networks.
	Networks []string
}

// List returns all containers that the engine has, running or not.
func (c *Client) List(ctx context.Context) ([]Summary, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	list, err := c.engine().ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var all []Summary
	for _, s := range list {
		one := Summary{ID: s.ID, Labels: s.Labels, State: State(s.State), Name: nameOf(s.Names)}
		if s.NetworkSettings != nil {
			for _, n := range s.NetworkSettings.Networks {
				if n != nil && n.NetworkID != "" {
					one.Networks = append(one.Networks, n.NetworkID)
				}
			}
			slices.Sort(one.Networks)
		}
		all = append(all, one)
	}
	return all, nil
}

// nameOf finds a container's name among its names: the others are links' and have a second slash.
func nameOf(names []string) string {
	for _, n := range names {
		if n = strings.TrimPrefix(n, "/"); !strings.Contains(n, "/") {
			return n
		}
	}
	return ""
}
