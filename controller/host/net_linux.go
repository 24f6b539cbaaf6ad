package host

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"sluice/controller"
	"sluice/dockernet/cut"
	"sluice/dockernet/direct"
	"sluice/dockernet/engine"
	"sluice/dockernet/gate"
	"sluice/dockernet/guard"
	"sluice/dockernet/netns"
	"sluice/dockernet/nflog"
	"sluice/dockernet/nft"
	"sluice/dockernet/xdp"
	"sluice/policy"
)

// containerNet is one container's network, from inside and outside.
type containerNet struct {
	host *Host
	ns   *netns.Namespace
	gate *gate.Gate
	rim  *rim
	// queues are what it cannot send by, past the gate.
	queues xdp.Queues

	closing sync.RWMutex // guards closed, and is held for reading by what must end before the namespace is let go
	closed  bool

	ending sync.WaitGroup // what is left of cuts
	doubts cut.Doubts
	rules  rules
}

func (n *containerNet) ID() string                      { return n.ns.ID().String() }
func (n *containerNet) Listen() (*netns.Sockets, error) { return n.ns.Listen() }
func (n *containerNet) Gate() controller.Layer          { return inside{n} }
func (n *containerNet) Guard() controller.Layer         { return n.rim }
func (n *containerNet) GateHolds() bool                 { return n.gate.HoldsFrames() }

// Refusals implements [controller.Net].
func (n *containerNet) Refusals(do func(controller.Refused)) (stop func()) {
	logs := n.host.logs
	logs.Do(func() { n.rim.tell = do })
	stopGate, err := logs.Open(n.ns.Do, LogGroup, func(m nflog.Message) { do(refused(&m)) })
	if err != nil {
		n.host.options.Logger.Warn("refusals of the gate are counted, but not told", "namespace", n.ID(), "error", err)
	}
	return func() {
		if stopGate != nil {
			stopGate()
		}
		logs.Do(func() { n.rim.tell = nil })
	}
}

// Packets implements [controller.Net].
func (n *containerNet) Packets() (p controller.Packets, err error) {
	n.closing.RLock()
	defer n.closing.RUnlock()
	if n.closed {
		return p, os.ErrClosed // the gate would open another connection, and keep the namespace
	}
	c, err := n.gate.Counters()
	for i := range p.Direct {
		p.Direct[i], p.DirectBytes[i], p.Refused[i] = c.Direct[i].Packets, c.Direct[i].Bytes, c.Refused[i].Packets
	}
	p.Never, p.Proxied, p.DNS = c.RefusedAlways.Packets, c.Redirected.Packets, c.DNS.Packets
	if err == nil {
		p.Forged, err = n.rim.forged()
	}
	return p, err
}

func (n *containerNet) Close() error {
	n.closing.Lock()
	n.closed = true
	n.closing.Unlock()
	n.rules.are(nil)
	n.host.sweeper.forget(n)
	n.host.disown(n)
	n.ending.Wait()
	n.gate.Close()
	n.queues.Close()
	return n.ns.Close()
}

// Cut implements [controller.Net]. What no socket stands for is swept afterwards: the rules refuse it anyway.
func (n *containerNet) Cut(plan *controller.Plan, phase policy.Phase, before controller.Before) (controller.Cut, error) {
	j := direct.Judge{Spec: &plan.Direct, Phase: &plan.Direct.Phases[phase], Policy: plan.Policy(phase)}
	spec := cut.Spec{Refused: j.Refused, RefusedInbound: j.RefusedInbound(), Addresses: addresses(plan.Container),
		First: before != controller.Ruled, Muted: before == controller.Nothing, Joined: gate.JoinedMark, Doubtful: &n.doubts, Later: func(do func()) { n.host.sweeper.later(n, do) }}
	report, err := cut.Cut(n.ns, spec)
	if err != nil {
		return controller.Cut{}, err
	}
	n.rules.are(&spec)
	if !report.Swept || spec.First {
		n.host.sweeper.add(n)
	}
	return controller.Cut{Ended: report.Ended, Kept: report.Kept, Inbound: report.Inbound}, nil
}

func addresses(c *controller.Container) (all []netip.Addr) {
	for _, n := range c.Networks {
		for _, p := range n.Addresses {
			all = append(all, p.Addr())
		}
	}
	return all
}

// inside is the gate.
type inside struct{ *containerNet }

func (g inside) Install(p *controller.Plan, phase policy.Phase) error {
	g.rules.are(nil)
	if err := g.remember(p.Container); err != nil {
		return err
	}
	if err := g.gate.Install(gateSpec(p), phase); err != nil {
		return err
	}
	return g.queues.Keep(g.ns)
}

// remember is for before the first rules. Into a container that only holds a place, or cannot answer, nobody can have
// opened a connection.
func (g inside) remember(c *controller.Container) error {
	if c.Holder || !slices.ContainsFunc(c.Networks, func(n controller.Network) bool { return !n.Managed }) {
		return nil
	}
	if there, err := g.gate.Installed(); err != nil || there {
		return err
	}
	return cut.Remember(g.ns, nil)
}

func (g inside) Stage(p *controller.Plan) error {
	if err := g.gate.Stage(gateSpec(p)); err != nil {
		return err
	}
	return g.queues.Add(g.ns) // there may be other links
}
func (g inside) Both(phase policy.Phase) error          { return g.gate.Both(phase) }
func (g inside) Quarantine(*controller.Container) error { return g.gate.Quarantine() }
func (g inside) Switch(phase policy.Phase) error {
	g.rules.are(nil)
	return g.gate.Switch(phase)
}
func (g inside) Remove() error {
	g.rules.are(nil)
	g.queues.Close()
	return g.gate.Remove()
}

func gateSpec(p *controller.Plan) *gate.Spec {
	return &gate.Spec{
		Spec:     p.Direct,
		Explicit: p.Explicit, NoRoute4: p.NoRoute4, NoRoute6: p.NoRoute6, LogGroup: LogGroup,
		Listeners: gate.Listeners{TCP4: p.Sockets.TCP4.Port, UDP4: p.Sockets.UDP4.Port, TCP6: p.Sockets.TCP6.Port, UDP6: p.Sockets.UDP6.Port},
	}
}

// rim is the guard of all links of a container.
type rim struct {
	host  *Host
	ns    *netns.Namespace
	rules *rules                   // not known while they are changed, except to refuse more
	tell  func(controller.Refused) // of what the guard has refused; nil if nobody listens, and the logs' own

	mu sync.Mutex // guards all below
	// ports are those with rules, by the names of their interfaces.
	ports map[string]*guard.Port
	phase policy.Phase // the one that was put in force last
}

// Install implements [controller.Layer].
func (r *rim) Install(p *controller.Plan, phase policy.Phase) error {
	r.rules.are(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.each(p, func(port *guard.Port, s *guard.Spec, _ bool) error {
		return port.Install(s, phase)
	}, func() { r.phase = phase })
}

// Stage implements [controller.Layer]. A link that has no rules yet gets them at once: nothing was in force there.
func (r *rim) Stage(p *controller.Plan) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.each(p, func(port *guard.Port, s *guard.Spec, known bool) error {
		if !known {
			return port.Install(s, r.phase)
		}
		return port.Stage(s)
	}, func() {})
}

// each calls do for the port of every link that the container has, and removes the rules of links that are gone.
func (r *rim) each(p *controller.Plan, do func(port *guard.Port, s *guard.Spec, known bool) error, then func()) error {
	specs, err := r.specs(p)
	if err != nil {
		return err
	}
	for _, s := range specs {
		if err := r.host.guardBridge(s.bridge, s.managed); err != nil {
			return err
		}
		_, known := r.ports[s.Interface]
		port := r.host.guard.Port(s.Interface)
		r.ports[s.Interface] = port
		if err := do(port, &s.Spec, known); err != nil {
			return err
		}
		r.host.own(uint32(s.Index), link{s.Interface, r})
	}
	for name, port := range r.ports {
		if slices.ContainsFunc(specs, func(s portSpec) bool { return s.Interface == name }) {
			continue
		}
		if err := port.Remove(); err != nil {
			return err
		}
		delete(r.ports, name)
	}
	then()
	return nil
}

// forged is how many frames were refused for what they are.
func (r *rim) forged() (sum uint64, err error) {
	r.mu.Lock()
	ports := slices.Collect(maps.Values(r.ports))
	r.mu.Unlock() // a switch does not wait until they have counted
	for _, port := range ports {
		c, err := port.Counters()
		if err != nil {
			return 0, err
		}
		for _, of := range []nft.Counter{c.FalseSource, c.Malformed, c.Misdirected, c.Neighbour} {
			sum += of.Packets
		}
	}
	return sum, nil
}

func (r *rim) all(do func(*guard.Port) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, port := range r.ports {
		errs = append(errs, do(port))
	}
	return errors.Join(errs...)
}

// Both implements [controller.Layer].
func (r *rim) Both(phase policy.Phase) error {
	return r.all(func(p *guard.Port) error { return p.Both(phase) })
}

// Switch implements [controller.Layer]. What is refused is not known from the gate's Switch on, which comes with it: until
// then the gate refuses no less.
func (r *rim) Switch(phase policy.Phase) error {
	err := r.all(func(p *guard.Port) error { return p.Switch(phase) })
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.phase = phase
	}
	return err
}

// Quarantine implements [controller.Layer].
func (r *rim) Quarantine(c *controller.Container) error {
	links, err := engine.Links(r.ns, engineContainer(c))
	r.mu.Lock()
	for _, l := range links {
		r.ports[l.Host] = r.host.guard.Port(l.Host)
	}
	r.mu.Unlock()
	return errors.Join(err, r.all(func(p *guard.Port) error {
		if err := p.Quarantine(); !errors.Is(err, guard.ErrGone) {
			return err
		}
		return nil
	}))
}

// Remove implements [controller.Layer].
func (r *rim) Remove() error {
	r.rules.are(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, port := range r.ports {
		if err := port.Remove(); err != nil {
			return err
		}
		delete(r.ports, name)
	}
	return nil
}

// engineContainer is what package engine needs to find a container's links.
func engineContainer(c *controller.Container) engine.Container {
	e := engine.Container{ID: c.ID, SandboxKey: c.Sandbox}
	for _, n := range c.Networks {
		e.Endpoints = append(e.Endpoints, engine.Endpoint{
			Network: engine.Network{ID: n.ID, Name: n.Name, Bridge: n.Bridge}, Addresses: n.Addresses})
	}
	return e
}

// portSpec is what a link's guard has to know.
type portSpec struct {
	guard.Spec
	bridge  string
	managed bool
}

// specs are those of all links.
func (r *rim) specs(p *controller.Plan) ([]portSpec, error) {
	links, err := engine.Links(r.ns, engineContainer(p.Container))
	if err != nil {
		return nil, err
	}
	var specs []portSpec
	for i, l := range links {
		n := &p.Container.Networks[i]
		s := portSpec{bridge: n.Bridge, managed: n.Managed, Spec: guard.Spec{Spec: p.Direct, Interface: l.Host, Index: l.HostIndex, Gateways: n.Gateways}}
		if s.Hardware, s.Addresses, err = own(r.ns, l.InsideIndex); err != nil {
			return nil, fmt.Errorf("interface %s of the container: %w", l.Inside, err)
		}
		for _, a := range n.Addresses {
			s.OnLink = append(s.OnLink, a.Masked())
		}
		bridge, err := netlink.LinkByName(n.Bridge)
		if err != nil {
			return nil, fmt.Errorf("bridge %s: %w", n.Bridge, err)
		}
		router, err := hardware(bridge.Attrs().HardwareAddr)
		if err != nil {
			return nil, fmt.Errorf("bridge %s: %w", n.Bridge, err)
		}
		s.Routers = []nft.Hardware{router}
		specs = append(specs, s)
	}
	return specs, nil
}

// own are the addresses of an interface inside of the namespace. Nobody in there may change them: containers with
// NET_ADMIN are refused.
func own(ns *netns.Namespace, index int) (h nft.Hardware, all []netip.Addr, err error) {
	err = ns.Do(func() error {
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			return err
		}
		if h, err = hardware(link.Attrs().HardwareAddr); err != nil {
			return err
		}
		list, err := netns.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
		for _, a := range list {
			if ip, ok := netip.AddrFromSlice(a.IP); ok {
				all = append(all, ip.Unmap())
			}
		}
		return err
	})
	return h, all, err
}

func hardware(b []byte) (h nft.Hardware, err error) {
	if len(b) != len(h) {
		return h, fmt.Errorf("a hardware address of %d bytes: want an Ethernet interface", len(b))
	}
	copy(h[:], b)
	return h, nil
}
