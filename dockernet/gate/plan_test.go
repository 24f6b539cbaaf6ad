package gate

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sluice/dockernet/direct/directtest"
	"sluice/dockernet/nft"
	"sluice/policy"
)

func TestListing(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		for i, p := range directtest.Planes(t, family == "ipv6") {
			t.Run(p.Name+"_"+family, func(t *testing.T) {
				s := example(family == "ipv6", threeOf(t, p.Phase, p.Beside...))
				s.Internal = p.Internal
				got, err := Listing(s, policy.Baseline)
				if err != nil {
					t.Fatal(err)
				}
				phase, shared := directtest.Split(got, restChain)
				directtest.Golden(t, p.Name+"_"+family, phase)
				if i == 0 {
					directtest.Golden(t, "shared_"+family, shared)
				}
			})
		}
	}
}

// Loopback addresses are the workload's own: as a destination on the wire no target opens them.
func TestLoopbackTargetsMakeNoRules(t *testing.T) {
	s := example(true, threeOf(t, phaseOf(t, "allowlist", "127.0.0.9", "127.0.0.0/8", "0.0.0.0", "::1", "::/0", "192.0.2.5")))
	listing, err := Listing(s, policy.Baseline)
	if err != nil {
		t.Fatal(err)
	}
	phase, _ := directtest.Split(listing)
	for _, text := range []string{"127.", " 0.0.0.0", " ::1 ", " ::/0"} {
		if strings.Contains(phase, text) {
			t.Errorf("the listing has %q:\n%s", text, phase)
		}
	}
	if !strings.Contains(phase, "192.0.2.5") {
		t.Error("the listing lacks the other target")
	}
}

// Where a family has no local address, none of its targets is one.
func TestFamilyWithoutLocalAddresses(t *testing.T) {
	allow := phaseOf(t, "allowlist", "192.0.2.5", "2001:db8:2::5", "[2001:db8:2::7]:443", "2001:db8:2:1::/64", "64:ff9b::203.0.113.9")
	for _, tt := range []struct {
		name     string
		internal bool
		beside   string
		never    string
	}{
		{"internal", true, "ok.test", "2001:db8:2"},
		{"beside_denied_names", false, "evil.test", "local6_1 {\n\t\tip6"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := ipv4Only(example(true, threeOf(t, allow, phaseOf(t, "denylist", tt.beside))))
			s.Internal = tt.internal
			listing, err := Listing(s, policy.Baseline)
			if err != nil {
				t.Fatal(err)
			}
			if phase, _ := directtest.Split(listing); strings.Contains(phase, tt.never) {
				t.Errorf("the listing has %q:\n%s", tt.never, phase)
			}
		})
	}
}

// Whoever writes a Spec is told what is wrong with it.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Spec)
		want   string
	}{
		{"no_rules", func(s *Spec) { s.Phases[1].Rules = nil }, "phase run has no rules"},
		{"no_listeners", func(s *Spec) { s.Listeners = Listeners{} }, "a listener is missing"},
		{"half_of_ipv6", func(s *Spec) { s.Listeners.UDP6 = 0 }, "a listener is missing"},
		{"no_udp", func(s *Spec) { s.Listeners.UDP4 = 0 }, "a listener is missing"},
		{"network", func(s *Spec) { s.Networks = append(s.Networks, netip.Prefix{}) }, "no network of one family"},
		{"mapped_network", func(s *Spec) { s.Spec.Direct = prefixes("::ffff:192.0.2.0/120") }, "no network of one family"},
		{"zone", func(s *Spec) { s.Host = addrs("fe80::1%eth0") }, "without a zone"},
		{"named_zone", func(s *Spec) { s.Phases[2].Named = []netip.AddrPort{netip.MustParseAddrPort("[fe80::1%eth0]:1")} }, "phase evaluation names"},
		{"open_without_port", func(s *Spec) { s.Open = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:0")} }, "and a port"},
		{"explicit_elsewhere", func(s *Spec) { s.Explicit = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")} }, "want a loopback address"},
		{"explicit_at_the_engine", func(s *Spec) { s.Explicit = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.11:1")} }, "other than 127.0.0.11"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := example(true, threeOf(t, phaseOf(t, "public")))
			if err := s.check(); err != nil {
				t.Fatal(err)
			}
			tt.change(s)
			if _, err := Listing(s, policy.Baseline); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// The filter leads nowhere that redirects, and steering nowhere that refuses: the kernel would take neither. However
// many targets a phase has, its chains must not share their rules.
func TestFilterAndSteeringStayApart(t *testing.T) {
	for n := range 36 {
		var hosts []string
		for i := range n / 6 {
			hosts = append(hosts, fmt.Sprintf("192.0.2.%d:53", i+1), fmt.Sprintf("192.0.2.%d:443", i+100))
		}
		for i := range n % 6 {
			hosts = append(hosts, fmt.Sprintf("[2001:db8::%d]:53", i+1))
		}
		for _, mode := range []string{"allowlist", "denylist"} {
			s := example(true, threeOf(t, phaseOf(t, mode, append(hosts, "some.test")...)))
			all, refs := build(s, 1)
			all.Chains = append(all.Chains, fixed(s)...)
			r := refs[policy.Baseline]
			for from, never := range map[string]string{r.chain(nft.IPv4): proxyChain, r.chain(nft.IPv6): proxyChain, r.steer(): rejectChain} {
				if leads(all, from, never) {
					t.Errorf("%s with %v: %s leads to %s", mode, hosts, from, never)
				}
				if !leads(all, from, map[string]string{proxyChain: rejectChain, rejectChain: proxyChain}[never]) {
					t.Errorf("%s with %v: %s leads nowhere", mode, hosts, from)
				}
			}
		}
	}
}

// leads reports whether there is a way from one chain to another. There are no circles.
func leads(t *nft.Table, from, to string) bool {
	for _, c := range t.Chains {
		if c.Name != from {
			continue
		}
		for _, r := range c.Rules {
			if v, ok := r[len(r)-1].(nft.Verdict); ok && v.Chain() != "" && (v.Chain() == to || leads(t, v.Chain(), to)) {
				return true
			}
		}
	}
	return false
}
