package matcher

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice/policy"
)

// Each spelling of an address is a target of its own; all of them count.
func TestSpellings(t *testing.T) {
	p := read(t, "allowlist 10.0.0.1:1 10.0.0.1/32#2 [::ffff:10.0.0.1]:3 ::ffff:10.0.0.1/128#4")
	if len(p.Targets) != 4 {
		t.Fatalf("%v; want 4 targets", p.Targets)
	}
	r := compile(t, p, Options{})
	for port := range uint16(6) {
		for _, a := range []string{"10.0.0.1", "::ffff:10.0.0.1"} {
			d := r.Addr(netip.MustParseAddr(a), port)
			if want := port >= 1 && port <= 4; (d.Verdict == Allow) != want || want && r.Target(d.Rule).Port != port {
				t.Errorf("%s:%d: %+v %v", a, port, d, r.Target(d.Rule))
			}
		}
	}
}

// Any number of ports for a host, with wildcards and networks alike.
func TestManyPorts(t *testing.T) {
	kinds := []policy.Target{
		{Host: "many.test", Kind: policy.Hostname}, {Host: "*.many.test", Kind: policy.Wildcard}, {Host: "a.test", Kind: policy.Hostname},
		{Host: "10.0.0.0/8", Kind: policy.IPv4CIDR, Prefix: netip.MustParsePrefix("10.0.0.0/8")},
		{Host: "2001:db8::9", Kind: policy.IPv6Address, Prefix: netip.MustParsePrefix("2001:db8::9/128")},
	}
	for _, every := range []bool{false, true} {
		p := policy.Policy{Mode: policy.Allowlist}
		listed := func(port int) bool { return port%2 == 1 || port > 40000 }
		for port := 1; port < 1<<16; port++ {
			for _, k := range kinds {
				if k.Port = uint16(port); listed(port) {
					p.Targets = append(p.Targets, k)
				}
			}
		}
		if every {
			p.Targets = append(p.Targets, kinds...)
		}
		r := compile(t, p, Options{})
		for port := 1; port < 1<<16; port++ {
			for i, d := range []Decision{
				r.Name("many.test", uint16(port)), r.Name("x.many.test", uint16(port)), r.Name("a.test", uint16(port)),
				r.Addr(netip.MustParseAddr("10.1.2.3"), uint16(port)), r.Addr(netip.MustParseAddr("2001:db8::9"), uint16(port)),
			} {
				want := kinds[i]
				if !every {
					want.Port = uint16(port)
				}
				switch {
				case !every && !listed(port):
					if d != (Decision{Reason: PortNotListed, Rule: NoRule}) {
						t.Fatalf("%v, port %d: %+v", kinds[i], port, d)
					}
				case d.Verdict != Allow || r.Target(d.Rule) != want:
					t.Fatalf("%v, port %d: %+v %v", kinds[i], port, d, r.Target(d.Rule))
				}
			}
		}
	}
}

// The ports of a host may come in any order and any number of times.
func TestPortsInDisorder(t *testing.T) {
	p := policy.Policy{Mode: policy.Allowlist}
	for i := range 70_000 {
		p.Targets = append(p.Targets, policy.Target{Host: "ok.test", Port: uint16(8443 - i%3), Kind: policy.Hostname})
	}
	r := compile(t, p, Options{})
	for port := uint16(8439); port < 8446; port++ {
		if d, want := r.Name("ok.test", port), port >= 8441 && port <= 8443; (d.Verdict == Allow) != want {
			t.Errorf("port %d: %+v", port, d)
		}
	}
}

// What differs from a target in one byte, in length or in both is not it, though its hash may look the same.
func TestAlmostEqual(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 3000 {
		b := make([]byte, 8+r.IntN(30))
		for i := range b {
			b[i] = "abcdefgh"[r.IntN(8)]
		}
		name := string(b)
		x := compile(t, allowNames([]string{name}), Options{})
		if d := x.Name(name, 443); d.Verdict != Allow {
			t.Fatalf("%s: %+v", name, d)
		}
		others := []string{"a" + name, name + "a", "ab.cdefg." + name}
		for i := range b {
			changed := []byte(name)
			changed[i] ^= 1
			others = append(others, string(changed))
			tail := []byte(name[i:])
			tail[0] |= byte(len(name) ^ len(tail))
			others = append(others, name[i:]+".", name[:i]+".", string(tail))
		}
		for _, other := range others {
			if d := x.Name(other, 443); d.Verdict == Allow && other != name && other != name+"." {
				t.Fatalf("%s is taken for %s", other, name)
			}
		}
	}
}

// Names of every length, in numbers that fill groups by slots and by bytes, are all found, with their own ports, and
// nothing else is.
func TestAllNamesFound(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	name := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "abcdefghijklmnopqrstuvwxyz"[r.IntN(26)]
			if i%40 == 30 && i < n-1 {
				b[i] = '.'
			}
		}
		return string(b)
	}
	for _, c := range []struct {
		name   string
		number int
		length func() int
	}{
		{"few", 3, func() int { return 9 }},
		{"long", 2000, func() int { return maxNameBytes - 2 - r.IntN(2) }},
		{"short", 2000, func() int { return 3 + r.IntN(6) }},
		{"mixed", 5000, func() int { return 1 + r.IntN(maxNameBytes-2) }},
		{"one-length", 2000, func() int { return 16 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			ports := map[string]uint16{}
			for len(ports) < c.number && len(ports) < 1<<16 {
				ports[name(c.length())] = uint16(r.IntN(3))
			}
			hosts, wildcards := policy.Policy{Mode: policy.Allowlist}, policy.Policy{Mode: policy.Allowlist}
			for n, port := range ports {
				hosts.Targets = append(hosts.Targets, policy.Target{Host: n, Port: port, Kind: policy.Hostname})
				wildcards.Targets = append(wildcards.Targets, policy.Target{Host: "*." + n, Port: port, Kind: policy.Wildcard})
			}
			h, w := compile(t, hosts, Options{}), compile(t, wildcards, Options{})
			for n, port := range ports {
				for q := range uint16(3) {
					d := h.Name(n, q)
					if port != 0 && port != q {
						if d != (Decision{Reason: PortNotListed, Rule: NoRule}) {
							t.Fatalf("%s:%d: %+v; the target has port %d", n, q, d, port)
						}
						continue
					}
					if want := (policy.Target{Host: n, Port: port, Kind: policy.Hostname}); d.Verdict != Allow || h.Target(d.Rule) != want {
						t.Fatalf("%s:%d: %+v %v; want %v", n, q, d, h.Target(d.Rule), want)
					}
				}
				if d := w.Name("x."+n, port); d.Verdict != Allow || !strings.HasSuffix("x."+n, w.Target(d.Rule).Host[1:]) {
					t.Fatalf("x.%s:%d: %+v %v", n, port, d, w.Target(d.Rule))
				}
				for _, other := range []string{n[1:], "y" + n, n + "y", n[:len(n)/2] + "0" + n[len(n)/2+1:]} {
					if _, is := ports[other]; is {
						continue
					}
					if d := h.Name(other, port); d.Verdict == Allow {
						t.Fatalf("%s is no target, but %v", other, h.Target(d.Rule))
					}
				}
			}
		})
	}
}

// Hashes only find names, they do not decide: with a key under which all names of a length have the same hash, the
// answers are the same. (The key is put back before any other test runs.)
func TestCollisions(t *testing.T) {
	key := hashKey
	defer func() { hashKey = key }()
	names := slices.DeleteFunc(makeNames(20_000), func(n string) bool { return len(n) != 16 })
	if len(names) < 600 {
		t.Fatalf("only %d names", len(names))
	}
	p := policy.Policy{Mode: policy.Allowlist}
	for i, n := range names {
		switch i % 3 {
		case 0:
			p.Targets = append(p.Targets, policy.Target{Host: n, Port: uint16(i), Kind: policy.Hostname})
		case 1:
			p.Targets = append(p.Targets, policy.Target{Host: "*." + n, Kind: policy.Wildcard})
		}
	}
	good := compile(t, p, Options{})
	answer := func(r *Ruleset, i int) string {
		host, under := r.Name(names[i], uint16(i)), r.Name("x."+names[i], uint16(i))
		return fmt.Sprint(host.Verdict, host.Reason, r.Target(host.Rule), under.Verdict, under.Reason, r.Target(under.Rule))
	}
	want := make([]string, len(names))
	for i := range names {
		want[i] = answer(good, i)
	}
	hashKey = [6]uint64{2: 16}
	if a, b := []byte(names[0]), []byte(names[1]); hashOf(a) != hashOf(b) || hashHost(a) != hashHost(b) {
		t.Fatal("with this key hashes do not collide: the test shows nothing")
	}
	bad := compile(t, p, Options{})
	for i := range names {
		if got := answer(bad, i); got != want[i] {
			t.Fatalf("%s: %s; want %s", names[i], got, want[i])
		}
	}
}

// Target takes any id.
func TestTargetOfOtherRuleset(t *testing.T) {
	ids := []RuleID{NoRule, 0, 1, 1 << 62, -1 << 63}
	for _, text := range []string{"allowlist ok.test:1 ok.test:2 ok.test:3 *.ok.test 10.0.0.0/8 10.0.0.0/8#1", "denylist a-much-longer-name.than-the-other.test", "public"} {
		r := compile(t, read(t, text), Options{})
		for _, d := range []Decision{r.Name("ok.test", 3), r.Name("x.ok.test", 3), r.Addr(netip.MustParseAddr("10.0.0.1"), 1), r.Name("a-much-longer-name.than-the-other.test", 1)} {
			ids = append(ids, d.Rule, d.Rule+1<<32, d.Rule+1<<16)
		}
		for _, id := range ids {
			r.Target(id)
		}
		for _, id := range []RuleID{NoRule, 0} {
			if got := r.Target(id); got != (policy.Target{}) {
				t.Errorf("Target(%d) is %v", id, got)
			}
		}
	}
}
