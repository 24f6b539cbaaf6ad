package gate

import (
	"errors"
	"fmt"
	"net/netip"

	"sluice/matcher"
	"sluice/policy"
)

// Spec says what the rules in one container's namespace shall mean. It is read only while a function has it.
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

	// Listeners are where connections are redirected to.
	Listeners Listeners
	// Explicit are loopback addresses and ports that lead to the TCP listener of their family, for clients that
	// are told of a proxy. Nothing else listens there.
	Explicit []netip.AddrPort
	// NoRoute4 and NoRoute6 say that the sidecar has no route for the family: what would go through the proxy is
	// refused, so that clients fall back to the other family.
	NoRoute4, NoRoute6 bool

	// NoFloor lets the addresses of [matcher.FloorPrefixes] be judged like all others.
	NoFloor bool
	// LogGroup is the NFLOG group, in the container's namespace, that gets the first packets of what is refused.
	LogGroup uint16
}

// Phase is the policy of one phase.
type Phase struct {
	// Rules judge. The gate knows siblings and the host by Spec, so nothing is missing if Rules were compiled
	// without [matcher.Options.Never].
	Rules *matcher.Ruleset
	// Inbound says which connections into the container work.
	Inbound policy.Inbound
	// Named are the siblings and host addresses that the policy's name targets stand for, each with the target's
	// port, or 0 for every port. They are targets like those by address.
	Named []netip.AddrPort
}

// Listeners are the ports of the session's sockets on the container's loopback addresses. The IPv6 ones are 0 where
// the namespace has no ::1; there all IPv6 is refused.
type Listeners struct {
	TCP4, UDP4, TCP6, UDP6 uint16
}

// check finds what cannot be turned into rules.
func (s *Spec) check() error {
	for i := range s.Phases {
		if s.Phases[i].Rules == nil {
			return fmt.Errorf("phase %v has no rules: compile its policy first", policy.Phase(i))
		}
		for _, n := range s.Phases[i].Named {
			if !plain(n.Addr()) {
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
		if !plain(a) {
			return fmt.Errorf("host address %v: want an address without a zone", a)
		}
	}
	for _, list := range [][]netip.AddrPort{s.Closed, s.Open, s.Explicit} {
		for _, a := range list {
			if !plain(a.Addr()) || a.Port() == 0 {
				return fmt.Errorf("%v: want an address without a zone, and a port", a)
			}
		}
	}
	for _, a := range s.Explicit {
		if !a.Addr().IsLoopback() || a.Addr() == engineResolver {
			return fmt.Errorf("explicit proxy %v: want a loopback address other than %v", a, engineResolver)
		}
	}
	return s.Listeners.check()
}

func (l Listeners) check() error {
	if l.TCP4 == 0 || l.UDP4 == 0 || (l.TCP6 == 0) != (l.UDP6 == 0) {
		return errors.New("a listener is missing: want TCP and UDP on 127.0.0.1, and on ::1 both or none")
	}
	return nil
}

// plain reports whether a is an address that packets have: no zone, and IPv4 in its own form.
func plain(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }

// engineResolver is where the engine answers DNS inside of a container, on port 53 and on random ports.
var engineResolver = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// hasNames reports whether any staged phase has a rule by name. Then TCP goes through the proxy in public and denylist
// phases too, which records names, so that a later phase can judge the connections that are there.
func (s *Spec) hasNames() bool {
	for i := range s.Phases {
		if s.Phases[i].Rules.HasNameRules() {
			return true
		}
	}
	return false
}

// deniesNames reports whether any staged phase denies by name.
func (s *Spec) deniesNames() bool {
	for i := range s.Phases {
		if r := s.Phases[i].Rules; r.Mode() == policy.Denylist && r.HasNameRules() {
			return true
		}
	}
	return false
}

// proxies reports whether a phase sends TCP by default through the proxy.
func (s *Spec) proxies(p *Phase) bool {
	switch p.Rules.Mode() {
	case policy.Allowlist:
		return true
	case policy.Public, policy.Denylist:
		return s.Internal || s.hasNames()
	default:
		return false
	}
}

// straightTCP reports whether an allowlist lets TCP to its addresses go straight. Not beside a phase that denies by
// name: its connections have to be on the proxy's plane already when that phase comes, or they would be cut although
// both phases allow them. Connections from the direct plane that meet a public phase stay where they are.
func (s *Spec) straightTCP() bool { return !s.deniesNames() }

// serves reports whether there are listeners for the family, and routes tells whether the sidecar has a route for it.
func (s *Spec) serves(f family) bool { return f == ipv4 || s.Listeners.TCP6 != 0 }

func (s *Spec) routes(f family) bool {
	if f == ipv4 {
		return !s.NoRoute4
	}
	return !s.NoRoute6
}
