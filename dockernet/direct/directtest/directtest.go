// Package directtest has policies, random destinations and listings for tests of what stands on package direct.
package directtest

import (
	"flag"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
	"sluice/matcher"
	"sluice/policy"
)

var update = flag.Bool("update", false, "write testdata/*.nft anew")

// Phase compiles a policy from its text: a mode and its targets, in short form.
func Phase(t testing.TB, mode string, hosts ...string) direct.Phase {
	t.Helper()
	modes := map[string]policy.Mode{"public": policy.Public, "allowlist": policy.Allowlist, "denylist": policy.Denylist,
		"no-network": policy.NoNetwork}
	m, ok := modes[mode]
	if !ok {
		t.Fatalf("mode %q", mode)
	}
	p := policy.Policy{Mode: m}
	for _, h := range hosts {
		target, err := policy.ParseTarget(h)
		if err != nil {
			t.Fatal(err)
		}
		p.Targets = append(p.Targets, target)
	}
	rules, err := matcher.Compile(p, matcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return direct.Phase{Rules: rules}
}

// Inbound returns the phase with another choice of who may dial the container.
func Inbound(p direct.Phase, i policy.Inbound) direct.Phase {
	p.Inbound = i
	return p
}

// Three has the phase in force first, and where no others are given, closed ones behind it.
func Three(t testing.TB, p direct.Phase, others ...direct.Phase) (phases [policy.PhaseCount]direct.Phase) {
	t.Helper()
	phases = [policy.PhaseCount]direct.Phase{p, Phase(t, "no-network"), Phase(t, "no-network")}
	copy(phases[1:], others)
	return phases
}

// Plane is a row of the design's table "Which plane", as it becomes rules.
type Plane struct {
	Name     string
	Phase    direct.Phase
	Beside   []direct.Phase // the other phases
	Internal bool
}

// Planes are all rows, for IPv4 or for both families.
func Planes(t testing.TB, withIPv6 bool) []Plane {
	t.Helper()
	allowed := []string{"192.0.2.5", "192.0.2.64/26", "192.0.2.7:443", "192.0.2.128/25:8080", "192.0.2.9:53", "198.51.100.20:5432", "ok.test"}
	denied := []string{"192.0.2.5", "192.0.2.64/26", "192.0.2.7:443"}
	if withIPv6 {
		allowed = append(allowed, "2001:db8:2::5", "2001:db8:2:1::/64", "[2001:db8:2::7]:443", "[2001:db8:2::9]:53",
			"[2001:db8:1::20]:5432", "64:ff9b::203.0.113.9")
		denied = append(denied, "2001:db8:2::5", "2001:db8:2:1::/64", "[2001:db8:2::7]:443")
	}
	public, list := Phase(t, "public"), Phase(t, "allowlist", allowed...)
	return []Plane{
		{Name: "public", Phase: public},
		{Name: "public_beside_names", Phase: public, Beside: []direct.Phase{Phase(t, "allowlist", "ok.test")}},
		{Name: "public_internal", Phase: public, Internal: true},
		{Name: "no_network", Phase: Phase(t, "no-network")},
		{Name: "allowlist", Phase: list},
		{Name: "allowlist_beside_denied_names", Phase: list, Beside: []direct.Phase{Phase(t, "denylist", "evil.test")}},
		{Name: "allowlist_internal", Phase: list, Internal: true},
		{Name: "denylist", Phase: Phase(t, "denylist", denied...)},
		{Name: "denylist_names", Phase: Phase(t, "denylist", append(denied, "evil.test")...)},
		{Name: "inbound_host", Phase: Inbound(Phase(t, "allowlist", "192.0.2.5"), policy.InboundHost)},
		{Name: "inbound_none", Phase: Inbound(list, policy.InboundNone)},
	}
}

// Split divides a listing into what belongs to the phase in force, the first one, and what all phases share. Some of that
// may be asked for with the phase, by a part of its name.
func Split(listing string, with ...string) (phase, shared string) {
	head, rest, _ := strings.Cut(listing, "\n")
	phase, shared = head+"\n", head+"\n"
	for block := range strings.SplitAfterSeq(strings.TrimSuffix(rest, "}\n"), "\n\t}\n") {
		of := func(name string) bool { return strings.Contains(strings.SplitN(block, "\n", 2)[0], name) }
		if of(policy.Baseline.String()) || slices.ContainsFunc(with, of) {
			phase += block
		} else {
			shared += block
		}
	}
	return phase + "}\n", shared + "}\n"
}

// Golden compares a listing with that of a file in testdata, or writes the file with -update.
func Golden(t testing.TB, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".nft")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the listing is not that of %s (-want +got):\n%s", file, diff)
	}
}

// Pools are networks that targets and destinations are drawn from: ordinary ones, some with the host in them, the floor,
// and forms that hide IPv4 addresses.
var Pools = map[nft.Kind][]netip.Prefix{
	nft.IPv4: Prefixes("192.0.2.0/24", "203.0.113.0/28", "8.8.8.0/29", "10.0.0.0/8", "169.254.169.248/29", "168.63.129.16/30", "100.100.100.200/30"),
	nft.IPv6: Prefixes("2001:db8:2::/64", "2001:db8:3::/120", "2001:db8:ffff::/125", "64:ff9b::192.0.2.0/120",
		"64:ff9b::169.254.169.252/126", "64:ff9b:1::192.0.2.0/120", "2002:c000:200::/40", "2002:a9fe:a9fe::/48",
		"::ffff:0:192.0.2.0/120", "2001:0:0:0:0:0:3fff:fd00/120", "fd00:ec2::254/124", "2001:db8:4::5efe:192.0.2.0/120"),
}

// Draw picks an address of a network, or the first one on either side of it, most often at an edge.
func Draw(r *rand.Rand, p netip.Prefix) netip.Addr {
	first, last := p.Masked().Addr(), nft.LastOf(p)
	switch r.IntN(6) {
	case 0:
		return first
	case 1:
		return last
	case 2:
		if a := first.Prev(); a.IsValid() {
			return a
		}
	case 3:
		if a := last.Next(); a.IsValid() {
			return a
		}
	}
	b := first.AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= byte(r.IntN(2)) << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Prefixes and Addrs parse lists.
func Prefixes(list ...string) (p []netip.Prefix) {
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

func Addrs(list ...string) (a []netip.Addr) {
	for _, s := range list {
		a = append(a, netip.MustParseAddr(s))
	}
	return a
}
