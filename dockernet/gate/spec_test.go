package gate

import (
	"net/netip"
	"slices"

	"sluice/dockernet/direct"
	"sluice/dockernet/direct/directtest"
	"sluice/policy"
)

// Short names of what these tests need most.
var (
	phaseOf  = directtest.Phase
	threeOf  = directtest.Three
	prefixes = directtest.Prefixes
	addrs    = directtest.Addrs
)

// example is a container on one network, with an IPv6 loopback or without one.
func example(withIPv6 bool, phases [policy.PhaseCount]direct.Phase) *Spec {
	s := &Spec{
		Spec: direct.Spec{
			Phases:   phases,
			Networks: prefixes("198.51.100.0/24"),
			Direct:   prefixes("203.0.113.1/32"),
			Host:     addrs("198.51.100.1", "203.0.113.1"),
		},
		Listeners: Listeners{TCP4: 40001, UDP4: 40002},
		Explicit:  []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:3128")},
		LogGroup:  7,
	}
	if withIPv6 {
		s.Networks = append(s.Networks, prefixes("2001:db8:1::/64")...)
		s.Spec.Direct = append(s.Spec.Direct, prefixes("2001:db8:ffff::1/128")...)
		s.Host = append(s.Host, addrs("2001:db8:1::1", "2001:db8:ffff::1")...)
		s.Listeners.TCP6, s.Listeners.UDP6 = 40003, 40004
		s.Explicit = append(s.Explicit, netip.MustParseAddrPort("[::1]:3128"))
	}
	return s
}

// ipv4Only takes the networks and host addresses of IPv6 away.
func ipv4Only(s *Spec) *Spec {
	s.Networks = slices.DeleteFunc(s.Networks, func(p netip.Prefix) bool { return p.Addr().Is6() })
	s.Spec.Direct = slices.DeleteFunc(s.Spec.Direct, func(p netip.Prefix) bool { return p.Addr().Is6() })
	s.Host = slices.DeleteFunc(s.Host, netip.Addr.Is6)
	return s
}
