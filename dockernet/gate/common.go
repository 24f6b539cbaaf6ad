package gate

import (
	"net/netip"
	"slices"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
)

// layout says where a family has what the rules look for first.
type layout struct {
	loopback netip.Addr
	next     *nft.Field // the protocol behind the first header
	icmp     nft.Word
	icmpType *nft.Field
	echo     nft.Value
}

var layouts = map[nft.Kind]layout{
	nft.IPv4: {netip.AddrFrom4([4]byte{127, 0, 0, 1}), nft.IPProtocol, "icmp", nft.ICMPType, nft.Word("echo-request")},
	nft.IPv6: {netip.IPv6Loopback(), nft.IP6Next, "ipv6-icmp", nft.ICMP6Type, nft.Echo6},
}

// head makes what a packet of a family meets before any phase. It is in one chain with the jumps to the phases, for a
// jump takes as long as several questions.
//
// IPv4 options and IPv6 extension headers could name another destination, and have room for more than the rules look
// at. What the kernel calls a packet's protocol, and its ports, are those behind all such headers. So the protocol in
// the first header is asked for before any rule that lets something through.
func (r ref) head(f nft.Kind) []nft.Rule {
	of := layouts[f]
	first := fresh4Chain
	if f == nft.IPv6 {
		first = r.generation.fresh6()
	}
	rules := []nft.Rule{
		{fresh, nft.Jump(first)},
		{nft.Is(nft.OutIndex, loopback), nft.Goto(loopbackChain)},
		// The interface is the one from before the redirect, so that these are not covered by the rule above.
		append(slices.Clone(toListener[f]), nft.Is(nft.CTStatus, nft.AnyOf{"dnat"}), nft.Jump(redirectedChain)),
	}
	if f == nft.IPv4 {
		rules = append(rules, nft.Rule{nft.Not(nft.IPHeaderLength, nft.Number(5)), deny})
	}
	rules = append(rules,
		nft.Rule{nft.Not(of.next, nft.Word("tcp")), nft.Not(of.next, nft.Word("udp")), nft.Jump(r.generation.others(f))},
		nft.Rule{nft.Is(nft.AnyPort, nft.Number(0)), nft.Not(nft.Protocol, of.icmp), refuse})
	// Ports that no phase may reach, and those that every phase may.
	ports := direct.NewEndpoints(&direct.Spec{Closed: r.common.closed, Open: r.common.open}, r.generation.name)
	return slices.Concat(rules, ports.Closed(f, refuse), ports.Open(f, nft.Accept))
}

// Chains that heads lead to.
func (g generation) others(f nft.Kind) string { return g.name("others" + version(f)) }
func (g generation) fresh6() string           { return g.name("fresh6") }

// others makes the chain for what is neither TCP nor UDP: of ICMP, echo requests are judged by their destination, and
// what answers something by the phase.
func (b *builder) others(f nft.Kind) {
	of := layouts[f]
	b.chain(f, b.generation.others(f),
		nft.Rule{nft.Is(of.next, of.icmp), nft.Is(of.icmpType, of.echo), nft.Return},
		nft.Rule{nft.Is(of.next, of.icmp), isReply, notJoined, nft.Return},
		nft.Rule{deny})
}

// toListener are tests for the address of a listener. Most addresses of IPv6 do not begin like ::1, of which the kernel
// would otherwise load all 16 bytes.
var toListener = map[nft.Kind]nft.Rule{
	nft.IPv4: {nft.Is(nft.IPDestination, nft.Single(layouts[nft.IPv4].loopback))},
	nft.IPv6: {nft.Is(nft.InNetwork(24, 4), nft.Bytes{0, 0, 0, 0}), nft.Is(nft.IP6Destination, nft.Single(netip.IPv6Loopback()))},
}

// fresh6 makes what only first packets of connections meet, and those that belong to none, as "fresh4" for IPv4.
func (b *builder) fresh6() {
	neighbours := b.name("neighbours")
	rules := []nft.Rule{
		{nft.Not(nft.ICMP6Type, nft.Range{First: neighbourSearch, Last: neighbourAnswer}), nft.Return},
		{nft.Not(nft.IP6HopLimit, nft.Number(255)), nft.Return},
		{nft.Above{Field: nft.Length, Value: neighbourBytes}, nft.Return},
		{nft.Is(nft.IP6Destination, nft.Network(netip.MustParsePrefix("fe80::/10"))), nft.Accept},
		{nft.Is(nft.IP6Destination, nft.Network(netip.MustParsePrefix("ff02::/16"))), nft.Accept},
	}
	for _, n := range b.Networks {
		if n.Addr().Is6() {
			rules = append(rules, nft.Rule{nft.Is(nft.IP6Destination, nft.Network(n.Masked())), nft.Accept})
		}
	}
	// Without a guard that knows whose addresses these are, the kernel alone finds neighbours, which has no user.
	if b.Shared != nil {
		rules = append([]nft.Rule{{nft.Not(nft.SocketOwner, nft.Number(0xffffffff)), nft.Return}}, rules...)
	}
	// It finds its neighbours, on the link only and without room for anything else.
	b.chains = append(b.chains, nft.Chain{Name: neighbours, Kind: nft.IPv6, Protocol: "ipv6-icmp", Rules: rules})
	b.chain(nft.IPv6, b.generation.fresh6(), nft.Rule{nft.Is(nft.IP6Next, nft.Word("ipv6-icmp")), nft.Jump(neighbours)}, ownSource)
}

// neighbourBytes is the longest message of neighbour discovery that the kernel sends: with two options of eight bytes
// (RFC 4861 §4.3, RFC 3971 §5.3.2).
const neighbourBytes = 40 + 24 + 2*8

// Types of ICMPv6 (RFC 2710 §3, RFC 3810 §5.2, RFC 4861 §4). nft's names for them have hyphens, which it takes for
// ranges.
const (
	membershipQuery   nft.Number = 130
	membershipReport2 nft.Number = 143
	routerSearch      nft.Number = 133
	neighbourSearch   nft.Number = 135
	neighbourAnswer   nft.Number = 136
)

// steer makes what new connections meet before any phase.
func (b *builder) steer() {
	rules := []nft.Rule{{nft.Is(nft.IPDestination, nft.Single(engineResolver)), toProxy}}
	for _, a := range b.Explicit {
		f := nft.IPv4
		if a.Addr().Is6() {
			f = nft.IPv6
		}
		rules = append(rules, nft.Rule{nft.Is(f.Destination(), nft.Single(a.Addr())), nft.Is(nft.TCPPort, nft.Number(a.Port())), toProxy})
	}
	// Sockets for link-local addresses are bound to an interface, so they would not reach the listener.
	rules = append(rules, nft.Rule{nft.Is(nft.IP6Destination, nft.Network(netip.MustParsePrefix("fe80::/10"))), nft.Accept},
		nft.Rule{nft.Is(nft.FibDestination, nft.Word("local")), nft.Accept})
	for _, f := range b.families() {
		rules = append(rules, b.plan.Open(f, nft.Accept)...)
	}
	b.chain(nft.AnyKind, b.name("common", "steer"), rules...)
}
