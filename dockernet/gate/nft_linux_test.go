package gate

import (
	"regexp"
	"strings"
	"testing"

	"sluice/dockernet/direct/directtest"
	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft"
	"sluice/dockernet/nft/nfttest"
	"sluice/policy"
)

// raw are the rules that nft can show, but not read, see Listing.
var raw = regexp.MustCompile(`(?m)^.*@nh,.*\n`)

// blocks returns what nft lists of the table, by the first line of each chain, set and counter.
func blocks(t *testing.T, ns *netnstest.Namespace) map[string]string {
	list := raw.ReplaceAllString(nfttest.Run(t, ns, "", "list", "table", "inet", tableID.Name), "")
	m := make(map[string]string)
	for block := range strings.SplitSeq(list, "\n\t}\n") {
		block = strings.TrimLeft(strings.TrimPrefix(block, "table inet sluice {\n"), "\n")
		if name, body, ok := strings.Cut(block, "\n"); ok {
			m[strings.TrimSpace(name)] = body
		}
	}
	return m
}

// The kernel has, of every rule, what nft makes of the listing: a wrong offset, mask or byte order would show.
func TestKernelHasTheListing(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, p := range directtest.Planes(t, family == "ipv6") {
			t.Run(p.Name+"_"+family, func(t *testing.T) {
				s := example(family == "ipv6", threeOf(t, p.Phase, p.Beside...))
				s.Internal = p.Internal
				kernelHasListing(t, s)
			})
		}
	}
}

func kernelHasListing(t *testing.T, s *Spec) {
	t.Helper()
	ours, theirs := netnstest.New(t), netnstest.New(t)
	table := whole(s, policy.Baseline)
	nfttest.Run(t, theirs, table.String(), "-f", "-")
	// nft shows rules as it reads them only if each tests what kind of packet it is.
	for i := range table.Chains {
		table.Chains[i].Kind, table.Chains[i].Protocol = nft.AnyKind, ""
	}
	ours.Run(t, func() error { return give(table) })
	got, want := blocks(t, ours), blocks(t, theirs)
	if len(want) < 15 {
		t.Fatalf("only %d blocks in the listing", len(want))
	}
	for name, body := range want {
		if got[name] != body {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", name, got[name], body)
		}
	}
}

// give puts a table into the namespace of the calling thread.
func give(t *nft.Table) error {
	c, err := nft.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	b := new(nft.Batch)
	b.AddTable(t.ID)
	b.AddCounters(t.ID, t.Counters...)
	b.AddSets(t.ID, t.Sets...)
	b.AddChains(t.ID, t.Chains...)
	b.AddRules(t.ID, t.Chains...)
	return c.Send(b)
}
