package gate

import (
	"net/netip"
)

// common makes what a packet meets before any phase: in the filter "common", and for new connections "common_steer".
func (b *builder) common() {
	rules := []rule{
		{fresh, jump(b.fresh())},
		{is(oifname, name("lo")), to(loopbackChain)},
		// The interface is the one from before the redirect, so that these are not covered by the rule above.
		{is(ctStatus, anyOf{"dnat"}), jump(redirectedChain)},
	}
	rules = append(rules, bare(b.Spec)...)
	rules = append(rules, reset)
	steer := []rule{{is(ipDestination, network(single(engineResolver))), to(proxyChain)}}
	for _, a := range b.Explicit {
		f := familyOf(a.Addr())
		steer = append(steer, rule{is(f.destination(), network(single(a.Addr()))), is(tcpPort, number(a.Port())), to(proxyChain)})
	}
	steer = append(steer, rule{is(fibDestination, word("local")), accept})
	for _, f := range b.families() {
		closed := b.finders(f, "closed", endpoints(b.Closed, f), 1)
		open := b.finders(f, "open", endpoints(b.Open, f), 2)
		rules = append(rules, ask(closed, nil, onlyTCP, then(refuse))...)
		rules = append(rules, ask(open, nil, onlyTCP, then(accept))...)
		steer = append(steer, ask(open, nil, onlyTCP, then(accept))...)
	}
	b.chain(b.name("common"), rules...)
	b.chain(b.name("common", "steer"), steer...)
}

// fresh makes what only first packets of connections meet, and those that belong to none. Later ones belong to a
// connection whose first packet was looked at.
func (b *builder) fresh() string {
	var rules []rule
	if b.serves(ipv6) {
		rules = []rule{{is(ip6Next, word("ipv6-icmp")), jump(b.neighbours())}}
	}
	name := b.name("fresh")
	b.chain(name, append(rules, ownSource, wholePackets)...)
	return name
}

// then makes rules that do something if their tests hold.
func then(do ...part) func(...part) rule {
	return func(tests ...part) rule { return append(append(rule{}, tests...), do...) }
}

func (f family) loopback() netip.Addr {
	if f == ipv4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// neighbourBytes is the longest message of neighbour discovery that the kernel sends: with two options of eight bytes
// (RFC 4861 §4.3, RFC 3971 §5.3.2).
const neighbourBytes = 40 + 24 + 2*8

// neighbours lets IPv6 find its neighbours, on the link only and without room for anything else.
func (b *builder) neighbours() string {
	name := b.name("neighbours")
	rules := []rule{
		{not(icmp6Type, between{neighbourSearch, neighbourAnswer}), back},
		{not(ip6HopLimit, number(255)), back},
		{above{length, neighbourBytes}, back},
		{is(ip6Destination, network(netip.MustParsePrefix("fe80::/10"))), accept},
		{is(ip6Destination, network(netip.MustParsePrefix("ff02::/16"))), accept},
	}
	for _, n := range b.Networks {
		if n.Addr().Is6() {
			rules = append(rules, rule{is(ip6Destination, network(n.Masked())), accept})
		}
	}
	b.chain(name, rules...)
	return name
}

// floorChains makes "floor4" and "floor6", which refuse the addresses of the floor, and "floor_hidden", which refuses
// IPv6 addresses with an IPv4 one of the floor in them.
func (b *builder) floorChains() {
	uses := 1
	if b.serves(ipv6) {
		uses += len(forms)
	}
	floor4 := b.find(ipv4, "floor", b.floor(ipv4), uses)
	b.chain(b.name("floor4"), ask(floor4, nil, bothPorts, then(refuse))...)
	if !b.serves(ipv6) {
		return
	}
	name := b.name("floor", "hidden")
	hidden := []rule{{shortLocalNAT64{}, refuse}}
	for i := range forms {
		hidden = append(hidden, ask(floor4, &forms[i], bothPorts, then(refuse))...)
	}
	b.chain(name, hidden...)
	floor6 := b.floor(ipv6)
	rules := ask(b.find(ipv6, "floor", floor6, 1), nil, bothPorts, then(refuse))
	if len(floor6.within(spansOf([]netip.Prefix{global}))) == 0 {
		rules = append([]rule{{is(ip6Destination, network(global)), to(b.name("floor", "global"))}}, rules...)
		b.chain(b.name("floor", "global"), b.hiding(jump(name))...)
	}
	b.chain(b.name("floor6"), append(rules, b.hiding(jump(name))...)...)
}

// global is where most addresses are, and none of the floor (RFC 4291 §2.4).
var global = netip.MustParsePrefix("2000::/3")

// hiding leads IPv6 addresses that hide an IPv4 one elsewhere.
func (b *builder) hiding(elsewhere verdict) []rule {
	var rules []rule
	for _, p := range wrappers {
		rules = append(rules, rule{is(ip6Destination, network(p)), elsewhere})
	}
	return append(rules, rule{isISATAP{}, elsewhere})
}
