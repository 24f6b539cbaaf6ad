package guard

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/dockernet/direct"
	"sluice/policy"
)

var update = flag.Bool("update", false, "write testdata/*.nft anew")

const testLogGroup = 7

// plane is a row of the design's table "Which plane", as it becomes rules.
type plane struct {
	name     string
	phase    direct.Phase
	beside   []direct.Phase // the other phases
	internal bool
}

func planes(t testing.TB, withIPv6 bool) []plane {
	allowed := []string{"192.0.2.5", "192.0.2.64/26", "192.0.2.7:443", "192.0.2.128/25:8080", "192.0.2.9:53", "198.51.100.20:5432", "ok.test"}
	denied := []string{"192.0.2.5", "192.0.2.64/26", "192.0.2.7:443"}
	if withIPv6 {
		allowed = append(allowed, "2001:db8:2::5", "2001:db8:2:1::/64", "[2001:db8:2::7]:443", "[2001:db8:2::9]:53",
			"[2001:db8:1::20]:5432", "64:ff9b::203.0.113.9")
		denied = append(denied, "2001:db8:2::5", "2001:db8:2:1::/64", "[2001:db8:2::7]:443")
	}
	return []plane{
		{name: "public", phase: phaseOf(t, "public")},
		{name: "public_beside_names", phase: phaseOf(t, "public"), beside: []direct.Phase{phaseOf(t, "allowlist", "ok.test")}},
		{name: "public_internal", phase: phaseOf(t, "public"), internal: true},
		{name: "no_network", phase: phaseOf(t, "no-network")},
		{name: "allowlist", phase: phaseOf(t, "allowlist", allowed...)},
		{name: "allowlist_beside_denied_names", phase: phaseOf(t, "allowlist", allowed...), beside: []direct.Phase{phaseOf(t, "denylist", "evil.test")}},
		{name: "allowlist_internal", phase: phaseOf(t, "allowlist", allowed...), internal: true},
		{name: "denylist", phase: phaseOf(t, "denylist", denied...)},
		{name: "denylist_names", phase: phaseOf(t, "denylist", append(denied, "evil.test")...)},
		{name: "inbound_host", phase: inbound(phaseOf(t, "allowlist", "192.0.2.5"), policy.InboundHost)},
		{name: "inbound_none", phase: inbound(phaseOf(t, "allowlist", allowed...), policy.InboundNone)},
	}
}

// split divides a listing into what belongs to the phase in force and what all phases share.
func split(listing string) (phase, shared string) {
	head, rest, _ := strings.Cut(listing, "\n")
	phase, shared = head+"\n", head+"\n"
	for block := range strings.SplitAfterSeq(strings.TrimSuffix(rest, "}\n"), "\n\t}\n") {
		if strings.Contains(strings.SplitN(block, "\n", 2)[0], "baseline") {
			phase += block
		} else {
			shared += block
		}
	}
	return phase + "}\n", shared + "}\n"
}

func TestListing(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, p := range planes(t, family == "ipv6") {
			t.Run(p.name+"_"+family, func(t *testing.T) {
				s := example(family == "ipv6", threeOf(t, p.phase, p.beside...))
				s.Internal = p.internal
				got, err := Listing(s, policy.Baseline, DefaultMark, testLogGroup)
				if err != nil {
					t.Fatal(err)
				}
				phase, shared := split(got)
				golden(t, p.name+"_"+family, phase)
				switch p.name {
				case "public":
					golden(t, "shared_"+family, shared)
				case "inbound_none":
					golden(t, "shared_secluded_"+family, shared)
				}
			})
		}
	}
}

func TestHostListing(t *testing.T) {
	got, err := HostListing(DefaultMark, testLogGroup, []string{"br-managed"}, []string{"docker0"})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "host", got)
	if _, err := HostListing(1, testLogGroup, nil, nil); err == nil {
		t.Error("a mark of one bit is taken")
	}
}

func golden(t *testing.T, name, got string) {
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
