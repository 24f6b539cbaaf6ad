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

// Sets of the host's tables: bridges that the guard looks after, those of managed networks, the ports of containers
// that have a guard, and those of them on managed networks.
const (
	bridgesSet      = "bridges"
	managedSet      = "managed"
	portsSet        = "ports"
	managedPortsSet = "managed_ports"
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

// Where bridges filter what they forward, before br_netfilter calls the hooks of IP (linux/netfilter_bridge.h).
const bridgeFilterPriority = -200

// The name of a chain that has no rules and that nothing leads to says which mark the tables use.
const markChainPrefix = "mark_"

func (m Mark) chain() string { return fmt.Sprintf("%s%08x", markChainPrefix, uint32(m)) }

// hostTables are the rules for the whole host, with sets that are empty.
func (c config) hostTables() []nft.Table {
	names := func(name string) nft.Set { return nft.Set{Name: name, Type: nft.InterfaceName} }
	in := func(f *nft.Field, set string) nft.In { return nft.In{Fields: []*nft.Field{f}, Set: set} }
	notIn := func(f *nft.Field, set string) nft.In { return nft.In{Fields: []*nft.Field{f}, Set: set, Not: true} }
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
			Sets:     []nft.Set{names(bridgesSet), names(managedSet)},
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
					{notIn(nft.InName, bridgesSet), nft.Accept},
					{marked(c.mark.allowed()), clear, nft.Accept},
					{marked(c.mark.replies()), nft.Goto("replies")},
					{marked(c.mark.open()), nft.Goto("open")},
					{in(nft.InName, managedSet), nft.Goto(unmarkedCount)},
				}},
			}},
		{ID: bridgeTable,
			Counters: []string{unjudgedCount, unmarkedCount},
			Sets:     []nft.Set{names(portsSet), names(managedPortsSet)},
			Chains: []nft.Chain{
				reason(unjudgedCount), reason(unmarkedCount),
				{Name: "forward", Hook: &nft.Hook{Type: "filter", At: "forward", Priority: bridgeFilterPriority, Accept: true}, Rules: []nft.Rule{
					// The chain "prerouting" takes the mark away. Where it has not, it was not asked.
					{nft.Is(nft.EtherType, nft.Word("ip")), in(nft.InName, portsSet), someMark, nft.Goto(unjudgedCount)},
					{nft.Is(nft.EtherType, nft.Word("ip6")), in(nft.InName, portsSet), someMark, nft.Goto(unjudgedCount)},
					{nft.Is(nft.EtherType, nft.Word("ip")), nft.Accept},
					{nft.Is(nft.EtherType, nft.Word("ip6")), nft.Accept},
					{in(nft.OutName, managedPortsSet), unmarked, nft.Goto(unmarkedCount)},
				}},
			}},
		{ID: arpTable,
			Counters: []string{unmarkedCount},
			Sets:     []nft.Set{names(managedSet)},
			Chains: []nft.Chain{
				reason(unmarkedCount),
				{Name: "input", Kind: nft.ARP, Hook: &nft.Hook{Type: "filter", At: "input", Accept: true}, Rules: []nft.Rule{
					{in(nft.InName, managedSet), unmarked, nft.Goto(unmarkedCount)},
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
			switch t.Sets[i].Name {
			case bridgesSet:
				t.Sets[i].Elements = elementsOf(append(slices.Clone(managed), others...)...)
			case managedSet:
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
