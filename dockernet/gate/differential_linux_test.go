package gate

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sluice/dockernet/direct"
	"sluice/dockernet/direct/directtest"
	"sluice/dockernet/nft"
	"sluice/matcher"
	"sluice/policy"
)

var (
	seed  = flag.Uint64("seed", 1, "for the random policies and destinations")
	pairs = flag.Int("pairs", 5000, "random pairs of a policy and a destination, and as many for each family")
)

var somePorts = []uint16{0, 0, 53, 80, 443, 8080}

// drawPolicy makes one of a mode with up to a dozen targets by address.
func drawPolicy(r *rand.Rand, mode policy.Mode, names bool) policy.Policy {
	p := policy.Policy{Mode: mode}
	add := func(host string, port uint16) {
		t, err := policy.ParseTarget(host)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", host, err))
		}
		t.Port = port
		p.Targets = append(p.Targets, t)
	}
	if mode != policy.Allowlist && mode != policy.Denylist {
		return p
	}
	for range 1 + r.IntN(12) {
		pool := directtest.Pools[kinds[r.IntN(2)]]
		from := pool[r.IntN(len(pool))]
		a := directtest.Draw(r, from)
		port := somePorts[r.IntN(len(somePorts))]
		if r.IntN(2) == 0 {
			bits := from.Bits() + r.IntN(a.BitLen()-from.Bits()+1)
			add(netip.PrefixFrom(a, bits).Masked().String(), port)
		} else {
			add(a.String(), port)
		}
	}
	if names {
		add("some.test", 0)
	}
	return p
}

// judged are the planes that the design's table gives for a destination, by what the matcher says of it.
type judged struct {
	rules  *matcher.Ruleset
	spec   *Spec
	target []policy.Target
}

// names53 reports whether a target names this very address with port 53.
func (j *judged) names53(a netip.Addr) bool {
	for _, t := range j.target {
		if t.Port == 53 && t.Prefix.IsSingleIP() && t.Prefix.Addr() == a {
			return j.rules.Mode() == policy.Allowlist
		}
	}
	return false
}

// names reports whether a target is this very address, with the port or every port.
func (j *judged) names(a netip.Addr, port uint16) bool {
	for _, t := range j.target {
		if (t.Port == 0 || t.Port == port) && t.Prefix.IsSingleIP() && t.Prefix.Addr() == a {
			return true
		}
	}
	return false
}

func (j *judged) plane(protocol string, a netip.Addr, port uint16) string {
	if j.rules.Mode() == policy.NoNetwork && (port != 53 || protocol == "ping") {
		return "refused"
	}
	if port == 53 && protocol != "ping" && !j.names53(a) {
		return map[string]string{"tcp": "proxy", "udp": "dns"}[protocol]
	}
	d := j.rules.Addr(a, port)
	allowed := d.Verdict == matcher.Allow
	if protocol == "tcp" && !j.local(a) && port != 53 {
		byProxy := j.spec.HasNames()
		switch {
		case j.rules.Mode() == policy.Allowlist && !(allowed && j.spec.StraightTCP() && (!hides(a) || j.names(a, port))):
			return "proxy"
		case j.rules.Mode() == policy.Denylist && d.Reason == matcher.AddressRule && !hiddenDenial(j, a, port):
			return "refused"
		case j.rules.Mode() != policy.Allowlist && byProxy:
			return "proxy"
		}
	}
	if !allowed {
		return "refused"
	}
	if protocol == "udp" && port == 443 && j.rules.Mode() == policy.Denylist && j.rules.HasNameRules() && !j.local(a) {
		return "refused"
	}
	return "direct"
}

// hiddenDenial reports whether it is only an IPv4 address inside an IPv6 one that is denied: such connections are
// steered to the proxy, where there is one, which refuses them.
func hiddenDenial(j *judged, a netip.Addr, port uint16) bool {
	if a.Is4() || !j.spec.HasNames() {
		return false
	}
	for _, t := range j.target {
		if t.Prefix.IsValid() && t.Prefix.Contains(a) && (t.Port == 0 || t.Port == port) {
			return false
		}
	}
	return true
}

var kinds = []nft.Kind{nft.IPv4, nft.IPv6}

func kindOf(a netip.Addr) nft.Kind {
	if a.Is4() {
		return nft.IPv4
	}
	return nft.IPv6
}

// local reports whether the address is always on the direct plane.
func (j *judged) local(a netip.Addr) bool {
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(j.spec.Networks, in) || slices.Contains(j.spec.Host, a) || !j.spec.Internal && slices.ContainsFunc(j.spec.Spec.Direct, in)
}

// Networks whose addresses hide an IPv4 one, see package matcher.
var (
	hiding     = prefixes("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "2002::/16", "2001::/32", "::/96")
	localNAT64 = hiding[1]
)

// hides reports whether it is one of these, or of ISATAP.
func hides(a netip.Addr) bool {
	return a.Is6() && (middle(a)&0xfdffffff == 0x5efe || slices.ContainsFunc(hiding, func(p netip.Prefix) bool { return p.Contains(a) }))
}

// middle are the bytes from 8 to 11.
func middle(a netip.Addr) uint32 { b := a.As16(); return binary.BigEndian.Uint32(b[8:]) }

// usable leaves out what sockets do not send to, or what is the workload's own.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsMulticast() && !a.IsLoopback() && !a.IsUnspecified() && !a.Is4In6() && a != own4 && a != own6 &&
		!(a.Is6() && localNAT64.Contains(a) && middle(a) != 0) && a != netip.MustParseAddr("255.255.255.255")
}

// The kernel's verdict and plane are the matcher's, for random policies and destinations, edges above all.
func TestAgreesWithMatcher(t *testing.T) {
	l := newLab(t, false)
	listeners := l.listen(t)
	r := rand.New(rand.NewPCG(*seed, 0))
	const perPolicy = 100
	asked, let := make(map[nft.Kind]int), make(map[nft.Kind]int)
	for asked[nft.IPv4] < *pairs || asked[nft.IPv6] < *pairs {
		modes := []policy.Mode{policy.Public, policy.Allowlist, policy.Denylist, policy.Allowlist, policy.Denylist, policy.NoNetwork}
		mode := modes[r.IntN(len(modes))]
		p := drawPolicy(r, mode, r.IntN(2) == 0)
		other := drawPolicy(r, modes[r.IntN(len(modes))], r.IntN(3) == 0)
		rules, err := matcher.Compile(p, matcher.Options{})
		if err != nil {
			t.Fatal(err)
		}
		otherRules, err := matcher.Compile(other, matcher.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s := l.spec(t, listeners, direct.Phase{Rules: rules}, direct.Phase{Rules: otherRules})
		if err := l.gate.Install(s, policy.Baseline); err != nil {
			t.Fatal(err)
		}
		j := &judged{rules, s, p.Targets}
		for range perPolicy {
			f := kinds[r.IntN(2)]
			pool := directtest.Pools[f]
			from := pool[r.IntN(len(pool))]
			if len(p.Targets) > 0 && r.IntN(3) > 0 {
				if t := p.Targets[r.IntN(len(p.Targets))]; t.Prefix.IsValid() {
					from = t.Prefix
				}
			}
			a := directtest.Draw(r, from)
			if !usable(a) {
				continue
			}
			port := somePorts[2+r.IntN(len(somePorts)-2)]
			if r.IntN(4) == 0 {
				port += uint16(r.IntN(3)) - 1
			}
			protocol, to := []string{"udp", "tcp", "udp", "tcp", "ping"}[r.IntN(5)], ""
			if protocol == "ping" {
				port, to = 0, a.String()
			} else {
				to = netip.AddrPortFrom(a, port).String()
			}
			f = kindOf(a)
			want := j.plane(protocol, a, port)
			got := l.probe(t, protocol, to)
			if protocol == "udp" && got == "refused" && want != got {
				// Connection tracking may have no place for a datagram (seen once in some 20 runs). What the rules refuse
				// is refused from any port.
				t.Logf("%s to %s: %v; once more", protocol, to, lastRefusal.Load())
				got = l.probe(t, protocol, to)
			}
			asked[f]++
			if want != "refused" {
				let[f]++
			}
			if got != want {
				t.Errorf("%v %v beside %v %v: %s to %s: got %s, want %s, matcher says %+v", mode, p.Targets, other.Mode, other.Targets,
					protocol, to, got, want, rules.Addr(a, port))
			}
		}
		if t.Failed() {
			t.Fatalf("with -seed %d", *seed)
		}
	}
	for _, f := range kinds {
		if share := float64(let[f]) / float64(asked[f]); share < 0.4 || share > 0.9 {
			t.Errorf("%v: %.0f %% of the destinations are let through: want both verdicts often", f, 100*share)
		}
		t.Logf("%v: %d pairs, %d let through", f, asked[f], let[f])
	}
}
