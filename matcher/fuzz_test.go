package matcher_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice/matcher"
	"sluice/policy"
)

// compare asks both matchers everything there is to ask about a name, an address and a port. It returns the decisions.
func compare(t testing.TB, n naive, r *matcher.Ruleset, name string, a netip.Addr, port uint16) []matcher.Decision {
	t.Helper()
	var all []matcher.Decision
	check := func(what string, d matcher.Decision, want answer) {
		t.Helper()
		all = append(all, d)
		rule := r.Target(d.Rule)
		ok := d.Verdict == want.verdict && (d.Reason == want.reason || want.either && d.Reason == matcher.NotListed)
		if len(want.rules) == 0 {
			ok = ok && d.Rule == matcher.NoRule
		} else {
			ok = ok && d.Rule != matcher.NoRule && slices.Contains(want.rules, rule)
		}
		if !ok {
			t.Fatalf("%v %v %+v\n%s %q, %v, %d\n got %s\nwant %v %s, one of %v", n.policy.Mode, n.policy.Targets, n.options, what, name, a, port,
				showDecision(r, d), want.verdict, want.reason, want.rules)
		}
	}
	check("name", r.Name(name, port), n.name(name, int(port)))
	check("name bytes", r.NameBytes([]byte(name), port), n.name(name, int(port)))
	check("query", r.Query(name), n.query(name))
	check("query bytes", r.QueryBytes([]byte(name)), n.query(name))
	if a.IsValid() {
		check("address", r.Addr(a, port), n.addr(a, int(port)))
		check("resolved", r.Resolved(r.Name(name, port), a, port), n.resolved(n.name(name, int(port)), a, int(port)))
		check("answer", r.Answer(r.Query(name), a), n.resolved(n.query(name), a, n.unknownPort()))
	}
	return all
}

// FuzzRuleset compares the package with the naive matcher. Lines of text are targets; those that are none are left
// out, "@PORT" behind a target sets its port.
func FuzzRuleset(f *testing.F) {
	for _, s := range []struct {
		mode, options uint8
		targets       string
		name, addr    string
		port          uint16
	}{
		{2, 0, "ok.test\n*.ok.test:443\n10.0.0.0/8", "a.ok.test", "10.0.0.1", 443},
		{3, 0, "evil.test\n*.evil.test:80\n192.0.2.0/24@443", "_x._tcp.EVIL.test.", "::ffff:192.0.2.1", 443},
		{1, 0, "", "any.test", "169.254.169.254", 80},
		{0, 0, "", "any.test", "192.0.2.1", 80},
		{2, 1, "*.corp.test", "a.corp.test", "10.0.0.1", 1},
		{2, 2, "*.w.test\nx.w.test:80", "x.w.test", "fd00::1", 443},
		{2, 4, "2001:db8::/32@53\nok.test:80", "ok.test", "2001:db8::1", 53},
		{2, 8, "127.0.0.1\n::1", "ok.test", "64:ff9b::7f00:1", 0},
		{2, 0, "169.254.169.254:80\n0.0.0.0/0\n::/0", "1.2.3.4", "169.254.169.254", 80},
		{3, 16, "10.1.2.3\n10.1.2.3/32@80\n10.1.0.0/16", "a..b", "2002:a01:203::1", 80},
		{2, 0, "203.0.113.9", "0x7f.1", "64:ff9b:1:cb:0:7109::", 80},
		{3, 0, "203.0.113.9\n1.2.3.4:1", "A-LONG-LABEL-" + strings.Repeat("l", 50) + ".test", "64:ff9b:1:cb00:71:900::", 80},
		{2, 0, strings.Repeat("l", 63) + "." + strings.Repeat("m", 63) + ".test\n*." + strings.Repeat("m", 63) + ".test", strings.Repeat("l", 63) + "." + strings.Repeat("m", 63) + ".TEST", "fe80::1%eth0", 80},
		{2, 4, "::ffff:192.0.2.1\n::/0:80\n1.2.3.4.test", "1.2.3.4.test", "2001:0:4136:e378:8000:63bf:80ff:fffe", 80},
		{3, 0, "2001:db8::/33\n2001:db8:8000::/33@1\n*.b\nb", "a.b", "2001:db8::5efe:7f00:1", 1},
	} {
		f.Add(s.mode, s.options, s.targets, s.name, s.addr, s.port)
	}
	f.Fuzz(func(t *testing.T, mode, options uint8, targets, name, addr string, port uint16) {
		n := naive{policy: policy.Policy{Mode: policy.Mode(mode % 4)}, options: fuzzOptions(options)}
		if n.policy.Mode == policy.Allowlist || n.policy.Mode == policy.Denylist {
			for line := range strings.Lines(targets) {
				text, behind, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "@")
				target, err := policy.ParseTarget(text)
				if err != nil || len(n.policy.Targets) == 200 {
					continue
				}
				if behind != "" {
					target.Port = uint16(behind[0])
				}
				n.policy.Targets = append(n.policy.Targets, target)
			}
		}
		r := compile(t, n.policy, n.options)
		a, _ := netip.ParseAddr(addr)
		compare(t, n, r, name, a, port)
		for _, target := range n.policy.Targets { // and what hits
			if target.Prefix.IsValid() {
				a = lastOf(target.Prefix)
			} else {
				name = strings.Replace(target.Host, "*", "sub", 1)
			}
			compare(t, n, r, name, a, target.Port)
			compare(t, n, r, name, a, port)
		}
	})
}

func fuzzOptions(bits uint8) matcher.Options {
	o := matcher.Options{WildcardPrivate: bits&2 != 0, ResolveForAddressRules: bits&4 != 0, NoFloor: bits&8 != 0}
	if bits&1 != 0 {
		o.PrivateZones = []string{"corp.test", "a.ok.test"}
	}
	if bits&16 != 0 {
		o.Never = prefixes("10.1.0.0/16 2001:db8:1::/48 192.0.2.7/32")
	}
	return o
}

// TestRandomPolicies is FuzzRuleset with policies and questions that meet often, the same ones in every run.
func TestRandomPolicies(t *testing.T) { // [I-16] [I-65] [P-04]
	rng := rand.New(rand.NewPCG(20, 26))
	counts := map[string]int{}
	pairs, allowed := 0, 0
	for range 700 {
		n := naive{options: fuzzOptions(uint8(rng.IntN(32)))}
		if rng.IntN(3) > 0 {
			n.options = fuzzOptions(uint8(rng.IntN(8)))
		}
		n.policy.Mode = []policy.Mode{policy.Allowlist, policy.Allowlist, policy.Allowlist, policy.Denylist, policy.Denylist, policy.Public, policy.NoNetwork}[rng.IntN(7)]
		if n.policy.Mode == policy.Allowlist || n.policy.Mode == policy.Denylist {
			for range 1 + rng.IntN(40) {
				n.policy.Targets = append(n.policy.Targets, randomTarget(t, rng))
			}
		}
		r := compile(t, n.policy, n.options)
		for range 60 {
			name, a := randomName(rng, 5), randomAddr(rng)
			if len(n.policy.Targets) > 0 && rng.IntN(2) == 0 {
				name, a = near(rng, n.policy.Targets, name, a)
			}
			port := []uint16{0, 53, 80, 443, 444, 65535}[rng.IntN(6)]
			for i, d := range compare(t, n, r, spell(rng, name), a, port) {
				pairs++
				if d.Verdict != matcher.Refuse {
					allowed++
				}
				counts[fmt.Sprintf("%d %v %s", i, d.Verdict, d.Reason)]++
			}
		}
	}
	if pairs < 200_000 || allowed*100 < 40*pairs || allowed*100 > 80*pairs {
		t.Errorf("%d of %d pairs are allowed", allowed, pairs)
	}
	for _, want := range []string{
		"0 allow name-rule", "0 refuse name-rule", "0 refuse not-listed", "0 refuse port-not-listed", "0 by-address not-listed", "0 by-address port-not-listed",
		"0 allow not-denied", "0 allow public", "0 refuse no-network", "0 refuse bad-name", "2 allow name-rule", "2 refuse name-rule", "2 allow public",
		"4 allow address-rule", "4 refuse address-rule", "4 refuse floor", "4 refuse own-address", "4 refuse port-not-listed", "4 refuse not-listed",
		"5 allow address-rule", "5 allow name-rule", "5 refuse private-wildcard", "5 refuse port-not-listed", "6 allow name-rule", "6 refuse private-wildcard", "6 refuse address-rule",
	} {
		if counts[want] < 50 {
			t.Errorf("%q was the answer only %d times", want, counts[want])
		}
	}
}

func randomName(rng *rand.Rand, most int) string {
	words := []string{"a", "b", "ok", "x-1", "corp", "_tcp", "_http", "longer-than-eight", "seventeen-letters", strings.Repeat("z", 31)}
	var parts []string
	for range rng.IntN(most) {
		parts = append(parts, words[rng.IntN(len(words))])
	}
	return strings.Join(append(parts, []string{"test", "test", "ok.test", "corp.test", "co"}[rng.IntN(5)]), ".")
}

func randomTarget(t testing.TB, rng *rand.Rand) policy.Target {
	port := []string{"", "", "", "@80", "@443", "@65535"}[rng.IntN(6)]
	switch rng.IntN(5) {
	case 0, 1:
		return readTarget(t, strings.ReplaceAll(randomName(rng, 4), "_", "")+port)
	case 2:
		return readTarget(t, "*."+strings.ReplaceAll(randomName(rng, 3), "_", "")+port)
	case 3:
		a := randomAddr(rng).WithZone("").Unmap()
		return readTarget(t, a.String()+port)
	default:
		a := randomAddr(rng).WithZone("").Unmap()
		p := netip.PrefixFrom(a, max(0, a.BitLen()-rng.IntN(a.BitLen()+1))).Masked()
		if rng.IntN(2) == 0 {
			p = netip.PrefixFrom(a, a.BitLen()-rng.IntN(12)).Masked()
		}
		return readTarget(t, p.String()+port)
	}
}

// randomAddr returns an address out of a few small ranges, bare or hidden in IPv6.
func randomAddr(rng *rand.Rand) netip.Addr {
	bases := []string{"10.1.2.0", "10.1.255.252", "192.0.2.4", "198.51.100.0", "127.0.0.0", "169.254.169.252", "100.100.100.200", "203.0.113.8", "255.255.255.252", "0.0.0.0",
		"2001:db8::", "2001:db8:1::", "2001:db8:0:ffff::fffc", "::", "fd00::", "fd00:ec2::254", "fe80::", "fec0::", "2001:db8:1:2:3::"}
	a := netip.MustParseAddr(bases[rng.IntN(len(bases))])
	b := a.AsSlice()
	b[len(b)-1] |= byte(rng.IntN(4))
	a, _ = netip.AddrFromSlice(b)
	if a.Is4() && rng.IntN(3) == 0 {
		a = hiding[rng.IntN(len(hiding))].hide(a)
	}
	if a.Is6() && rng.IntN(8) == 0 {
		a = a.WithZone("eth0")
	}
	return a
}

// near returns name and address at, or just beside, those of some target.
func near(rng *rand.Rand, targets []policy.Target, name string, a netip.Addr) (string, netip.Addr) {
	for range 4 {
		target := targets[rng.IntN(len(targets))]
		if !target.Prefix.IsValid() {
			name = strings.Replace(target.Host, "*", []string{"sub", "sub.sub", "ok"}[rng.IntN(3)], 1)
			continue
		}
		edges := []netip.Addr{target.Prefix.Addr(), lastOf(target.Prefix), target.Prefix.Addr().Prev(), lastOf(target.Prefix).Next()}
		if edge := edges[rng.IntN(4)]; edge.IsValid() {
			a = edge
			if a.Is4() && rng.IntN(4) == 0 {
				a = hiding[rng.IntN(len(hiding))].hide(a)
			}
		}
	}
	return name, a
}

// spell writes a name in another way that means the same, or spoils it.
func spell(rng *rand.Rand, name string) string {
	switch rng.IntN(12) {
	case 0:
		return name + "."
	case 1:
		return strings.ToUpper(name)
	case 2:
		b := []byte(name)
		if i := rng.IntN(len(b)); b[i] >= 'a' && b[i] <= 'z' {
			b[i] -= 'a' - 'A'
		}
		return string(b)
	case 3:
		return "_http._tcp." + name
	case 4:
		b := []byte(name)
		b[rng.IntN(len(b))] = byte(rng.IntN(256))
		return string(b)
	case 5:
		i := rng.IntN(len(name) + 1)
		return name[:i] + []string{".", "..", "-", "1.", "\x00", "."}[rng.IntN(6)] + name[i:]
	}
	return name
}
