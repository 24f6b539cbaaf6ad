package gate

import (
	"net/netip"
	"slices"

	"sluice/dockernet/nft"
)

var (
	outputHook = &nft.Hook{Type: "filter", At: "output", Priority: filterPriority}
	steerHook  = &nft.Hook{Type: "nat", At: "output", Priority: steerPriority, Accept: true}
	inputHook  = &nft.Hook{Type: "filter", At: "input", Priority: filterPriority, Accept: true}
	arriveHook = &nft.Hook{Type: "nat", At: "input", Priority: steerPriority, Accept: true}
)

// fresh4Chain is what only first packets of IPv4 connections meet, and those that belong to none. Later ones belong to a
// connection whose first packet was looked at.
const fresh4Chain = "fresh4"

// fixed makes the chains that do not belong to a generation, with the base chains empty: see inForce and quarantine.
func fixed(s *Spec) []nft.Chain {
	chains := []nft.Chain{
		{Name: outputChain, Hook: outputHook},
		{Name: steerChain, Hook: steerHook},
		{Name: inputChain, Hook: inputHook},
		// A container is no router, whatever its sysctls say: what a neighbour sends through it is not its own.
		{Name: forwardChain, Hook: &nft.Hook{Type: "filter", At: "forward", Priority: filterPriority},
			Rules: []nft.Rule{{nft.Count{Counter: refusedCount}}}},
		{Name: arriveChain, Hook: arriveHook, Rules: arrivals()},
		// A socket that is bound to an interface can send loopback addresses there, also when redirected (IPv6).
		{Name: leaveChain, Hook: &nft.Hook{Type: "filter", At: "postrouting", Priority: filterPriority, Accept: true},
			Rules: notOnTheWire(nft.OutIndex)},
		{Name: fresh4Chain, Kind: nft.IPv4, Rules: []nft.Rule{
			ownSource,
			// The kernel makes fragments after these rules. Sockets can ask for their own ones not to be put together
			// before (IP_NODEFRAG in ip(7)): then they belong to no connection, and nat does not see them.
			{nft.Masked{Field: nft.IPFragments, Mask: 0x3fff, Not: true, Value: nft.Number(0)}, refuse},
		}},
		{Name: loopbackChain, Rules: []nft.Rule{
			// What nat has redirected does not have this destination any more. The rest is what nat does not look at.
			{nft.Is(nft.IPDestination, nft.Single(engineResolver)), refuse},
			{nft.Is(nft.FibDestination, nft.Word("local")), nft.Accept},
			{refuse}, // where the default route leads to the loopback, see addRoutes
		}},
		{Name: output6Chain, Kind: nft.IPv6, Rules: []nft.Rule{{refuse}}},
		{Name: redirectedChain, Rules: redirects()},
		{Name: resetsChain, Protocol: "tcp", Rules: resets(s)},
		{Name: hushChain, Rules: []nft.Rule{reset, {nft.Goto(quietChain)}}},
		{Name: quietChain, Rules: quiet()},
		{Name: rejectChain, Rules: []nft.Rule{{nft.Is(nft.Protocol, nft.Word("tcp")), nft.Reject{TCP: true}}, {nft.Reject{}}}},
		{Name: refuseChain, Rules: []nft.Rule{{nft.Jump(hushChain)}, {deny}}},
		{Name: denyChain, Rules: s.account(quietChain, refusedCount, "gate", nft.Goto(rejectChain))},
		{Name: swallowChain, Rules: s.account(quietChain, refusedCount, "gate", nft.Drop)},
		{Name: dnsChain, Rules: []nft.Rule{dnsTo(toProxy)}},
	}
	return slices.Concat(chains, s.Shared.chains(), forListeners(s.Listeners, s.Shared))
}

// redirects lets packets go to a listener that have been redirected to its address. A socket that is bound to another
// interface cannot reach it: its packets would go there with a loopback address, see leaveChain, and nobody would answer.
// Of where they go the rules see how long they may be, which is as long as can be on the loopback, and nowhere else.
func redirects() []nft.Rule {
	const unlimited, long = nft.Number(536), 60000
	return []nft.Rule{
		{nft.Is(nft.CTState, nft.AnyOf{"established"}), nft.Accept},
		{nft.Above{Field: nft.RouteSegment, Value: long}, nft.Accept},
		{nft.Is(nft.RouteSegment, unlimited), nft.Accept},
		{nft.Count{Counter: refusedCount}, nft.Goto(rejectChain)},
	}
}

// Limits of what is logged of each phase, and how much of a packet: the headers and what a reader could recognise.
const (
	logRate, logBurst = 20, 100 // packets, a second and at once
	logBytes          = 160
)

// account counts and logs what is refused, but for what a first chain ends. The message says who has refused.
func (s *Spec) account(first, counter, who string, then nft.Verdict) []nft.Rule {
	return []nft.Rule{
		{nft.Jump(first)},
		{nft.Count{Counter: counter}},
		{nft.Limit{Rate: logRate, Burst: logBurst}, nft.Log{Prefix: tableID.Name + " " + who, Group: s.LogGroup, Snaplen: logBytes}},
		{then},
	}
}

var (
	// refuse lets the reset of a socket that was destroyed reach the other end, and deny does not.
	refuse, deny = nft.Goto(refuseChain), nft.Goto(denyChain)
	toProxy      = nft.Goto(proxyChain)

	loopback = nft.Number(1) // as an interface, the first one of every namespace

	// fresh holds for packets that belong to no connection, or are the first ones of theirs.
	fresh = nft.Is(nft.CTState, nft.AnyOf{"invalid", "new", "untracked"})
	// With its own addresses only, nothing that the workload sends can be made to look like the reply to something
	// that came from outside. An answer to a false source would go there, with what the packet holds.
	ownSource = nft.Rule{nft.Not(nft.FibSource, nft.Word("local")), nft.Goto(swallowChain)}
	reset     = nft.Rule{nft.Masked{Field: nft.TCPFlags, Mask: 7, Words: []nft.Word{"fin", "syn", "rst"}, Value: nft.Word("rst")},
		nft.Is(nft.CTState, nft.AnyOf{"established", "related"}), nft.Jump(resetsChain)}
)

// JoinedMark is that in conntrack of TCP connections that it has not seen the beginning of. What comes in by them is let in,
// but they are none that somebody has opened into the container: a neighbour sends so what belongs to a connection that the
// workload has opened, and that conntrack has forgotten since, for which there are ways.
const JoinedMark = 0x52

// notJoined holds for all others.
var notJoined = nft.Not(nft.CTMark, nft.Hex(JoinedMark))

// arrivals are for first packets of connections that come in, and for no others, as nat's chains are.
func arrivals() []nft.Rule {
	return []nft.Rule{
		// Frames of the workload's own making. They would make it look as if somebody had opened a connection, whom the
		// workload could answer then. What sockets have sent comes from an address of its own.
		{nft.Is(nft.InIndex, loopback), nft.Not(nft.FibSource, nft.Word("local")), nft.Count{Counter: refusedCount}, nft.Drop},
		{nft.Not(nft.InIndex, loopback), nft.Is(nft.Protocol, nft.Word("tcp")), nft.Masked{Field: nft.TCPFlags, Mask: 23,
			Words: []nft.Word{"fin", "syn", "rst", "ack"}, Not: true, Value: nft.Word("syn")}, nft.SetCTMark(JoinedMark)},
	}
}

// notOnTheWire drops loopback addresses that have come or go through another interface.
func notOnTheWire(index *nft.Field) []nft.Rule {
	elsewhere := []nft.Part{nft.Not(index, loopback), nft.Count{Counter: refusedCount}, nft.Drop}
	return []nft.Rule{
		append(nft.Rule{nft.Is(nft.IPDestination, nft.Network(netip.MustParsePrefix("127.0.0.0/8")))}, elsewhere...),
		slices.Concat(nft.Rule{nft.Is(nft.Family, nft.Word("ipv6"))}, toListener[nft.IPv6], elsewhere),
	}
}

// resets accepts TCP segments that are no longer than their headers. Those have 5 words of 4 bytes and the options that
// the kernel sends with a reset: none, a time stamp, or a time stamp and one block of a selective acknowledgement
// (RFC 7323 §3.2, RFC 2018 §3).
func resets(s *Spec) []nft.Rule {
	var rules []nft.Rule
	for _, f := range s.families() {
		header := map[nft.Kind]nft.Number{nft.IPv4: 20, nft.IPv6: 40}[f]
		for _, words := range []nft.Number{5, 8, 11} {
			rules = append(rules, nft.Rule{nft.Is(layouts[f].next, nft.Word("tcp")), nft.Is(nft.TCPOffset, words), nft.Is(nft.Length, header+4*words), nft.Accept})
		}
	}
	return rules
}

// quiet drops what the kernel itself sends and no policy is about: memberships of multicast groups, the search for
// routers, and ICMP errors about packets that came in.
func quiet() []nft.Rule {
	return []nft.Rule{
		{nft.Is(nft.Protocol, nft.Word("igmp")), nft.Drop},
		{nft.Is(nft.ICMP6Type, nft.Range{First: membershipQuery, Last: routerSearch}), nft.Drop},
		{nft.Is(nft.ICMP6Type, membershipReport2), nft.Drop},
		{nft.Is(nft.CTState, nft.AnyOf{"related"}), nft.Drop}, // nothing else is, without helpers
	}
}

// forListeners makes the chains that hold the ports of the listeners: where connections are redirected, and what is
// refused in a quarantine.
func forListeners(l Listeners, shared *Shared) (chains []nft.Chain) {
	proxy := nft.Chain{Name: proxyChain}
	sealed := nft.Chain{Name: sealedChain, Rules: slices.Concat(shared.hiding(), []nft.Rule{
		append(nft.Rule{nft.Is(nft.OutIndex, loopback)}, reset...), // those that answer what is refused here
	}, shared.sealed(), []nft.Rule{
		{nft.Is(nft.CTStatus, nft.AnyOf{"dnat"}), deny},
		{nft.Is(nft.IPDestination, nft.Single(engineResolver)), deny},
	})}
	listeners := map[nft.Kind]*nft.Chain{
		nft.IPv4: {Name: listenersChain + "4", Kind: nft.IPv4},
		nft.IPv6: {Name: listenersChain + "6", Kind: nft.IPv6},
	}
	for _, to := range []struct {
		family   nft.Kind
		protocol nft.Word
		port     uint16
		counter  string
		from, at *nft.Field
	}{
		{nft.IPv4, "tcp", l.TCP4, proxiedCount, nft.TCPSource, nft.TCPPort},
		{nft.IPv4, "udp", l.UDP4, dnsCount, nft.UDPSource, nft.UDPPort},
		{nft.IPv6, "tcp", l.TCP6, proxiedCount, nft.TCPSource, nft.TCPPort},
		{nft.IPv6, "udp", l.UDP6, dnsCount, nft.UDPSource, nft.UDPPort},
	} {
		if to.port == 0 {
			continue
		}
		proxy.Rules = append(proxy.Rules, nft.Rule{nft.Is(nft.Family, word(to.family)), nft.Is(nft.Protocol, to.protocol),
			nft.Count{Counter: to.counter}, nft.Redirect{Port: to.port}})
		local, port := nft.Single(layouts[to.family].loopback), nft.Number(to.port)
		at := listeners[to.family]
		at.Rules = append(at.Rules,
			nft.Rule{nft.Is(to.family.Destination(), local), nft.Is(to.at, port), deny},
			nft.Rule{nft.Is(to.family.Source(), local), nft.Is(to.from, port), deny})
	}
	for _, f := range []nft.Kind{nft.IPv4, nft.IPv6} {
		if len(listeners[f].Rules) > 0 {
			sealed.Rules = append(sealed.Rules, nft.Rule{nft.Is(nft.Family, word(f)), nft.Jump(listeners[f].Name)})
			chains = append(chains, *listeners[f])
		}
	}
	sealed.Rules = append(sealed.Rules,
		append(nft.Rule{fresh}, ownSource...),
		nft.Rule{nft.Is(nft.OutIndex, loopback), nft.Is(nft.FibDestination, nft.Word("local")), nft.Accept},
		nft.Rule{deny})
	return append(chains, proxy, sealed)
}

// arriving refuses loopback addresses from outside, which a sysctl could let in.
func arriving() []nft.Rule { return notOnTheWire(nft.InIndex) }

// quarantined is what the base chains hold while everything is refused but the workload's own loopback.
func quarantined() []nft.Chain {
	return []nft.Chain{
		{Name: outputChain, Rules: []nft.Rule{{nft.Goto(sealedChain)}}},
		{Name: steerChain},
		{Name: inputChain, Rules: []nft.Rule{{nft.Is(nft.InIndex, loopback), nft.Accept}, {nft.Count{Counter: refusedCount}, nft.Drop}}},
	}
}
