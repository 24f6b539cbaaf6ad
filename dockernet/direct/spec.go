package direct

import (
	"fmt"
	"net/netip"

	"sluice/matcher"
	"sluice/policy"
)

// ExplicitProxy is where proxy clients inside of a container find the proxy. It lies beside the engine's resolver,
// 127.0.0.11, where no program listens; the port is that of other HTTP proxies.
var ExplicitProxy = netip.MustParseAddrPort("127.0.0.12:3128")

// Spec says what one container's policies are and where it stands. It is read only while a function has it.
type Spec struct {
	// Phases are the policies, each of which can be put in force without a new Spec.
	Phases [policy.PhaseCount]Phase

	// Networks are the container's own ones, on-link: their addresses are siblings and always on the direct plane.
	Networks []netip.Prefix
	// Direct are the other destinations that the sidecar never dials, which are therefore on the direct plane too:
	// the host's addresses, the engine's other subnets, the upstream resolvers, the sidecar's own addresses.
	Direct []netip.Prefix
	// Host are the host's own addresses, from which a phase with [policy.InboundHost] may be dialled. They belong
	// into Direct as well.
	Host []netip.Addr
	// Internal is set if none of the container's networks has a way out: then nothing but siblings and Host is on
	// the direct plane, and what else is allowed goes through the proxy, if it is TCP.
	Internal bool

	// Closed are TCP ports that no phase may reach: those of sidecar and controller on the host.
	Closed []netip.AddrPort
	// Open are TCP ports that every phase may reach, also no-network: an adopted provider's proxy.
	Open []netip.AddrPort

	// NoFloor lets the addresses of [matcher.FloorPrefixes] be judged like all others.
	NoFloor bool
}

// Phase is the policy of one phase.
type Phase struct {
	// Rules judge. Siblings and the host are known by Spec, so nothing is missing if Rules were compiled without
	// [matcher.Options.Never].
	Rules *matcher.Ruleset
	// Inbound says which connections into the container work.
	Inbound policy.Inbound
	// Named are the siblings and host addresses that the policy's name targets stand for, each with the target's
	// port, or 0 for every port. They are targets like those by address.
	Named []netip.AddrPort
}

// Check finds what cannot be turned into rules.
func (s *Spec) Check() error {
	for i := range s.Phases {
		if s.Phases[i].Rules == nil {
			return fmt.Errorf("phase %v has no rules: compile its policy first", policy.Phase(i))
		}
		for _, n := range s.Phases[i].Named {
			if !Plain(n.Addr()) {
				return fmt.Errorf("phase %v names the address %v: want an address without a zone", policy.Phase(i), n.Addr())
			}
		}
	}
	for _, list := range [][]netip.Prefix{s.Networks, s.Direct} {
		for _, p := range list {
			if !p.IsValid() || p.Addr().Is4In6() {
				return fmt.Errorf("%v is no network of one family", p)
			}
		}
	}
	for _, a := range s.Host {
		if !Plain(a) {
			return fmt.Errorf("host address %v: want an address without a zone", a)
		}
	}
	for _, list := range [][]netip.AddrPort{s.Closed, s.Open} {
		for _, a := range list {
			if !Plain(a.Addr()) || a.Port() == 0 {
				return fmt.Errorf("%v: want an address without a zone, and a port", a)
			}
		}
	}
	return nil
}

// Plain reports whether a is an address that packets have: no zone, and IPv4 in its own form.
func Plain(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }

// HasNames reports whether any staged phase has a rule by name, or observes which names there are. Then TCP goes through the proxy in public and denylist
// phases too, which records names, so that a later phase can judge the connections that are there.
func (s *Spec) HasNames() bool {
	for i := range s.Phases {
		if r := s.Phases[i].Rules; r.HasNameRules() || r.Observed() != nil {
			return true
		}
	}
	return false
}

// deniesNames reports whether any staged phase denies by name.
func (s *Spec) deniesNames() bool {
	for i := range s.Phases {
		if s.Phases[i].deniesNames() {
			return true
		}
	}
	return false
}

// RefusesByDefault reports whether the policy refuses what it does not name.
func (p *Phase) RefusesByDefault() bool {
	m := p.Rules.Mode()
	return m == policy.NoNetwork || m == policy.Allowlist
}

func (p *Phase) deniesNames() bool {
	return p.Rules.Mode() == policy.Denylist && p.Rules.HasNameRules()
}

// Proxies reports whether a phase sends TCP by default through the proxy.
func (s *Spec) Proxies(n policy.Phase) bool {
	switch s.Phases[n].Rules.Mode() {
	case policy.Allowlist:
		return true
	case policy.Public, policy.Denylist:
		return s.Internal || s.HasNames()
	default:
		return false
	}
}

// StraightTCP reports whether an allowlist lets TCP to its addresses go straight. Not beside a phase that denies by
// name: its connections have to be on the proxy's plane already when that phase comes, or they would be cut although
// both phases allow them. Connections from the direct plane that meet a public phase stay where they are.
func (s *Spec) StraightTCP() bool { return !s.deniesNames() }
