package direct

import (
	"fmt"
	"net/netip"
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

// sets are the elements of the first phase's sets, by name.
func sets(s *Spec) map[string]string {
	plan := NewPlan(s, []nft.Kind{nft.IPv4, nft.IPv6}, func(parts ...string) string { return strings.Join(parts, "_") })
	m := make(map[string]string)
	for _, set := range plan.Sets {
		if name, ok := strings.CutPrefix(set.Name, "baseline_"); ok {
			var list []string
			for _, e := range set.Elements {
				text := e.First.String()
				if e.Last != e.First {
					text += "-" + e.Last.String()
				}
				if e.Port != 0 {
					text += fmt.Sprintf(" %d", e.Port)
				}
				list = append(list, text)
			}
			m[name] = strings.Join(list, ", ")
		}
	}
	return m
}

// What an allowlist lets go straight: networks without the floor, and single addresses whatever they are.
func TestAllowedSets(t *testing.T) {
	for _, tt := range []struct {
		hosts []string
		want  map[string]string
	}{
		{[]string{"192.0.2.1", "192.0.2.2"}, map[string]string{"any4": "192.0.2.1-192.0.2.2"}},
		{[]string{"192.0.2.1:80", "192.0.2.1"}, map[string]string{"any4": "192.0.2.1"}},
		{[]string{"192.0.2.1:80", "192.0.2.0/24:443"}, map[string]string{"host4": "192.0.2.1 80", "net4": "192.0.2.0-192.0.2.255 443"}},
		{[]string{"192.0.2.1:53", "192.0.2.0/24:53"}, map[string]string{"dns4": "192.0.2.1"}},
		{[]string{"169.254.0.0/16"}, map[string]string{}},
		{[]string{"169.254.169.254"}, map[string]string{"any4": "169.254.169.254"}},
		{[]string{"127.0.0.1", "0.0.0.0", "::1"}, map[string]string{}},
		{[]string{"168.63.129.16/30"}, map[string]string{"any4": "168.63.129.17-168.63.129.19"}},
		{[]string{"64:ff9b::192.0.2.1", "[2002:c000:201::1]:80"}, map[string]string{"exact6": "64:ff9b::c000:201", "exactport6": "2002:c000:201::1 80"}},
		{[]string{"name.test"}, map[string]string{}},
	} {
		got := sets(specOf(t, allowlist(t, tt.hosts...)))
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%v: got %v, want %v", tt.hosts, got, tt.want)
		}
	}
}

// On an internal network nothing goes straight but to neighbours and the host, also where there are none of a family.
func TestAllowedOnInternalNetworks(t *testing.T) {
	s := specOf(t, allowlist(t, "192.0.2.1", "198.51.100.7", "203.0.113.1:80", "2001:db8::1", "[2001:db8::2]:80", "64:ff9b::192.0.2.1"))
	s.Networks = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	s.Host = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	s.Internal = true
	if got := fmt.Sprint(sets(s)); got != "map[any4:198.51.100.7 host4:203.0.113.1 80]" {
		t.Errorf("got %s", got)
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
