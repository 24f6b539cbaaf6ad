package guard

import (
	"flag"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/dockernet/direct/directtest"
	"sluice/dockernet/nft"
	"sluice/matcher"
	"sluice/policy"
)

var (
	seed  = flag.Uint64("seed", 1, "for the random policies and destinations")
	pairs = flag.Int("pairs", 5000, "random pairs of a policy and a destination of each family")
)

var somePorts = []uint16{0, 0, 53, 80, 443, 8080}

// drawPolicy makes a policy with up to a dozen targets by address, and sometimes one by name.
func drawPolicy(t testing.TB, r *rand.Rand) policy.Policy {
	modes := []policy.Mode{policy.Public, policy.Allowlist, policy.Denylist, policy.Public, policy.Allowlist, policy.Denylist,
		policy.Public, policy.Allowlist, policy.Denylist, policy.NoNetwork}
	p := policy.Policy{Mode: modes[r.IntN(len(modes))]}
	add := func(host string, port uint16) {
		target, err := policy.ParseTarget(host)
		if err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		target.Port = port
		p.Targets = append(p.Targets, target)
	}
	if p.Mode != policy.Allowlist && p.Mode != policy.Denylist {
		return p
	}
	for range 1 + r.IntN(12) {
		pool := directtest.Pools[[]nft.Kind{nft.IPv4, nft.IPv6}[r.IntN(2)]]
		from := pool[r.IntN(len(pool))]
		a, port := directtest.Draw(r, from), somePorts[r.IntN(len(somePorts))]
		if r.IntN(2) == 0 {
			add(netip.PrefixFrom(a, from.Bits()+r.IntN(a.BitLen()-from.Bits()+1)).Masked().String(), port)
		} else {
			add(a.String(), port)
		}
	}
	if r.IntN(10) == 0 {
		add("some.test", 0)
	}
	return p
}

// judged says what shall pass, by what the matcher says of single addresses and the design's table "Which plane".
type judged struct {
	policy policy.Policy
	rules  *matcher.Ruleset
	// names is set if any phase has a name, and deniesNames if one denies it.
	names, deniesNames bool
}

func (j *judged) passes(protocol byte, a netip.Addr, port uint16) bool {
	list := j.policy.Mode == policy.Allowlist
	if port == 53 {
		named := slices.ContainsFunc(j.policy.Targets, func(t policy.Target) bool {
			return t.Port == 53 && t.Prefix.IsValid() && t.Prefix.IsSingleIP() && t.Prefix.Addr() == a
		})
		return list && named && j.rules.Addr(a, port).Verdict == matcher.Allow // all else goes to the DNS filter
	}
	if j.rules.Addr(a, port).Verdict != matcher.Allow {
		return false
	}
	if a == uplink4 || a == uplink6 {
		return true // the host
	}
	denied := j.policy.Mode == policy.Denylist && j.rules.HasNameRules()
	switch {
	case protocol == unix.IPPROTO_TCP && list:
		return !j.deniesNames && (!hides(a) || j.namesIt(a, port))
	case protocol == unix.IPPROTO_TCP:
		return !j.names
	case protocol == unix.IPPROTO_UDP:
		return port != 443 || !denied
	default:
		return true
	}
}

// namesIt reports whether a target is this very address, with the port or every port.
func (j *judged) namesIt(a netip.Addr, port uint16) bool {
	return slices.ContainsFunc(j.policy.Targets, func(t policy.Target) bool {
		return (t.Port == 0 || t.Port == port) && t.Prefix.IsValid() && t.Prefix.IsSingleIP() && t.Prefix.Addr() == a
	})
}

// hides reports whether an address may hide an IPv4 one. TCP there goes to the proxy, unless the very address is named.
func hides(a netip.Addr) bool {
	b := a.As16()
	return a.Is6() && (b[0] == 0 || netip.MustParsePrefix("2001::/32").Contains(a) || netip.MustParsePrefix("2002::/16").Contains(a) ||
		b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe)
}

// usable leaves out what is on the link, or no destination that a packet can have, and the addresses of which the
// matcher judges several readings, see package direct.
func usable(a netip.Addr) bool {
	unreadable := netip.MustParsePrefix("64:ff9b:1::/48").Contains(a) && !netip.MustParsePrefix("64:ff9b:1::/96").Contains(a)
	return a.IsValid() && !a.IsMulticast() && !a.IsLoopback() && !a.IsUnspecified() && !a.Is4In6() && !unreadable &&
		a != netip.MustParseAddr("255.255.255.255")
}

// What the guard alone lets pass is what the matcher allows on the direct plane, for random policies and destinations,
// edges above all.
func TestAgreesWithMatcher(t *testing.T) {
	l := newLab(t, "abs")
	r := rand.New(rand.NewPCG(*seed, 0))
	asked, passed := make(map[int]int), make(map[int]int)
	source := uint16(1024)
	for asked[32] < *pairs || asked[128] < *pairs {
		p, other := drawPolicy(t, r), drawPolicy(t, r)
		var phases []direct.Phase
		j := &judged{policy: p}
		for _, p := range []policy.Policy{p, other} {
			rules, err := matcher.Compile(p, matcher.Options{})
			if err != nil {
				t.Fatal(err)
			}
			phases = append(phases, direct.Phase{Rules: rules})
			j.names = j.names || rules.HasNameRules()
			j.deniesNames = j.deniesNames || rules.HasNameRules() && p.Mode == policy.Denylist
		}
		j.rules = phases[0].Rules
		l.install(t, "a", phases...)

		type question struct {
			protocol byte
			to       netip.Addr
			port     uint16
			key      string
		}
		var questions []question
		var frames [][]byte
		for range map[bool]int{true: 40, false: 200}[p.Mode == policy.NoNetwork] {
			pool := directtest.Pools[[]nft.Kind{nft.IPv4, nft.IPv6}[r.IntN(2)]]
			from := pool[r.IntN(len(pool))]
			if len(p.Targets) > 0 && r.IntN(4) > 0 {
				if t := p.Targets[r.IntN(len(p.Targets))]; t.Prefix.IsValid() {
					from = t.Prefix
				}
			}
			a := directtest.Draw(r, from)
			if !usable(a) {
				continue
			}
			q := question{[]byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP}[r.IntN(4)], a, 0, l.token()}
			h, echo := ip{from: l.containers["a"].ip4, to: a}, byte(8)
			if a.Is6() {
				h.from, echo = l.containers["a"].ip6, 128
			}
			if q.protocol != unix.IPPROTO_ICMP {
				q.port = []uint16{53, 80, 80, 80, 443, 443, 443, 8080, 8080, 8080}[r.IntN(10)]
				if r.IntN(4) == 0 {
					q.port += uint16(r.IntN(3)) - 1
				}
			}
			source++
			switch q.protocol {
			case unix.IPPROTO_TCP:
				frames = append(frames, l.fromA(a, h.segment(source, q.port, syn, 0, q.key)))
			case unix.IPPROTO_UDP:
				frames = append(frames, l.fromA(a, h.datagram(source, q.port, q.key)))
			default:
				frames = append(frames, l.fromA(a, h.echo(echo, q.key)))
			}
			questions = append(questions, q)
		}
		l.where(t, "a", []byte("<"), frames...)
		for _, q := range questions {
			want := j.passes(q.protocol, q.to, q.port)
			got := l.watchers["host"].count([]byte(q.key)) > 0
			asked[q.to.BitLen()]++
			if want {
				passed[q.to.BitLen()]++
			}
			if got != want {
				t.Errorf("%v %v beside %v %v: protocol %d to %v port %d passes: %v, want %v; the matcher says %+v",
					p.Mode, p.Targets, other.Mode, other.Targets, q.protocol, q.to, q.port, got, want, j.rules.Addr(q.to, q.port))
			}
		}
		if t.Failed() {
			t.Fatalf("with -seed %d", *seed)
		}
	}
	for bits, n := range asked {
		if share := float64(passed[bits]) / float64(n); share < 0.4 || share > 0.9 {
			t.Errorf("of %d bits %.0f %% pass: want both verdicts often", bits, 100*share)
		}
		t.Logf("of %d bits: %d pairs, %d pass", bits, n, passed[bits])
	}
}
