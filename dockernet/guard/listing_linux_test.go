package guard

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"sluice/dockernet/direct/directtest"
	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft"
	"sluice/dockernet/nft/nfttest"
	"sluice/policy"
)

// The kernel has, of every rule, what nft makes of the listing: a wrong offset, mask or byte order would show. Rules
// that nft has no words for are left to other tests.
func TestKernelHasTheListing(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, p := range directtest.Planes(t, family == "ipv6") {
			t.Run(p.Name+"_"+family, func(t *testing.T) {
				s := example(family == "ipv6", threeOf(t, p.Phase, p.Beside...))
				s.Internal = p.Internal
				c := config{DefaultMark, testLogGroup}
				rules := build(s, c, 1)
				rules.Counters = slices.Concat(portCounters, tableCounters)
				rules.Put(c.ingress(s, 1))
				for _, chain := range rules.inForce(s.ref(1, policy.Baseline)) {
					rules.Put(chain)
				}
				table := rules.Reachable()
				compare(t, func(batch *nft.Batch) {
					batch.AddTable(table.ID)
					batch.AddCounters(table.ID, table.Counters...)
					batch.AddSets(table.ID, table.Sets...)
					batch.AddChains(table.ID, table.Chains...)
					// nft tests in every rule what kind of packet it is, and can show rules only if they do.
					for i := range table.Chains {
						table.Chains[i].Kind, table.Chains[i].Protocol = nft.AnyKind, ""
					}
					batch.AddRules(table.ID, table.Chains...)
				}, table.String())
			})
		}
	}
	t.Run("host", func(t *testing.T) {
		listing, err := HostListing(DefaultMark, testLogGroup, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		tables := config{DefaultMark, testLogGroup}.hostTables()
		compare(t, func(batch *nft.Batch) {
			for _, table := range tables {
				batch.AddTable(table.ID)
				batch.AddCounters(table.ID, table.Counters...)
				batch.AddSets(table.ID, table.Sets...)
				batch.AddChains(table.ID, table.Chains...)
				batch.AddRules(table.ID, table.Chains...)
			}
		}, listing)
	})
}

// compare gives a batch to one namespace and a listing to another, and what nft says of them to the test.
func compare(t *testing.T, fill func(*nft.Batch), listing string) {
	t.Helper()
	ours, theirs := netnstest.New(t), netnstest.New(t)
	for _, ns := range []*netnstest.Namespace{ours, theirs} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "veth0"
		if err := ns.Handle(t).LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer0"}); err != nil {
			t.Fatal(err)
		}
	}
	ours.Run(t, func() error {
		c, err := nft.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		batch := new(nft.Batch)
		fill(batch)
		return c.Send(batch)
	})
	nfttest.Run(t, theirs, listing, "-f", "-")
	got, want := shown(blocks(nfttest.Run(t, ours, "", "list", "ruleset"))), shown(blocks(nfttest.Run(t, theirs, "", "list", "ruleset")))
	if len(want) < 8 {
		t.Fatalf("only %d blocks in the listing", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the kernel has something else (-listing +kernel):\n%s", diff)
	}
}

// shown leaves out what nft shows in one way and reads in another: addresses that are hidden in others, the target of
// neighbour discovery, and the fields of Ethernet, before which it wants to know what kind of link it is.
func shown(blocks map[string]string) map[string]string {
	for name, block := range blocks {
		var kept strings.Builder
		for line := range strings.Lines(block) {
			if !containsAny(line, "@nh,288", "@nh,208", "@th,64,", "@ll,", "ether daddr", "ether saddr", "ether type", "arp htype") {
				kept.WriteString(strings.NewReplacer("meta protocol ip ", "", "meta protocol ip6 ", "").Replace(line))
			}
		}
		blocks[name] = kept.String()
	}
	return blocks
}
