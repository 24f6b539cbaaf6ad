package gate

import (
	"net/netip"
	"slices"
	"testing"

	"sluice/dockernet/direct"
	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft"
	"sluice/matcher"
	"sluice/policy"
)

// many makes n targets of every kind, for an allowlist that differs between phases.
func many(t testing.TB, n, phase int) direct.Phase {
	t.Helper()
	p := policy.Policy{Mode: policy.Allowlist}
	add := func(prefix netip.Prefix, port uint16) {
		p.Targets = append(p.Targets, policy.Target{Host: prefix.String(), Port: port, Kind: policy.IPv4CIDR, Prefix: prefix})
	}
	for i := range n {
		a := netip.AddrFrom4([4]byte{byte(20 + phase), byte(i >> 14), byte(i >> 6), byte(i << 2)})
		b := netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 9, byte(phase), byte(i >> 8), byte(i)})
		switch i % 5 {
		case 0:
			add(netip.PrefixFrom(a, 32), 0)
		case 1:
			add(netip.PrefixFrom(a, 31), 0)
		case 2:
			add(netip.PrefixFrom(a, 32), 443)
		case 3:
			add(netip.PrefixFrom(a, 31), 443)
		case 4:
			add(netip.PrefixFrom(b, 64), uint16(443*(i%2)))
		}
	}
	rules, err := matcher.Compile(p, matcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return direct.Phase{Rules: rules}
}

func manyPhases(t testing.TB, n int) [policy.PhaseCount]direct.Phase {
	return [...]direct.Phase{many(t, n, 0), many(t, n, 1), many(t, n, 2)}
}

// Ten thousand targets a phase are all in the kernel.
func TestManyTargets(t *testing.T) {
	const n = 10_000
	l := newLab(t, false)
	phases := manyPhases(t, n)
	if err := l.gate.Install(l.spec(t, l.listen(t), phases[:]...), policy.Run); err != nil {
		t.Fatal(err)
	}
	var targets []netip.AddrPort
	for prefix, port := range phases[1].Rules.Prefixes() {
		targets = append(targets, netip.AddrPortFrom(prefix.Addr(), max(port, 80)))
	}
	for i := 0; i < len(targets); i += 97 {
		if got := l.probe(t, "udp", targets[i].String()); got != "direct" {
			t.Errorf("target %d, %v: got %s", i, targets[i], got)
		}
	}
}

// What the kernel has lost is found.
func TestVerify(t *testing.T) {
	ns := netnstest.New(t)
	g := newGate(t, ns)
	s := example(true, manyPhases(t, 1000))
	if err := g.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	table, _ := build(s, g.staged.generation)
	sets := table.Sets
	if err := g.kernel.Verify(tableID, sets); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(sets, func(s nft.Set) bool { return s.Type == nft.Address4Port && len(s.Elements) > 100 })
	lost, b := sets[i], new(nft.Batch)
	lost.Elements = lost.Elements[:1]
	b.DeleteElements(tableID, lost)
	if err := g.kernel.Send(b); err != nil {
		t.Fatal(err)
	}
	if err := g.kernel.Verify(tableID, sets); err == nil {
		t.Errorf("set %s lacks an element, and nobody has noticed", sets[i].Name)
	}
}

// A switch sends the same number of changes, whatever the number of targets.
func TestSwitchDoesNotGrow(t *testing.T) {
	size := func(n int) (rules int) {
		_, refs := build(example(true, manyPhases(t, n)), 1)
		for _, c := range inForce(refs[policy.Baseline], refs[policy.Run]) {
			rules += len(c.Rules)
		}
		return rules
	}
	if small, large := size(10), size(10_000); small != large {
		t.Errorf("%d changes for 10 targets, %d for 10,000", small, large)
	}
}
