package direct

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice/dockernet/nft"
	"sluice/matcher"
	"sluice/policy"
)

func allowlist(t *testing.T, hosts ...string) Phase {
	t.Helper()
	p := policy.Policy{Mode: policy.Allowlist}
	for _, h := range hosts {
		target, err := policy.ParseTarget(h)
		if err != nil {
			t.Fatal(err)
		}
		p.Targets = append(p.Targets, target)
	}
	return Phase{Rules: compiled(t, p)}
}

func compiled(t *testing.T, p policy.Policy) *matcher.Ruleset {
	t.Helper()
	rules, err := matcher.Compile(p, matcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func specOf(t *testing.T, p Phase) *Spec {
	none := Phase{Rules: compiled(t, policy.Policy{})}
	return &Spec{Phases: [policy.PhaseCount]Phase{p, none, none}}
}

// allowedText is what the first phase lets go straight, of both families.
func allowedText(s *Spec) string {
	var list []string
	add := func(what string, f nft.Kind, port uint16, addresses spans) {
		if len(addresses) > 0 {
			list = append(list, fmt.Sprintf("%s%s:%d %s", what, version(f), port, addresses.text()))
		}
	}
	for _, f := range []nft.Kind{nft.IPv4, nft.IPv6} {
		t := s.allowed(&s.Phases[0], f)
		for _, port := range slices.Sorted(maps.Keys(t.ports)) {
			add("net", f, port, t.ports[port])
		}
		for _, port := range slices.Sorted(maps.Keys(t.exact)) {
			add("exact", f, port, t.exact[port])
		}
		add("dns", f, 53, t.dns)
	}
	return strings.Join(list, ", ")
}

// What an allowlist lets go straight: networks without the floor, and single addresses whatever they are.
func TestAllowed(t *testing.T) {
	for _, tt := range []struct{ hosts, want string }{
		{"192.0.2.1 192.0.2.2", "net4:0 192.0.2.1-192.0.2.2"},
		{"192.0.2.1:80 192.0.2.1", "net4:0 192.0.2.1"},
		{"192.0.2.1:80 192.0.2.0/24:443", "net4:80 192.0.2.1, net4:443 192.0.2.0-192.0.2.255"},
		{"192.0.2.1:53 192.0.2.0/24:53", "dns4:53 192.0.2.1"},
		{"169.254.0.0/16", ""},
		{"169.254.169.254", "net4:0 169.254.169.254"},
		{"127.0.0.1 0.0.0.0 ::1", ""},
		{"168.63.129.16/30", "net4:0 168.63.129.17-168.63.129.19"},
		{"64:ff9b::192.0.2.1 [2002:c000:201::1]:80", "exact6:0 64:ff9b::c000:201, exact6:80 2002:c000:201::1"},
		{"name.test", ""},
	} {
		if got := allowedText(specOf(t, allowlist(t, strings.Fields(tt.hosts)...))); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.hosts, got, tt.want)
		}
	}
}

// On an internal network nothing goes straight but to neighbours and the host, also where there are none of a family.
func TestAllowedOnInternalNetworks(t *testing.T) {
	s := specOf(t, allowlist(t, "192.0.2.1", "198.51.100.7", "203.0.113.1:80", "2001:db8::1", "[2001:db8::2]:80", "64:ff9b::192.0.2.1"))
	s.Networks = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	s.Host = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	s.Internal = true
	if got, want := allowedText(s), "net4:0 198.51.100.7, net4:80 203.0.113.1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Few addresses are compared one by one. More of them make sets, each name once.
func TestSets(t *testing.T) {
	hosts := []string{"2001:db8::/64"}
	for i := range 30 {
		hosts = append(hosts, fmt.Sprintf("10.0.%d.0/24", 2*i), fmt.Sprintf("10.1.0.%d", 2*i), fmt.Sprintf("10.2.0.%d:443", 2*i), fmt.Sprintf("10.3.%d.0/24:443", 2*i))
	}
	for want, s := range map[string]*Spec{
		"": specOf(t, allowlist(t, "192.0.2.1", "192.0.2.0/24:443")),
		"baseline_net4(interval), baseline_port4, baseline_port_net4(interval)": specOf(t, allowlist(t, hosts...)),
	} {
		plan := NewPlan(s, []nft.Kind{nft.IPv4}, false, func(parts ...string) string { return strings.Join(parts, "_") })
		for _, inbound := range []string{"a", "b"} {
			floor := plan.NewFloor(inbound, []policy.Phase{policy.Baseline, policy.Run}, func(nft.Kind) nft.Verdict { return nft.Drop })
			for n := range policy.Phase(policy.PhaseCount) {
				plan.Judge(n, nft.IPv4, Outcomes{Refuse: nft.Drop, Let: then(nft.Return), Floor: floor})
			}
		}
		var names []string
		for _, set := range plan.Sets {
			name := set.Name
			if set.Interval {
				name += "(interval)"
			}
			names = append(names, name)
		}
		slices.Sort(names)
		if got := strings.Join(names, ", "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestNamed(t *testing.T) {
	s := specOf(t, allowlist(t, "192.0.2.1", "192.0.2.2:80", "192.0.2.3:53", "name.test", "2001:db8::1", "64:ff9b::192.0.2.1"))
	s.Phases[0].Named = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.7:5432")}
	s.Open = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.9:8080")}
	for f, want := range map[nft.Kind]string{
		nft.IPv4: "192.0.2.1-192.0.2.3 198.51.100.7 198.51.100.9",
		nft.IPv6: "64:ff9b::c000:201 2001:db8::1",
	} {
		var got spans
		for _, e := range s.Named(policy.Baseline, f) {
			got = append(got, span{e.First, e.Last})
		}
		if got.text() != want {
			t.Errorf("%v: got %q, want %q", f, got.text(), want)
		}
	}
	if got := s.Named(policy.Run, nft.IPv4); len(got) != 1 {
		t.Errorf("no network: got %v, want what is open in every phase", got)
	}
}

func TestCheck(t *testing.T) {
	mapped := netip.MustParseAddr("::ffff:192.0.2.1")
	for name, spoil := range map[string]func(*Spec){
		"no_rules":       func(s *Spec) { s.Phases[2].Rules = nil },
		"mapped_name":    func(s *Spec) { s.Phases[1].Named = []netip.AddrPort{netip.AddrPortFrom(mapped, 1)} },
		"mapped_network": func(s *Spec) { s.Networks = []netip.Prefix{netip.PrefixFrom(mapped, 128)} },
		"no_network":     func(s *Spec) { s.Direct = []netip.Prefix{{}} },
		"zone":           func(s *Spec) { s.Host = []netip.Addr{netip.MustParseAddr("fe80::1%eth0")} },
		"open_no_port":   func(s *Spec) { s.Open = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 0)} },
		"closed_mapped":  func(s *Spec) { s.Closed = []netip.AddrPort{netip.AddrPortFrom(mapped, 1)} },
	} {
		s := specOf(t, allowlist(t, "192.0.2.1"))
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		spoil(s)
		if s.Check() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
