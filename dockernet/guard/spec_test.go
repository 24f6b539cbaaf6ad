package guard

import (
	"net/netip"
	"testing"

	"sluice/dockernet/direct"
	"sluice/dockernet/direct/directtest"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// Short names of what these tests need most.
var (
	phaseOf  = directtest.Phase
	threeOf  = directtest.Three
	prefixes = directtest.Prefixes
	addrs    = directtest.Addrs
	inbound  = directtest.Inbound
)

var (
	hardwareA = nft.Hardware{0x02, 0x42, 0xc6, 0x33, 0x64, 0x02}
	bridgeA   = nft.Hardware{0x02, 0x42, 0xc6, 0x33, 0x64, 0x01}
)

// example is a container on one network, with IPv6 or without.
func example(withIPv6 bool, phases [policy.PhaseCount]direct.Phase) *Spec {
	s := &Spec{
		Spec: direct.Spec{
			Phases:   phases,
			Networks: prefixes("198.51.100.0/24"),
			Direct:   prefixes("203.0.113.1/32"),
			Host:     addrs("198.51.100.1", "203.0.113.1"),
			Closed:   []netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:9464")},
		},
		Interface: "veth0", Index: 7,
		Hardware:  hardwareA,
		Addresses: addrs("198.51.100.2"),
		OnLink:    prefixes("198.51.100.0/24"),
		Routers:   []nft.Hardware{bridgeA},
		Gateways:  addrs("198.51.100.1"),
	}
	if withIPv6 {
		s.Networks = append(s.Networks, prefixes("2001:db8:1::/64")...)
		s.Spec.Direct = append(s.Spec.Direct, prefixes("2001:db8:ffff::1/128")...)
		s.Host = append(s.Host, addrs("2001:db8:1::1", "2001:db8:ffff::1")...)
		s.Closed = append(s.Closed, netip.MustParseAddrPort("[2001:db8:ffff::1]:9464"))
		s.Addresses = append(s.Addresses, addrs("2001:db8:1::2", "fe80::42:c6ff:fe33:6402")...)
		s.OnLink = append(s.OnLink, prefixes("2001:db8:1::/64")...)
		s.Gateways = append(s.Gateways, addrs("2001:db8:1::1", "fe80::42:c6ff:fe33:6401")...)
	}
	return s
}

func TestSpecIsChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Spec){
		"no_rules":             func(s *Spec) { s.Phases[1].Rules = nil },
		"no_interface":         func(s *Spec) { s.Interface = "" },
		"long_interface":       func(s *Spec) { s.Interface = "sixteen_letters_" },
		"no_index":             func(s *Spec) { s.Index = 0 },
		"no_hardware":          func(s *Spec) { s.Hardware = nft.Hardware{} },
		"group_hardware":       func(s *Spec) { s.Hardware[0] |= 1 },
		"group_router":         func(s *Spec) { s.Routers = []nft.Hardware{{1}} },
		"no_address":           func(s *Spec) { s.Addresses = nil },
		"group_address":        func(s *Spec) { s.Addresses = addrs("224.0.0.1") },
		"loopback_address":     func(s *Spec) { s.Addresses = addrs("127.0.0.1") },
		"unspecified_address":  func(s *Spec) { s.Addresses = addrs("::") },
		"mapped_address":       func(s *Spec) { s.Addresses = addrs("::ffff:192.0.2.1") },
		"zone":                 func(s *Spec) { s.Addresses = addrs("fe80::1%eth0") },
		"unspecified_gateway":  func(s *Spec) { s.Gateways = addrs("0.0.0.0") },
		"mapped_network":       func(s *Spec) { s.OnLink = []netip.Prefix{netip.PrefixFrom(addrs("::ffff:192.0.2.0")[0], 120)} },
		"no_network":           func(s *Spec) { s.OnLink = []netip.Prefix{{}} },
		"closed_without_port":  func(s *Spec) { s.Closed[0] = netip.AddrPortFrom(s.Closed[0].Addr(), 0) },
		"networks_of_no_value": func(s *Spec) { s.Networks = []netip.Prefix{{}} },
	} {
		t.Run(name, func(t *testing.T) {
			s := example(true, threeOf(t, phaseOf(t, "public")))
			if err := s.check(); err != nil {
				t.Fatalf("before: %v", err)
			}
			spoil(s)
			if err := s.check(); err == nil {
				t.Error("no error")
			}
			if _, err := Listing(s, policy.Baseline, DefaultMark, 0); err == nil {
				t.Error("it has a listing")
			}
		})
	}
}

func TestMark(t *testing.T) {
	for _, m := range []Mark{0, 1, 7, 0xffffffff} {
		if m.check() == nil {
			t.Errorf("%#x is taken", uint32(m))
		}
	}
	for m, want := range map[Mark][3]uint32{
		0x3000:     {0x1000, 0x2000, 0x3000},
		0x80000001: {1, 0x80000000, 0x80000001},
	} {
		if err := m.check(); err != nil {
			t.Error(err)
		}
		if got := [3]uint32{m.allowed(), m.replies(), m.open()}; got != want {
			t.Errorf("%#x: got %#x, want %#x", uint32(m), got, want)
		}
	}
}
