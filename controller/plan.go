package controller

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice/control"
	"sluice/dockernet/direct"
	"sluice/dockernet/netns"
	"sluice/matcher"
	"sluice/policy"
)

// ExplicitProxy is where proxy clients inside of a container find the proxy.
var ExplicitProxy = direct.ExplicitProxy

// makePlan brings together what the layers have to know.
func makePlan(container *Container, facts *Facts, policies *policySet, sockets *netns.Sockets, options matcher.Options) (*Plan, error) {
	p := &Plan{
		Container: container, Policies: policies, Sockets: sockets, Explicit: []netip.AddrPort{ExplicitProxy},
		NoRoute4: facts.NoRoute4, NoRoute6: facts.NoRoute6,
		Direct: direct.Spec{
			Networks: container.networks(),
			Host:     facts.Addresses,
			Internal: container.internal(),
			Closed:   facts.Closed,
			Open:     container.Provider.open(),
			NoFloor:  options.NoFloor,
		},
	}
	upstreams := container.Upstreams
	if len(upstreams) == 0 {
		upstreams = facts.Upstreams
	}
	near := slices.Clone(facts.Subnets)
	for _, a := range facts.Addresses {
		near = append(near, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, u := range upstreams {
		near = append(near, netip.PrefixFrom(u.Addr(), u.Addr().BitLen()))
	}
	p.Direct.Direct = sorted(near)

	rules, err := policies.compiled(options)
	if err != nil {
		return nil, err
	}
	for phase, one := range policies.phases {
		p.Direct.Phases[phase] = direct.Phase{Rules: rules[phase], Inbound: one.Options.Inbound, Named: p.named(one)}
	}
	if err := p.Direct.Check(); err != nil {
		return nil, err
	}
	return p, p.session(upstreams)
}

// session says the same for the sidecar.
func (p *Plan) session(upstreams []netip.AddrPort) error {
	texts, err := p.Policies.policies()
	if err != nil {
		return err
	}
	p.Session = control.SessionSpec{Policies: texts, Hosts: map[string][]string{}, Open: p.Container.Provider.openNames()}
	for _, u := range upstreams {
		p.Session.Upstreams = append(p.Session.Upstreams, u.String())
	}
	for _, n := range sorted(slices.Concat(p.Direct.Networks, p.Direct.Direct)) {
		p.Session.Never = append(p.Session.Never, n.String())
	}
	for name, addresses := range p.Container.Hosts {
		for _, a := range addresses {
			p.Session.Hosts[name] = append(p.Session.Hosts[name], a.String())
		}
	}
	p.Session.NoRoute = []string{}
	if !p.Direct.Internal && !p.Direct.HasNames() {
		return nil // what names stand for is reached directly
	}
	if p.NoRoute4 {
		p.Session.NoRoute = append(p.Session.NoRoute, "ipv4")
	}
	if p.NoRoute6 {
		p.Session.NoRoute = append(p.Session.NoRoute, "ipv6")
	}
	return nil
}

// networks are the subnets that the container is on.
func (c *Container) networks() (all []netip.Prefix) {
	for _, n := range c.Networks {
		for _, a := range n.Addresses {
			all = append(all, a.Masked())
		}
	}
	return sorted(all)
}

// internal reports whether none of the networks has a way out.
func (c *Container) internal() bool {
	return len(c.Networks) > 0 && !slices.ContainsFunc(c.Networks, func(n Network) bool { return !n.Internal })
}

// sorted returns each of the prefixes once, in an order that does not depend on theirs.
func sorted(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(prefixes)
}

// named finds what a policy's names stand for on the container's own networks and the host.
func (p *Plan) named(one policy.Policy) (all []netip.AddrPort) {
	if len(p.Container.Hosts) == 0 {
		return nil
	}
	near := slices.Concat(p.Direct.Networks, p.Direct.Direct)
	for _, t := range one.Targets {
		for name, addresses := range p.Container.Hosts {
			if !covers(t, name) {
				continue
			}
			for _, a := range addresses {
				if slices.ContainsFunc(near, func(n netip.Prefix) bool { return n.Contains(a) }) {
					all = append(all, netip.AddrPortFrom(a, t.Port))
				}
			}
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// covers reports whether a target is about a host name.
func covers(t policy.Target, name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	switch t.Kind {
	case policy.Hostname:
		return t.Host == name
	case policy.Wildcard:
		return strings.HasSuffix(name, t.Host[1:]) && len(name) >= len(t.Host)
	}
	return false
}

// same reports whether two plans lead to the same, so that nothing has to be done to go from one to the other.
func (p *Plan) same(q *Plan) bool {
	return p.sameRules(q) && p.Session.Container == q.Session.Container &&
		maps.EqualFunc(p.Session.Hosts, q.Session.Hosts, slices.Equal)
}

// sameRules reports whether the kernel's rules are the same, and what the proxy refuses too.
func (p *Plan) sameRules(q *Plan) bool {
	a, b := &p.Direct, &q.Direct
	if p.Policies.digest != q.Policies.digest || a.Internal != b.Internal || p.Sockets != q.Sockets ||
		p.NoRoute4 != q.NoRoute4 || p.NoRoute6 != q.NoRoute6 ||
		!slices.Equal(a.Networks, b.Networks) || !slices.Equal(a.Direct, b.Direct) ||
		!slices.Equal(a.Host, b.Host) || !slices.Equal(a.Closed, b.Closed) || !slices.Equal(a.Open, b.Open) ||
		!slices.Equal(p.Session.Upstreams, q.Session.Upstreams) ||
		!slices.EqualFunc(p.Container.Networks, q.Container.Networks, Network.same) {
		return false
	}
	for i := range a.Phases {
		if !slices.Equal(a.Phases[i].Named, b.Phases[i].Named) {
			return false
		}
	}
	return true
}

func (n Network) same(o Network) bool {
	return n.ID == o.ID && n.Bridge == o.Bridge && n.MAC == o.MAC && n.Internal == o.Internal && n.Managed == o.Managed &&
		slices.Equal(n.Addresses, o.Addresses) && slices.Equal(n.Gateways, o.Gateways)
}

// notes say what a user might stumble over.
func notes(p *Plan) (all []string) {
	if one := p.Container.Provider; one != nil && one.PolicyFile != "" {
		all = append(all, fmt.Sprintf("adopted: follows %s, and reaches the proxy %s in every phase", one.PolicyFile, one.Name))
	}
	for i := range p.Direct.Phases {
		if p.Direct.Phases[i].Rules.Observed() != nil {
			all = append(all, fmt.Sprintf("phase %v only observes: it refuses nothing but what no policy opens", policy.Phase(i)))
		}
	}
	if p.Direct.Internal {
		all = append(all, "all networks are internal: what is allowed outside of them is reached by TCP only, through the proxy")
	}
	if p.NoRoute4 {
		all = append(all, "the proxy has no IPv4 route: what goes through it is refused over IPv4")
	}
	if p.NoRoute6 {
		all = append(all, "the proxy has no IPv6 route: what goes through it is refused over IPv6")
	}
	return all
}
