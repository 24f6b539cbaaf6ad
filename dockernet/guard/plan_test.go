package guard

import (
	"testing"

	"sluice/dockernet/direct/directtest"
	"sluice/policy"
)

const testLogGroup = 7

func TestListing(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, p := range directtest.Planes(t, family == "ipv6") {
			t.Run(p.Name+"_"+family, func(t *testing.T) {
				s := example(family == "ipv6", threeOf(t, p.Phase, p.Beside...))
				s.Internal = p.Internal
				got, err := Listing(s, policy.Baseline, DefaultMark, testLogGroup)
				if err != nil {
					t.Fatal(err)
				}
				phase, shared := directtest.Split(got)
				directtest.Golden(t, p.Name+"_"+family, phase)
				switch p.Name {
				case "public":
					directtest.Golden(t, "shared_"+family, shared)
				case "inbound_none":
					directtest.Golden(t, "shared_secluded_"+family, shared)
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
	directtest.Golden(t, "host", got)
	if _, err := HostListing(1, testLogGroup, nil, nil); err == nil {
		t.Error("a mark of one bit is taken")
	}
}
