package guard

import (
	"fmt"
	"slices"

	"sluice/dockernet/nft"
)

// hostName is that of the tables for the whole host, one a family.
const hostName = "sluice_guard"

var (
	inetTable   = nft.ID{Family: "inet", Name: hostName}
	bridgeTable = nft.ID{Family: "bridge", Name: hostName}
	arpTable    = nft.ID{Family: "arp", Name: hostName}
)

// nameSet is a set of interfaces' names in one of the host's tables.
type nameSet struct {
	table nft.ID
	name  string
}

var (
	// Bridges that the guard looks after, and those of managed networks.
	allBridges     = nameSet{inetTable, "bridges"}
	managedBridges = nameSet{inetTable, "managed"}
	managedARP     = nameSet{arpTable, "managed"}
	// Bridges that do something because the guard has made them, by [habit].
	made = [habits]nameSet{{inetTable, "calling4"}, {inetTable, "calling6"}, {inetTable, "passing"}}
	// Ports of containers that have a guard, and all ports of managed networks, with a guard or without.
	guardedPorts = nameSet{bridgeTable, "ports"}
	managedPorts = nameSet{bridgeTable, "managed_ports"}

	allSets = []nameSet{allBridges, managedBridges, made[0], made[1], made[2], guardedPorts, managedPorts, managedARP}
)

// Counters of the host's tables.
const (
	notReplyCount = "not_reply"
	notOpenCount  = "not_open"
	unmarkedCount = "unmarked"
	unjudgedCount = "unjudged"
)

// Conntrack comes at -200 and Docker's DNAT at -100. Tables that change marks are at -150, where the order of chains is
// that of their making, so this one comes before them.
const preroutingPriority = -151

// Where bridges filter, before br_netfilter calls the hooks of IP, which then take the mark away
// (linux/netfilter_bridge.h).
const bridgeFilterPriority = -200

// The name of a chain that has no rules and that nothing leads to says which mark the tables use.
const markChainPrefix = "mark_"

func (m Mark) chain() string { return fmt.Sprintf("%s%08x", markChainPrefix, uint32(m)) }

// hostTables are the rules for the whole host, with sets that are empty.
func (c config) hostTables() []nft.Table {
	sets := func(id nft.ID) (list []nft.Set) {
		for _, s := range allSets {
			if s.table == id {
				list = append(list, nft.Set{Name: s.name, Type: nft.InterfaceName})
			}
		}
		return list
	}
	in := func(f *nft.Field, set nameSet) nft.In { return nft.In{Fields: []*nft.Field{f}, Set: set.name} }
	notIn := func(f *nft.Field, set nameSet) nft.In {
		return nft.In{Fields: []*nft.Field{f}, Set: set.name, Not: true}
	}
	marked := func(bits uint32) nft.Masked {
		return nft.Masked{Field: nft.Mark, Mask: uint32(c.mark), Value: nft.Hex(bits)}
	}
	unmarked := marked(0)
	someMark := unmarked
	someMark.Not = true
	clear := nft.SetMark{Clear: uint32(c.mark)}
	reason := func(counter string) nft.Chain {
		return nft.Chain{Name: counter, Rules: append([]nft.Rule{{nft.Count{Counter: counter}}}, c.dropped(counter)...)}
	}
	return []nft.Table{
		{ID: inetTable,
			Counters: []string{notReplyCount, notOpenCount, unmarkedCount},
			Sets:     sets(inetTable),
			Chains: []nft.Chain{
				{Name: c.mark.chain()},
				reason(notReplyCount), reason(notOpenCount), reason(unmarkedCount),
				{Name: "replies", Rules: []nft.Rule{
					{clear},
					{nft.Is(nft.CTDirection, nft.Replied), nft.Accept},
					{nft.Goto(notReplyCount)},
				}},
				{Name: "open", Rules: []nft.Rule{
					{clear},
					{nft.Is(nft.CTState, nft.AnyOf{"established", "related"}), nft.Accept},
					{nft.Goto(notOpenCount)},
				}},
				{Name: "prerouting", Hook: &nft.Hook{Type: "filter", At: "prerouting", Priority: preroutingPriority, Accept: true}, Rules: []nft.Rule{
					{notIn(nft.InName, allBridges), nft.Accept},
					{marked(c.mark.allowed()), clear, nft.Accept},
					{marked(c.mark.replies()), nft.Goto("replies")},
					{marked(c.mark.open()), nft.Goto("open")},
					{in(nft.InName, managedBridges), nft.Goto(unmarkedCount)},
				}},
			}},
		{ID: bridgeTable,
			Counters: []string{unjudgedCount, unmarkedCount},
			Sets:     sets(bridgeTable),
			Chains: []nft.Chain{
				reason(unjudgedCount), reason(unmarkedCount),
				// Before the bridge learns where somebody is. The mark is asked for first: to read a name and look it up takes longer.
				{Name: "prerouting", Hook: &nft.Hook{Type: "filter", At: "prerouting", Priority: bridgeFilterPriority, Accept: true}, Rules: []nft.Rule{
					{unmarked, in(nft.InName, managedPorts), nft.Goto(unmarkedCount)},
				}},
				// Nor from frames that no bridge passes on (IEEE 802.1Q §8.6.3), which do not come by there, see [passes].
				{Name: "input", Hook: &nft.Hook{Type: "filter", At: "input", Priority: bridgeFilterPriority, Accept: true}, Rules: []nft.Rule{
					{nft.Is(nft.EtherGroup, nft.Bytes{0x01, 0x80, 0xc2, 0x00, 0x00}), unmarked, in(nft.InName, managedPorts), nft.Goto(unmarkedCount)},
				}},
				{Name: "forward", Hook: &nft.Hook{Type: "filter", At: "forward", Priority: bridgeFilterPriority, Accept: true}, Rules: []nft.Rule{
					// The chain "prerouting" takes the mark away. Where it has not, it was not asked.
					{nft.Is(nft.EtherType, nft.Word("ip")), someMark, in(nft.InName, guardedPorts), nft.Goto(unjudgedCount)},
					{nft.Is(nft.EtherType, nft.Word("ip6")), someMark, in(nft.InName, guardedPorts), nft.Goto(unjudgedCount)},
					{nft.Is(nft.EtherType, nft.Word("ip")), nft.Accept},
					{nft.Is(nft.EtherType, nft.Word("ip6")), nft.Accept},
					{in(nft.OutName, managedPorts), unmarked, nft.Goto(unmarkedCount)},
				}},
			}},
		{ID: arpTable,
			Counters: []string{unmarkedCount},
			Sets:     sets(arpTable),
			Chains: []nft.Chain{
				reason(unmarkedCount),
				{Name: "input", Kind: nft.ARP, Hook: &nft.Hook{Type: "filter", At: "input", Accept: true}, Rules: []nft.Rule{
					{in(nft.InName, managedARP), unmarked, nft.Goto(unmarkedCount)},
				}},
			}},
	}
}

// HostListing shows the rules for the whole host, as nft reads them, with bridges of networks that are managed and of
// others.
func HostListing(m Mark, logGroup uint16, managed, others []string) (string, error) {
	if err := m.check(); err != nil {
		return "", err
	}
	text := ""
	for _, t := range (config{m, logGroup}).hostTables() {
		for i := range t.Sets {
			switch (nameSet{t.ID, t.Sets[i].Name}) {
			case allBridges:
				t.Sets[i].Elements = elementsOf(append(slices.Clone(managed), others...)...)
			case managedBridges, managedARP:
				t.Sets[i].Elements = elementsOf(managed...)
			}
		}
		text += t.String()
	}
	return text, nil
}

func elementsOf(names ...string) []nft.Element {
	list := make([]nft.Element, len(names))
	for i, n := range names {
		list[i].Name = n
	}
	return list
}
