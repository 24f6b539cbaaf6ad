package matcher_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice/matcher"
	"sluice/policy"
)

// Ten thousand hosts and ten thousand networks: every one is found, and nothing beside it.
func TestManyTargets(t *testing.T) { // [P-25]
	const many = 10_000
	for _, mode := range []policy.Mode{policy.Allowlist, policy.Denylist} {
		p := policy.Policy{Mode: mode}
		hostOf := func(i int) string { return fmt.Sprintf("host-%d.zone-%d.test", i, i%97) }
		prefixOf := func(i int) netip.Prefix {
			if i%2 == 0 {
				return netip.PrefixFrom(netip.AddrFrom4([4]byte{11 + byte(i>>12), byte(i >> 4), byte(i<<4) & 0xe0, 0}), 27)
			}
			return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, byte(i >> 8), byte(i)}), 49)
		}
		for i := range many {
			target := policy.Target{Host: hostOf(i), Kind: policy.Hostname, Port: uint16(i % 3 * 80)}
			if i%5 == 0 {
				target.Host, target.Kind = "*."+target.Host, policy.Wildcard
			}
			network := policy.Target{Host: prefixOf(i).String(), Kind: policy.IPv4CIDR, Prefix: prefixOf(i), Port: uint16(i % 4 * 80)}
			if network.Prefix.Addr().Is6() {
				network.Kind = policy.IPv6CIDR
			}
			p.Targets = append(p.Targets, target, network)
		}
		slices.SortFunc(p.Targets, policy.Target.Compare)
		r := compile(t, p, matcher.Options{})
		hit, miss := matcher.Allow, matcher.Refuse
		if mode == policy.Denylist {
			hit, miss = miss, hit
		}
		check := func(d matcher.Decision, want matcher.Verdict, what any) {
			if d.Verdict != want {
				t.Fatalf("%v: %v is %s", mode, what, showDecision(r, d))
			}
		}
		for i := range many {
			host, port := hostOf(i), uint16(i%3*80)
			if i%5 == 0 {
				check(r.Name(host, port), miss, host)
				host = "sub." + host
			}
			d := r.Name(host, max(port, 1))
			check(d, hit, host)
			if target := r.Target(d.Rule); strings.TrimPrefix(target.Host, "*.") != hostOf(i) || target.Port != port {
				t.Fatalf("%s is decided by %v", host, target)
			}
			check(r.Name("x"+hostOf(i), max(port, 1)), miss, "x"+host)
			if port != 0 {
				check(r.Name(host, port+1), miss, host)
			}
			prefix, port := prefixOf(i), uint16(i%4*80)
			for _, a := range []netip.Addr{prefix.Addr(), lastOf(prefix)} {
				d := r.Addr(a, max(port, 1))
				check(d, hit, a)
				if target := r.Target(d.Rule); target.Prefix != prefix {
					t.Fatalf("%v is decided by %v", a, target)
				}
				if port != 0 {
					check(r.Addr(a, port+1), miss, a)
				}
			}
			if prefix.Addr().Is6() {
				check(r.Addr(lastOf(prefix).Next(), max(port, 1)), miss, lastOf(prefix).Next())
				check(r.Addr(prefix.Addr().Prev(), max(port, 1)), miss, prefix.Addr().Prev())
			}
		}
	}
}
