package gate

import (
	"net/netip"
	"slices"
)

// fixed makes the chains that do not belong to a generation, with the base chains empty: see inForce and quarantine.
func fixed(s *Spec) []chain {
	return append([]chain{
		{name: outputChain, hook: &hook{kind: "filter", at: "output", priority: filterPriority}},
		{name: steerChain, hook: &hook{kind: "nat", at: "output", priority: steerPriority, accept: true}},
		{name: inputChain, hook: &hook{kind: "filter", at: "input", priority: filterPriority, accept: true}},
		// A container is no router, whatever its sysctls say: what a neighbour sends through it is not its own.
		{name: forwardChain, hook: &hook{kind: "filter", at: "forward", priority: filterPriority},
			rules: []rule{{count{refusedCount}}}},
		// A socket that is bound to an interface can send loopback addresses there, also when redirected (IPv6).
		{name: leaveChain, hook: &hook{kind: "filter", at: "postrouting", priority: filterPriority, accept: true}, rules: []rule{
			{is(ipDestination, loopback4), not(oifname, name("lo")), count{refusedCount}, drop},
			{is(ip6Destination, loopback6), not(oifname, name("lo")), count{refusedCount}, drop},
		}},
		{name: loopbackChain, rules: []rule{
			// What nat has redirected does not have this destination any more. The rest is what nat does not look at.
			{is(ipDestination, network(single(engineResolver))), refuse},
			{is(fibDestination, word("local")), accept},
			{refuse}, // where the default route leads to the loopback, see addRoutes
		}},
		{name: redirectedChain, rules: []rule{
			{is(ipDestination, network(single(ipv4.loopback()))), accept},
			{is(ip6Destination, network(single(ipv6.loopback()))), accept},
		}},
		{name: shapeChain, rules: shape(s)},
		{name: resetsChain, rules: resets(s)},
		{name: quietChain, rules: quiet()},
		{name: rejectChain, rules: []rule{{is(l4proto, word("tcp")), reject{tcp: true}}, {reject{}}}},
		{name: refuseChain, rules: append(account(s), rule{to(rejectChain)})},
		{name: swallowChain, rules: append(account(s), rule{drop})},
	}, forListeners(s.Listeners)...)
}

// account counts and logs what is refused whatever the phase.
func account(s *Spec) []rule {
	return []rule{{jump(quietChain)}, {count{refusedCount}}, {log{prefix: logPrefix("gate"), group: s.LogGroup}}}
}

var (
	// fresh holds for packets that belong to no connection, or are the first ones of theirs.
	fresh = is(ctState, anyOf{"invalid", "new", "untracked"})
	// The kernel makes fragments after these rules. Sockets can ask for their own ones not to be put together before
	// (IP_NODEFRAG in ip(7)): then they belong to no connection, and nat does not see them.
	wholePackets = rule{masked{field: ipFragment, mask: 0x3fff, not: true, value: number(0)}, refuse}
	// With its own addresses only, nothing that the workload sends can be made to look like the reply to something
	// that came from outside. An answer to a false source would go there, with what the packet holds.
	ownSource = rule{not(fibSource, word("local")), to(swallowChain)}
	// The reset of a socket that was destroyed must reach the other end.
	reset = rule{masked{tcpFlags, 7, []word{"fin", "syn", "rst"}, false, word("rst")},
		is(ctState, anyOf{"established", "related"}), jump(resetsChain)}
	ownLoopback = rule{is(oifname, name("lo")), is(fibDestination, word("local")), accept}

	refuse    = to(refuseChain)
	loopback4 = network(netip.MustParsePrefix("127.0.0.0/8"))
	loopback6 = network(netip.PrefixFrom(netip.IPv6Loopback(), 128))
)

// bare refuses IPv4 options and IPv6 extension headers, which could name another destination, and have room for more
// than the rules look at. What the kernel calls a packet's protocol, and its ports, are those behind all such headers,
// so this comes before any rule that lets something through by them.
func bare(s *Spec) []rule {
	if !s.serves(ipv6) {
		return []rule{{not(ipHeaderLength, number(5)), refuse}, {is(nfproto, word("ipv6")), refuse}}
	}
	return []rule{
		{not(ipHeaderLength, number(5)), refuse},
		{not(ip6Next, word("tcp")), not(ip6Next, word("udp")), not(ip6Next, word("ipv6-icmp")), refuse},
	}
}

// shape returns for packets whose destination and port can be judged, and refuses all others. Most packets do not come
// here, see phaseBuilder.shapely.
func shape(s *Spec) []rule {
	rules := []rule{
		{is(ipProtocol, word("tcp")), not(tcpPort, number(0)), back},
		{is(ipProtocol, word("udp")), not(udpPort, number(0)), back},
		{is(icmpType, word("echo-request")), back},
	}
	if s.serves(ipv6) {
		rules = append(rules,
			rule{is(nfproto, word("ipv6")), not(tcpPort, number(0)), back},
			rule{is(nfproto, word("ipv6")), not(udpPort, number(0)), back},
			rule{is(icmp6Type, echo6), back})
	}
	return append(rules, rule{refuse})
}

// resets accepts TCP segments that are no longer than their headers. Those have 5 words of 4 bytes and the options that
// the kernel sends with a reset: none, a time stamp, or a time stamp and one block of a selective acknowledgement
// (RFC 7323 §3.2, RFC 2018 §3).
func resets(s *Spec) []rule {
	var rules []rule
	for _, words := range []number{5, 8, 11} {
		rules = append(rules, rule{is(nfproto, word("ipv4")), is(tcpOffset, words), is(length, 20+4*words), accept})
		if s.serves(ipv6) {
			rules = append(rules, rule{is(nfproto, word("ipv6")), is(tcpOffset, words), is(length, 40+4*words), accept})
		}
	}
	return rules
}

// quiet drops what the kernel itself sends and no policy is about: memberships of multicast groups, the search for
// routers, and ICMP errors about packets that came in.
func quiet() []rule {
	return []rule{
		{is(ipProtocol, word("igmp")), drop},
		{is(icmp6Type, between{membershipQuery, routerSearch}), drop},
		{is(icmp6Type, membershipReport2), drop},
		{is(l4proto, word("icmp")), is(ctState, anyOf{"related"}), drop},
		{is(l4proto, word("ipv6-icmp")), is(ctState, anyOf{"related"}), drop},
	}
}

// forListeners makes the chains that hold the ports of the listeners: where connections are redirected, and what is
// refused in a quarantine.
func forListeners(l Listeners) []chain {
	proxy := chain{name: proxyChain}
	sealed := chain{name: sealedChain, rules: []rule{
		append(rule{is(oifname, name("lo"))}, reset...), // those that answer what is refused here
		{is(ctStatus, anyOf{"dnat"}), refuse},
		{is(ipDestination, network(single(engineResolver))), refuse},
	}}
	for _, to := range []struct {
		family   family
		protocol word
		port     uint16
		counter  string
	}{
		{ipv4, "tcp", l.TCP4, proxiedCount},
		{ipv4, "udp", l.UDP4, dnsCount},
		{ipv6, "tcp", l.TCP6, proxiedCount},
		{ipv6, "udp", l.UDP6, dnsCount},
	} {
		if to.port == 0 {
			continue
		}
		proxy.rules = append(proxy.rules, rule{is(nfproto, to.family.word()), is(l4proto, to.protocol), count{to.counter}, redirect{to.port}})
		from, at := udpSource, udpPort
		if to.protocol == "tcp" {
			from, at = tcpSource, tcpPort
		}
		loopback := network(single(to.family.loopback()))
		sealed.rules = append(sealed.rules,
			rule{is(to.family.destination(), loopback), is(at, number(to.port)), refuse},
			rule{is(to.family.source(), loopback), is(from, number(to.port)), refuse})
	}
	sealed.rules = append(sealed.rules, append(rule{fresh}, ownSource...), ownLoopback, rule{refuse})
	return []chain{proxy, sealed}
}

// inForce is what the base chains hold while some phases are in force: all of them must let a packet through. The
// first one says which generation the common rules are of.
func inForce(phases ...ref) []chain {
	first := phases[0].generation
	output := chain{name: outputChain, rules: []rule{{jump(first.name("common"))}}}
	steer := chain{name: steerChain, rules: []rule{{jump(first.name("common", "steer"))}}}
	input := chain{name: inputChain, rules: arriving()}
	if slices.ContainsFunc(phases, func(r ref) bool { return r.restricted }) {
		input.rules = append(input.rules, rule{is(iifname, name("lo")), accept})
	}
	for _, r := range phases {
		output.rules = append(output.rules, rule{jump(r.chain())})
		steer.rules = append(steer.rules, rule{jump(r.steer())})
		if r.restricted {
			input.rules = append(input.rules, rule{jump(r.input())})
		}
	}
	output.rules = append(output.rules, rule{accept})
	return []chain{output, steer, input}
}

// arriving refuses loopback addresses from outside, which a sysctl could let in.
func arriving() []rule {
	return []rule{
		{is(ipDestination, loopback4), not(iifname, name("lo")), count{refusedCount}, drop},
		{is(ip6Destination, loopback6), not(iifname, name("lo")), count{refusedCount}, drop},
	}
}

// quarantined is what the base chains hold while everything is refused but the workload's own loopback.
func quarantined() []chain {
	return []chain{
		{name: outputChain, rules: []rule{{to(sealedChain)}}},
		{name: steerChain},
		{name: inputChain, rules: []rule{{is(iifname, name("lo")), accept}, {count{refusedCount}, drop}}},
	}
}
