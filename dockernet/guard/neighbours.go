package guard

import (
	"net/netip"
	"slices"

	"sluice/dockernet/nft"
)

// How often a container may search its neighbours, and answer them: a second, and at once. One that talks to a few
// hundred others has to find all of them and then look for each again every half a minute (RFC 4861 §10).
const (
	searchRate, searchBurst = 10, 256
	answerRate, answerBurst = 50, 512
)

// neighbour accepts a message about neighbours, if it does not come too often.
func (b *builder) neighbour(link string, rate uint64, burst uint32) []nft.Rule {
	return []nft.Rule{
		{nft.Jump(link)},
		{nft.Limit{Rate: rate, Burst: burst}, addMark(b.mark.allowed()), nft.Accept},
		{b.to(neighbourCount)},
	}
}

// An ARP packet for IPv4 on Ethernet, and how that begins: hardware and protocol, and the lengths of their addresses
// (RFC 826).
const arpBytes = 28

var arpStart = nft.Bytes{0, 1, 8, 0, 6, 4}

// arp lets the container say truly who it is, and search others on its link.
func (b *builder) arp() {
	refuse := b.to(neighbourCount)
	common := []nft.Rule{
		{nft.Not(nft.Length, nft.Number(arpBytes)), refuse},
		{nft.Not(nft.InNetwork(0, 6), arpStart), refuse},
		{nft.Not(nft.ARPSourceEther, b.Hardware), refuse},
	}
	if len(of(b.Addresses, nft.IPv4, itself)) == 0 {
		common = append(common, nft.Rule{refuse})
	} else {
		common = append(common, nft.Rule{b.notOwn(nft.IPv4, nft.ARPSource), refuse})
	}
	beside := b.name("arp_target")
	b.chain(nft.ARP, beside, b.within(nft.ARPTarget, b.onLink(nft.IPv4)...)...)
	b.chain(nft.ARP, b.name("arp_request"), slices.Concat(
		// A request has no target yet (RFC 826), and would have room for something else.
		[]nft.Rule{{nft.Not(nft.ARPTargetEther, nft.Hardware{}), refuse}, {nft.Jump(beside)}},
		b.neighbour(link4Chain, searchRate, searchBurst))...)
	b.chain(nft.ARP, b.name("arp_reply"), slices.Concat(
		[]nft.Rule{{nft.Jump(beside)}},
		b.neighbour(link4Chain, answerRate, answerBurst))...)
	b.chain(nft.ARP, b.name("arp"), append(common,
		nft.Rule{nft.Is(nft.ARPOperation, nft.Word("request")), b.to("arp_request")},
		nft.Rule{nft.Is(nft.ARPOperation, nft.Word("reply")), b.to("arp_reply")},
		nft.Rule{refuse})...)
}

// within returns for addresses of the networks, and refuses others.
func (b *builder) within(field *nft.Field, networks ...netip.Prefix) []nft.Rule {
	var rules []nft.Rule
	for _, p := range networks {
		rules = append(rules, nft.Rule{nft.Is(field, nft.Network(p)), nft.Return})
	}
	return append(rules, nft.Rule{b.to(neighbourCount)})
}

// Neighbour discovery, RFC 4861 §4.3, §4.4: a message of 24 bytes, and one option of 8 at most, with a hardware address
// or, when an address is new, a random number (RFC 7527 §4.2).
const (
	neighbourBytes = 40 + 24
	optionBytes    = 8
	// An option's type, and its length in units of 8 bytes.
	sourceOption, targetOption, nonceOption = 1, 2, 14
)

var (
	// reserved are 4 bytes, of which an advertisement has flags in the first one.
	reserved = nft.InTransport(4, 4)
	// option is the whole of one, and optionStart its type and length.
	option      = nft.InTransport(24, 8)
	optionStart = nft.InTransport(24, 2)

	linkLocal     = netip.MustParsePrefix("fe80::/10")
	solicitedNode = netip.MustParsePrefix("ff02::1:ff00:0/104") // RFC 4291 §2.7.1
	allNodes      = netip.MustParsePrefix("ff02::1/128")
)

// neighbours6 is arp for IPv6.
func (b *builder) neighbours6() {
	refuse := b.to(neighbourCount)
	onLink := append(b.onLink(nft.IPv6), linkLocal)
	ownSource, ownTarget := b.own(nft.IPv6, nft.IP6Source), b.own(nft.IPv6, nft.NDTarget)
	bare, withOption := nft.Is(nft.Length, nft.Number(neighbourBytes)), nft.Is(nft.Length, nft.Number(neighbourBytes+optionBytes))
	hardware := func(kind byte) nft.Part { return nft.Is(option, append(nft.Bytes{kind, 1}, b.Hardware[:]...)) }

	b.chain(nft.IPv6, b.name("nd_to"), b.within(nft.IP6Destination, append(slices.Clone(onLink), solicitedNode, allNodes)...)...)
	b.chain(nft.IPv6, b.name("nd_target"), b.within(nft.NDTarget, onLink...)...)
	start := []nft.Rule{
		{nft.Not(nft.IP6HopLimit, nft.Number(255)), refuse}, // so that no router lets it through
		{nft.Not(nft.ICMP6Code, nft.Number(0)), refuse},
		{nft.Jump(b.name("nd_to"))},
	}

	search := b.to("nd_search")
	unspecified := nft.Is(nft.IP6Source, nft.Single(netip.IPv6Unspecified()))
	b.chain(nft.IPv6, b.name("nd_search"), b.neighbour(link6Chain, searchRate, searchBurst)...)
	b.chain(nft.IPv6, b.name("solicit"), slices.Concat(start, []nft.Rule{
		{nft.Not(reserved, nft.Bytes{0, 0, 0, 0}), refuse},
		{nft.Jump(b.name("nd_target"))},
		{ownSource, bare, search},
		{ownSource, withOption, hardware(sourceOption), search},
		// Nobody else may have an address that the container gets: RFC 4862 §5.4.
		{unspecified, ownTarget, bare, search},
		{unspecified, ownTarget, withOption, nft.Is(optionStart, nft.Bytes{nonceOption, 1}), search},
		{refuse},
	})...)

	answer := b.to("nd_answer")
	ownSource.Not, ownTarget.Not = true, true
	b.chain(nft.IPv6, b.name("nd_answer"), b.neighbour(link6Chain, answerRate, answerBurst)...)
	b.chain(nft.IPv6, b.name("advert"), slices.Concat(start, []nft.Rule{
		// The flags "solicited" and "override"; the container is no router.
		{nft.Masked{Field: reserved, Mask: 0x9fffffff, Not: true, Value: nft.Number(0)}, refuse},
		{ownSource, refuse},
		{ownTarget, refuse},
		{bare, answer},
		{withOption, hardware(targetOption), answer},
		{refuse},
	})...)
}

// link makes the chain of a phase in which few neighbours matter: the gateways, and those whom the container may dial.
func (b *builder) link(r ref, f nft.Kind) {
	set := b.set(f, r.phase.String()+"_peers", b.Named(r.phase, f))
	in := func(field *nft.Field, tests ...nft.Part) []nft.Rule {
		rules := []nft.Rule{append(slices.Clone(tests), nft.In{Fields: []*nft.Field{field}, Set: set}, nft.Return)}
		for _, g := range of(b.Gateways, f, itself) {
			rules = append(rules, append(slices.Clone(tests), nft.Is(field, nft.Single(g)), nft.Return))
		}
		return rules
	}
	if f == nft.IPv4 {
		b.chain(nft.ARP, r.link(f), append(in(nft.ARPTarget), nft.Rule{b.to(neighbourCount)})...)
		return
	}
	search, answer := nft.Is(nft.ICMP6Type, nft.Word("nd-neighbor-solicit")), nft.Is(nft.ICMP6Type, nft.Word("nd-neighbor-advert"))
	b.chain(nft.IPv6, r.link(f), slices.Concat(in(nft.NDTarget, search), in(nft.IP6Destination, answer), []nft.Rule{
		{search, b.own(nft.IPv6, nft.NDTarget), nft.Return},
		// Who asks may do so with an address of the link, which nobody has told us.
		{answer, nft.Is(nft.IP6Destination, nft.Network(linkLocal)), nft.Return},
		{b.to(neighbourCount)},
	})...)
}
