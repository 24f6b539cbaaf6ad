package host

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"sluice/control"
	"sluice/controller"
	"sluice/controller/api"
	"sluice/dockernet/engine"
)

const dnsPort = 53

// Engine is a Docker engine as the controller wants it.
type Engine struct {
	// Client asks; Docker does the little that package engine has no word for.
	Client *engine.Client
	Docker client.ContainerAPIClient
	// Sockets are those that a container must not see, beside the engine's: the controller's.
	Sockets []string
	// Routes are networks that new ones must keep clear of.
	Routes func() ([]netip.Prefix, error)
	// EarlyRules is set if managed networks have their rules before the engine is there, see [Options.Kept].
	EarlyRules bool
	// Adopt is set if containers on whose side a harness has put a proxy of its own are to be adopted.
	Adopt bool
	// Attached reports whether a container, by id or name, is under a policy. It is set before the first use.
	Attached func(container string) bool
}

var _ controller.Engine = (*Engine)(nil)

// Inspect implements [controller.Engine].
func (e *Engine) Inspect(ctx context.Context, ref string) (controller.Container, error) {
	c, err := e.Client.Inspect(ctx, ref)
	if errdefs.IsNotFound(err) {
		return controller.Container{}, &control.Error{Code: control.CodeNotFound, Message: fmt.Sprintf(
			"there is no container %q: docker ps lists those that run", ref)}
	}
	if err != nil {
		return controller.Container{}, err
	}
	conditions, err := e.Client.Conditions(ctx)
	if err != nil {
		return controller.Container{}, err
	}
	conditions.Sockets = append(conditions.Sockets, e.Sockets...)
	conditions.Attached, conditions.EarlyRules = e.Attached, e.EarlyRules
	v := controller.Container{ID: c.ID, Name: c.Name, Running: c.Running()}
	for _, r := range c.Refusals(conditions) {
		v.Refusals = append(v.Refusals, controller.Refusal{Reason: r.What, Repair: r.Repair, Weak: r.Weak,
			Joins: r.Kind == engine.NetworkContainer})
	}
	for _, w := range c.Warnings(conditions) {
		v.Warnings = append(v.Warnings, w.Error())
	}
	v.Restarts = c.Restart != "no"
	v.Holder = c.Labels[engine.LabelInternal] == engine.Holder
	other, joined := c.Joined()
	v.Joined = other
	if joined && len(v.Refusals) == 0 {
		v.Refusals = append(v.Refusals, controller.Refusal{Joins: true,
			Reason: "it shares the network of container " + other + ", which has its policy already", Repair: "name that one"})
	}
	if !v.Running {
		return v, nil
	}
	v.Started, v.Sandbox = c.Started.UTC().Format(time.RFC3339Nano), c.SandboxKey
	for _, s := range c.DNS.Servers {
		if !s.IsLoopback() {
			v.Upstreams = append(v.Upstreams, netip.AddrPortFrom(s, dnsPort))
		}
	}
	for _, p := range c.Endpoints {
		v.Networks = append(v.Networks, controller.Network{ID: p.ID, Name: p.Name, Bridge: p.Bridge, Addresses: p.Addresses,
			Gateways: p.Gateways, MAC: p.MAC, Internal: p.Internal, Managed: p.Managed()})
	}
	v.Policy, v.Phase = labels(&c)
	_, labelled := c.Labels[engine.LabelPolicy]
	v.Unheeded = labelled && !c.Managed()
	if v.Hosts, err = e.hosts(ctx, &c); err != nil {
		return v, err
	}
	if v.Provider, err = e.provider(ctx, &c); err != nil || v.Provider == nil || v.Provider.PolicyFile == "" {
		return v, err
	}
	if r, may := c.MayWrite(v.Provider.PolicyFile); may {
		v.Refusals = append(v.Refusals, controller.Refusal{Reason: r.What, Repair: r.Repair})
	}
	return v, nil
}

// callLimit is how long the engine may take for one thing. Stopping a container takes up to 10 s by itself.
const callLimit = 30 * time.Second

// Runs implements [controller.Engine].
func (e *Engine) Runs(ctx context.Context, c *controller.Container) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	now, err := e.Docker.ContainerInspect(ctx, c.ID)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inspect container %s: %w", c.Name, err)
	}
	if now.ContainerJSONBase == nil || now.State == nil || now.NetworkSettings == nil {
		return false, fmt.Errorf("inspect container %s: the engine's answer is incomplete", c.Name)
	}
	started, err := time.Parse(time.RFC3339Nano, now.State.StartedAt)
	if err != nil {
		return false, fmt.Errorf("inspect container %s: %w", c.Name, err)
	}
	return now.ID == c.ID && now.State.Running && started.UTC().Format(time.RFC3339Nano) == c.Started && now.NetworkSettings.SandboxKey == c.Sandbox, nil
}

// labels are the policy and the phase that a container is to be admitted with to managed networks.
func labels(c *engine.Container) (policy, phase string) {
	if !c.Managed() {
		return "", ""
	}
	phase = c.Labels[engine.LabelPhase]
	if policy, ok := c.Labels[engine.LabelPolicy]; ok {
		return policy, phase
	}
	for _, p := range c.Endpoints {
		if policy, ok := p.Labels[engine.LabelPolicy]; ok {
			return policy, phase
		}
	}
	return "", ""
}

// Managed implements [controller.Engine].
func (e *Engine) Managed(ctx context.Context) (ids []string, err error) {
	networks, err := e.watched(ctx)
	if err != nil {
		return nil, err
	}
	containers, err := e.Client.List(ctx)
	for _, c := range containers {
		on := func(n engine.Network) bool { return slices.Contains(c.Networks, n.ID) }
		_, labelled := c.Labels[engine.LabelPolicy]
		if (c.State == engine.StateRunning || c.State == engine.StatePaused) && (labelled || slices.ContainsFunc(networks, on)) {
			ids = append(ids, c.ID)
		}
	}
	return ids, err
}

// Networks implements [controller.Engine].
func (e *Engine) Networks(ctx context.Context) (all []api.Network, err error) {
	networks, err := e.Client.ManagedNetworks(ctx)
	for _, n := range networks {
		all = append(all, network(n))
	}
	return all, err
}

func network(n engine.Network) api.Network {
	v := api.Network{Name: n.Name, ID: n.ID, Bridge: n.Bridge, Internal: n.Internal}
	for _, s := range n.Subnets {
		v.Subnets = append(v.Subnets, s.String())
	}
	return v
}

// CreateNetwork implements [controller.Engine].
func (e *Engine) CreateNetwork(ctx context.Context, n api.NewNetwork) (api.Network, error) {
	taken, err := e.Routes()
	if err != nil {
		return api.Network{}, err
	}
	mtu, err := e.Client.MTU(ctx)
	if err != nil {
		return api.Network{}, err
	}
	made, err := e.Client.CreateNetwork(ctx, engine.NetworkSpec{Name: n.Name, Internal: n.Internal, IPv6: n.IPv6,
		Policy: string(n.Policy), Taken: taken, MTU: mtu})
	if err != nil {
		return api.Network{}, err
	}
	v := network(made)
	conditions, err := e.Client.Conditions(ctx)
	if err != nil {
		v.Warning = err.Error() // it is made all the same
		return v, nil
	}
	v.Warning = conditions.DNSWarning(made)
	return v, nil
}

// RemoveNetwork implements [controller.Engine].
func (e *Engine) RemoveNetwork(ctx context.Context, name string, force bool) error {
	return e.Client.RemoveNetwork(ctx, name, force)
}

// hosts are the names that the container knows without DNS.
func (e *Engine) hosts(ctx context.Context, c *engine.Container) (map[string][]netip.Addr, error) {
	hosts := map[string][]netip.Addr{}
	add := func(name string, addresses ...netip.Addr) {
		name = strings.ToLower(name)
		hosts[name] = append(hosts[name], addresses...)
	}
	for _, h := range c.ExtraHosts {
		if h.Address.IsValid() {
			add(h.Name, h.Address)
			continue
		}
		gateways, err := e.Client.HostGateway(ctx)
		if err != nil {
			return nil, err
		}
		add(h.Name, gateways...)
	}
	with := *c
	with.Endpoints = nil
	for _, p := range c.Endpoints {
		for _, name := range p.Names {
			for _, a := range p.Addresses {
				add(name, a.Addr())
			}
		}
		if p.Name != defaultBridge || len(p.Links) > 0 {
			with.Endpoints = append(with.Endpoints, p)
		}
	}
	siblings, err := e.Client.Siblings(ctx, with)
	if err != nil {
		return nil, err
	}
	for _, s := range siblings {
		for _, name := range s.Names {
			add(name, s.Addresses...)
		}
	}
	return hosts, nil
}

// defaultBridge is the network whose containers know each other by links alone.
const defaultBridge = "bridge"

// Events implements [controller.Engine].
func (e *Engine) Events(ctx context.Context, since time.Time) iter.Seq[controller.Event] {
	return func(yield func(controller.Event) bool) {
		for event := range e.Client.Events(ctx, since) {
			v := controller.Event{Time: event.Time, Container: event.Container, Network: event.Network}
			switch event.Kind {
			case engine.Reconcile:
				v.Kind = controller.Resync
			case engine.Started, engine.Died, engine.Destroyed, engine.Renamed, engine.Updated, engine.Paused, engine.Unpaused:
				v.Kind = controller.ContainerChanged
			case engine.Connected, engine.Disconnected:
				v.Kind = controller.NetworkJoined
			case engine.NetworkCreated, engine.NetworkDestroyed:
				v.Kind = controller.NetworksChanged
			default:
				continue
			}
			if !yield(v) {
				return
			}
		}
	}
}

// Start implements [controller.Engine].
func (e *Engine) Start(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return e.Docker.ContainerStart(ctx, id, container.StartOptions{})
}

// Remove implements [controller.Engine].
func (e *Engine) Remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := e.Docker.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) || errdefs.IsConflict(err) { // gone, or somebody is removing it
		return nil
	}
	return err
}

// Pause implements [controller.Engine].
func (e *Engine) Pause(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := e.Docker.ContainerPause(ctx, id)
	if err != nil && strings.Contains(err.Error(), "already paused") {
		return nil
	}
	return err
}

// Unpause implements [controller.Engine].
func (e *Engine) Unpause(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := e.Docker.ContainerUnpause(ctx, id)
	if err != nil && strings.Contains(err.Error(), "is not paused") {
		return nil
	}
	return err
}

// Close lets go of the engine.
func (e *Engine) Close() error { return e.Client.Close() }
