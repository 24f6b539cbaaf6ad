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

// An ARP packet for IPv4 on Ethernet has so many bytes (RFC 826).
const arpBytes = 28

// isARP is tested by itself, as this is no IP packet.
var isARP = nft.Is(nft.EtherType, nft.Word("arp"))

// arp lets the container say truly who it is, and search others on its link.
func (c config) arp(s *Spec, g generation) (rules []nft.Rule) {
	for _, r := range s.neighbourly(g, nft.IPv4) {
		rules = append(rules, append(nft.Rule{isARP}, r...))
	}
	for _, own := range of(s.Addresses, nft.IPv4, itself) {
		for _, p := range of(s.OnLink, nft.IPv4, netip.Prefix.Addr) {
			// Hardware Ethernet, protocol IPv4, and the lengths of their addresses; the operation, and who sends it.
			truly := func(operation byte) []nft.Part {
				start := append(nft.Bytes{0, 1, 8, 0, 6, 4, 0, operation}, s.Hardware[:]...)
				return []nft.Part{isARP, nft.Is(nft.Length, nft.Number(arpBytes)), nft.Is(nft.InNetwork(0, uint32(len(start))), start),
					nft.Is(nft.ARPSource, nft.Single(own))}
			}
			target := nft.Is(nft.ARPTarget, nft.Network(p))
			rules = append(rules,
				// A request has no target yet, and would have room for something else.
				slices.Concat(truly(1), []nft.Part{nft.Is(nft.ARPTargetEther, nft.Hardware{}), target}, c.bounded(searchRate, searchBurst)),
				slices.Concat(truly(2), []nft.Part{target}, c.bounded(answerRate, answerBurst)))
		}
	}
	return rules
}

// neighbourly asks the phases that let few neighbours in or out.
func (s *Spec) neighbourly(g generation, f nft.Kind) []nft.Rule {
	if !s.secluded() {
		return nil
	}
	return []nft.Rule{{nft.Jump(g.link(f))}}
}

// bounded accepts a message about neighbours, if such do not come too often.
func (c config) bounded(rate uint64, burst uint32) []nft.Part {
	return []nft.Part{nft.Limit{Rate: rate, Burst: burst}, addMark(c.mark.allowed()), nft.Accept}
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

// neighbours6 is arp for IPv6. It returns the rules that lead there.
func (b *builder) neighbours6() []nft.Rule {
	ownSource, ownTarget := b.isOwn(nft.IPv6, nft.IP6Source), b.isOwn(nft.IPv6, nft.NDTarget)
	bare, withOption := nft.Is(nft.Length, nft.Number(neighbourBytes)), nft.Is(nft.Length, nft.Number(neighbourBytes+optionBytes))
	hardware := func(kind byte) nft.Part { return nft.Is(option, append(nft.Bytes{kind, 1}, b.Hardware[:]...)) }
	onLink := append(b.onLink(nft.IPv6), linkLocal)
	notOf := func(field *nft.Field, networks ...netip.Prefix) nft.Rule {
		var tests []nft.Part
		for _, p := range networks {
			tests = append(tests, nft.Not(field, nft.Network(p)))
		}
		return b.drop(neighbourCount, tests...)
	}
	elsewhere := notOf(nft.IP6Destination, append(slices.Clone(onLink), solicitedNode, allNodes)...)
	// message makes the chain of one kind, of which one of the true forms must hold. The mark says so meanwhile.
	message := func(name string, rate uint64, burst uint32, untrue []nft.Rule, forms ...nft.Rule) {
		rules := untrue
		for _, f := range forms {
			rules = append(rules, append(f, addMark(b.mark.replies())))
		}
		rules = append(rules, b.drop(neighbourCount, nft.Masked{Field: nft.Mark, Mask: uint32(b.mark), Value: nft.Hex(0)}))
		rules = append(rules, b.neighbourly(b.generation, nft.IPv6)...)
		rules = append(rules, append(nft.Rule{nft.Limit{Rate: rate, Burst: burst}}, b.setMark(b.mark.allowed()), nft.Accept))
		b.ownChain(nft.IPv6, b.name(name), append(rules, b.drop(neighbourCount))...)
	}

	zero, unspecified := nft.Is(reserved, nft.Bytes{0, 0, 0, 0}), nft.Is(nft.IP6Source, nft.Single(netip.IPv6Unspecified()))
	message("solicit", searchRate, searchBurst, []nft.Rule{elsewhere, notOf(nft.NDTarget, onLink...)},
		nft.Rule{zero, ownSource, bare},
		nft.Rule{zero, ownSource, withOption, hardware(sourceOption)},
		// Nobody else may have an address that the container gets: RFC 4862 §5.4.
		nft.Rule{zero, unspecified, ownTarget, bare},
		nft.Rule{zero, unspecified, ownTarget, withOption, nft.Is(optionStart, nft.Bytes{nonceOption, 1})})

	// An advertisement has flags for "solicited" and "override"; the container is no router.
	flags := nft.Masked{Field: reserved, Mask: 0x9fffffff, Value: nft.Number(0)}
	message("advert", answerRate, answerBurst, []nft.Rule{elsewhere},
		nft.Rule{flags, ownSource, ownTarget, bare},
		nft.Rule{flags, ownSource, ownTarget, withOption, hardware(targetOption)})

	to := func(kind nft.Word, chain string) nft.Rule {
		// A hop limit that no router lets through.
		return nft.Rule{nft.Is(nft.IP6Next, nft.Word("ipv6-icmp")), nft.Is(nft.IP6HopLimit, nft.Number(255)),
			nft.Is(nft.ICMP6Type, kind), nft.Is(nft.ICMP6Code, nft.Number(0)), b.to(chain)}
	}
	return []nft.Rule{to("nd-neighbor-solicit", "solicit"), to("nd-neighbor-advert", "advert")}
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
		b.ownChain(nft.ARP, r.link(f), append(in(nft.ARPTarget), b.drop(neighbourCount))...)
		return
	}
	search, answer := nft.Is(nft.ICMP6Type, nft.Word("nd-neighbor-solicit")), nft.Is(nft.ICMP6Type, nft.Word("nd-neighbor-advert"))
	b.ownChain(nft.IPv6, r.link(f), slices.Concat(in(nft.NDTarget, search), in(nft.IP6Destination, answer), []nft.Rule{
		{search, b.isOwn(nft.IPv6, nft.NDTarget), nft.Return},
		// Who asks may do so with an address of the link, which nobody has told us.
		{answer, nft.Is(nft.IP6Destination, nft.Network(linkLocal)), nft.Return},
		b.drop(neighbourCount),
	})...)
}
