package guard

import (
	"net/netip"
	"slices"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// packets makes the chain for packets of a family: what does not depend on a phase. What is left is to be judged, with
// "allowed" in the mark, which stays if nothing refuses it.
func (b *builder) packets(f nft.Kind) {
	var rules []nft.Rule
	if f == nft.IPv6 {
		rules = b.neighbours6()
	}
	b.shape(f)
	found := func(bits uint32) nft.Masked {
		return nft.Masked{Field: nft.Mark, Mask: uint32(b.mark), Value: nft.Hex(bits)}
	}
	rules = append(rules,
		nft.Rule{nft.Jump(b.name("shape" + version(f)))},
		b.drop(malformedCount, found(0)),
		b.drop(sourceCount, b.notOwn(f, f.Source())),
		b.misdirected(f))
	rules = append(rules, b.plan.Closed(f, b.drop(refusedCount)...)...)
	rules = append(rules, nft.Rule{found(b.mark.open()), nft.Count{Counter: resetsCount}, nft.Accept})
	rules = append(rules, b.plan.Open(f, nft.Count{Counter: allowedCount}, nft.Accept)...)
	b.ownChain(f, b.name("ip"+version(f)), append(rules, nft.Rule{nft.Goto(b.generation.judge(f))})...)
}

// shape makes the chains that say in the mark what a packet is, for their caller only: open for a reset, and allowed for
// what may be judged. Nothing says that it is something else.
//
// Every packet that a container sends comes by here, so what is asked first is what most of them are, and in pieces of
// the headers that the kernel reads fastest (nft_payload_fast_ops, nft_bitwise_fast_ops).
func (b *builder) shape(f nft.Kind) {
	next, icmp, icmpType := nft.IPProtocol, nft.Word("icmp"), nft.ICMPType
	var rules []nft.Rule
	if f == nft.IPv4 {
		rules = []nft.Rule{
			{nft.Not(nft.IPHeaderLength, nft.Number(5)), nft.Return},
			{nft.Masked{Field: nft.IPFragments, Mask: 0x3fff, Not: true, Value: nft.Number(0)}, nft.Return},
		}
	} else {
		next, icmp, icmpType = nft.IP6Next, "ipv6-icmp", nft.ICMP6Type
	}
	allowed := []nft.Part{addMark(b.mark.allowed()), nft.Return}
	forContainers := nft.Rule{nft.Is(nft.Protocol, icmp)}
	for _, types := range notForContainers[f] {
		forContainers = append(forContainers, nft.Not(icmpType, types))
	}
	// What the kernel calls the protocol further on is the one behind all extension headers.
	b.chain(f, b.name("shape"+version(f)), append(rules,
		nft.Rule{nft.Is(next, nft.Word("tcp")), b.to(b.segments(f, allowed))},
		nft.Rule{nft.Not(next, nft.Word("udp")), nft.Not(next, icmp), nft.Return},
		append(nft.Rule{nft.Not(nft.UDPPort, nft.Number(0))}, allowed...),
		append(forContainers, allowed...))...)
}

// segments makes the chain for TCP, and returns its name.
func (b *builder) segments(f nft.Kind, allowed []nft.Part) string {
	header := nft.Number(20)
	if f == nft.IPv6 {
		header = 40
	}
	// The reset of a socket that a switch has destroyed must reach the other end, whatever the phase.
	var resets []nft.Rule
	for _, words := range resetWords {
		resets = append(resets, nft.Rule{nft.Is(nft.TCPOffset, words), nft.Is(nft.Length, header+4*words), addMark(b.mark.open()), nft.Return})
	}
	to, name := b.name("resets"+version(f)), "segments"+version(f)
	b.chains = append(b.chains,
		nft.Chain{Name: to, Kind: f, Protocol: "tcp", Rules: resets},
		nft.Chain{Name: b.name(name), Kind: f, Protocol: "tcp", Rules: []nft.Rule{
			{nft.Masked{Field: nft.TCPOffsetOn, Mask: 0x070000, Value: nft.Hex(0x040000)}, nft.Jump(to)},
			append(nft.Rule{nft.Not(nft.TCPPort, nft.Number(0))}, allowed...),
		}})
	return name
}

// resetWords are how many words of 4 bytes a reset has that Linux sends: the header, and timestamps if the connection
// has them (RFC 7323 §3.2). Data it has none.
var resetWords = []nft.Number{5, 8}

// notForContainers are ICMP types that are neither echoes nor errors: redirects, routers and what else a network tells
// its hosts (RFC 792, RFC 1256), and of IPv6 the groups of listeners too (RFC 4861 §4, RFC 2710, RFC 3810).
var notForContainers = map[nft.Kind][]nft.Range{
	nft.IPv4: {{First: 4, Last: 7}, {First: 9, Last: 10}, {First: 13, Last: 255}},
	nft.IPv6: {{First: 130, Last: 255}},
}

// notOwn holds if an address is none of the container's on this link.
func (b *builder) notOwn(f nft.Kind, field *nft.Field) nft.Part {
	if own := of(b.Addresses, f, itself); len(own) == 1 {
		return nft.Not(field, nft.Single(own[0]))
	}
	in := b.isOwn(f, field)
	in.Not = true
	return in
}

// isOwn holds if it is one.
func (b *builder) isOwn(f nft.Kind, field *nft.Field) nft.In {
	own := of(b.Addresses, f, itself)
	slices.SortFunc(own, netip.Addr.Compare)
	var elements []nft.Element
	for _, a := range slices.Compact(own) {
		elements = append(elements, nft.Element{First: a, Last: a})
	}
	return nft.In{Fields: []*nft.Field{field}, Set: b.set(f, "own", elements)}
}

// set makes a set of addresses, once, and returns its name.
func (b *builder) set(f nft.Kind, name string, elements []nft.Element) string {
	name = b.name(name + version(f))
	if !slices.ContainsFunc(b.sets, func(s nft.Set) bool { return s.Name == name }) {
		b.sets = append(b.sets, nft.Set{
			Name: name, Type: map[nft.Kind]nft.Type{nft.IPv4: nft.Address4, nft.IPv6: nft.Address6}[f],
			Interval: slices.ContainsFunc(elements, func(e nft.Element) bool { return e.First != e.Last }),
			Elements: elements,
		})
	}
	return name
}

// onLink are the networks of this link.
func (b *builder) onLink(f nft.Kind) []netip.Prefix { return of(b.OnLink, f, netip.Prefix.Addr) }

// misdirected drops packets to elsewhere than this link that are not sent to a router: some other container would get
// them, whatever its address.
func (b *builder) misdirected(f nft.Kind) nft.Rule {
	var elsewhere []nft.Part
	not := func(networks []netip.Prefix) {
		for _, p := range networks {
			elsewhere = append(elsewhere, nft.Not(f.Destination(), nft.Network(p)))
		}
	}
	not(b.onLink(f))
	for _, h := range b.Routers {
		elsewhere = append(elsewhere, nft.Not(nft.EtherDestination, h))
	}
	not(groups[f])
	return b.drop(misdirectedCount, elsewhere...)
}

// groups are addresses that no router is needed for on any link.
var groups = map[nft.Kind][]netip.Prefix{
	nft.IPv4: {netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32")},
	nft.IPv6: {netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8")},
}

var inboundNames = map[policy.Inbound]string{policy.InboundAll: "all", policy.InboundHost: "host", policy.InboundNone: "none"}

// refusal is what happens to a packet that a phase does not allow.
func (g generation) refusal(i policy.Inbound, f nft.Kind) nft.Verdict {
	return g.to("refuse"+version(f), inboundNames[i])
}

// phase makes the chains of a phase for a family.
func (b *builder) phase(n policy.Phase, f nft.Kind) {
	r := b.ref(b.generation, n)
	if r.secluded {
		b.link(r, f)
	}
	if r.closed {
		return
	}
	refuse := b.generation.refusal(r.inbound, f)
	rules, chains := b.plan.Judge(n, f, direct.Outcomes{
		Refuse:     refuse,
		Let:        func(tests ...nft.Part) nft.Rule { return append(slices.Clone(tests), nft.Return) },
		Redirected: []nft.Part{addMark(b.mark.replies())},
		Floor:      b.floors[r.inbound],
	})
	b.chains = append(b.chains, chains...)
	// Replies and errors belong to what has come in.
	unasked := nft.Rule{nft.Is(nft.Protocol, nft.Word("icmp")), nft.Not(nft.ICMPType, nft.Word("echo-request")), refuse}
	if f == nft.IPv6 {
		unasked = nft.Rule{nft.Is(nft.Protocol, nft.Word("ipv6-icmp")), nft.Not(nft.ICMP6Type, nft.Echo6), refuse}
	}
	b.chain(f, r.chain(f), append([]nft.Rule{unasked}, rules...)...)
}

// refusals makes the chains, once, that refuse for phases with a choice of who may dial the container.
func (b *builder) refusals(i policy.Inbound) {
	if b.floors[i] != nil {
		return
	}
	for _, f := range b.families() {
		b.chain(f, b.generation.refusal(i, f).Chain(), b.refuse(i, f)...)
	}
	var phases []policy.Phase
	for n := range b.Phases {
		if b.Phases[n].Inbound == i {
			phases = append(phases, policy.Phase(n))
		}
	}
	b.floors[i] = b.plan.NewFloor("floor_"+inboundNames[i], phases, func(f nft.Kind) nft.Verdict { return b.generation.refusal(i, f) })
	b.chains = append(b.chains, b.floors[i].Chains...)
}

// refuse drops what a phase does not allow, but for what may be a reply to something that has come in.
func (b *builder) refuse(i policy.Inbound, f nft.Kind) []nft.Rule {
	refused := b.drop(refusedCount)
	reply := []nft.Part{b.setMark(b.mark.replies()), nft.Count{Counter: repliesCount}, nft.Accept}
	echo := nft.Is(nft.ICMPType, nft.Word("echo-request"))
	if f == nft.IPv6 {
		echo = nft.Is(nft.ICMP6Type, nft.Echo6)
	}
	// The first segment of a connection and a request for an echo are no replies.
	first := []nft.Rule{
		b.drop(refusedCount, echo),
		b.drop(refusedCount, nft.Masked{Field: nft.TCPFlags, Mask: 18, Words: []nft.Word{"syn", "ack"}, Value: nft.Word("syn")}),
	}
	switch i {
	case policy.InboundAll:
		return append(first, nft.Rule(reply))
	case policy.InboundHost:
		return append(append(first, b.plan.Host(f, reply...)...), refused)
	default:
		return []nft.Rule{refused}
	}
}
