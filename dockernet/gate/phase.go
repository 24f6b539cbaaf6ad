package gate

import (
	"slices"

	"sluice/policy"
)

// phaseBuilder makes the chains of one phase.
type phaseBuilder struct {
	*builder
	phase  policy.Phase
	of     *Phase
	refuse verdict
}

// phase makes the chains of a phase: the filter's, that of new connections, and what both need.
func (b *builder) phase(n policy.Phase) {
	p := &phaseBuilder{builder: b, phase: n, of: &b.Phases[n]}
	p.refuse = to(p.name("refuse"))
	p.chain(p.name("refuse"),
		rule{jump(quietChain)},
		rule{count{refusedCounter(n)}},
		rule{log{prefix: logPrefix(n.String()), group: b.LogGroup}},
		rule{to(rejectChain)})
	var filter, steer []rule
	switch p.of.Rules.Mode() {
	case policy.Allowlist:
		filter, steer = p.allowlist()
	case policy.Public, policy.Denylist:
		filter, steer = p.denylist()
	default:
		filter, steer = append(p.replies(), rule{p.refuse}), dnsTo(to(proxyChain))
	}
	r := b.ref(b.generation, n)
	p.chain(r.chain(), filter...)
	p.chain(r.steer(), steer...)
	if r.restricted {
		p.chain(r.input(), p.input()...)
	}
}

// logPrefix is what NFLOG messages carry: who has refused. The kernel allows 127 bytes.
func logPrefix(who string) string { return tableName + " " + who }

func (p *phaseBuilder) name(parts ...string) string {
	return p.builder.name(append([]string{p.phase.String()}, parts...)...)
}

// let counts a packet of the direct plane and leaves the chain.
func (p *phaseBuilder) let(tests ...part) rule {
	return then(count{directCounter(p.phase)}, back)(tests...)
}

// no refuses a packet.
func (p *phaseBuilder) no(tests ...part) rule { return then(p.refuse)(tests...) }

// leave leaves a new connection as it is.
func leave(tests ...part) rule { return then(back)(tests...) }

// dnsTo sends what goes to port 53 elsewhere.
func dnsTo(elsewhere verdict) []rule {
	return []rule{{is(tcpPort, number(dnsPort)), elsewhere}, {is(udpPort, number(dnsPort)), elsewhere}}
}

// judge makes the rules of the phase's chain: replies, port 53 for what can be judged, then the rules given, which are in
// a chain of their own so that most packets come there at once.
func (p *phaseBuilder) judge(dns verdict, rules []rule) []rule {
	targets := p.name("targets")
	p.chain(targets, rules...)
	filter := p.replies()
	for _, f := range p.families() {
		filter = append(filter, p.shapely(f, "tcp", tcpPort, to(targets)), p.shapely(f, "udp", udpPort, to(targets)))
	}
	filter = append(filter, rule{jump(shapeChain)})
	return slices.Concat(filter, dnsTo(dns), []rule{{to(targets)}})
}

// shapely holds for packets that shape has nothing against, on other ports than that of DNS.
func (p *phaseBuilder) shapely(f family, protocol word, port field, do verdict) rule {
	r := rule{is(ip6Next, protocol)}
	if f == ipv4 {
		r = rule{is(ipHeaderLength, number(5)), is(ipProtocol, protocol)}
	}
	return append(r, not(port, number(0)), not(port, number(dnsPort)), do)
}

// replies lets connections into the container work, those that the phase lets in.
func (p *phaseBuilder) replies() []rule {
	reply := is(ctDirection, word("reply"))
	switch p.of.Inbound {
	case policy.InboundAll:
		return []rule{{reply, back}}
	case policy.InboundHost:
		var rules []rule
		for _, f := range p.families() {
			rules = append(rules, ask(p.hosts[f], nil, bothPorts, func(tests ...part) rule {
				return append(append(rule{reply}, tests...), back)
			})...)
		}
		return rules
	default:
		return nil
	}
}

// input refuses connections into the container.
func (p *phaseBuilder) input() []rule {
	rules := []rule{
		{is(ctDirection, word("reply")), back},
		{is(icmp6Type, between{routerSearch, neighbourAnswer}), back},
	}
	if p.of.Inbound == policy.InboundHost {
		for _, f := range p.families() {
			for _, a := range addresses(p.Host, f) {
				rules = append(rules, rule{is(f.source(), network(single(a.first))), back})
			}
		}
	}
	return append(rules, rule{p.refuse})
}

func (f family) word() word {
	if f == ipv4 {
		return "ipv4"
	}
	return "ipv6"
}

// allowlist lets the targets through; to the proxy goes what is left of TCP.
func (p *phaseBuilder) allowlist() (filter, steer []rule) {
	var named4, named6, exact, dns, local []rule
	var wrapped, steer4, steer6, steerExact []rule
	prefix := p.phase.String()
	for _, f := range p.families() {
		within := spans(nil)
		if p.Internal {
			within = p.near(f)
		}
		t := p.allowed(p.of, f, within)
		dns = append(dns, ask(p.find(f, prefix+"_dns", t.dns, 2), nil, bothPorts, leave)...)
		local = append(local, ask(p.locals[f], nil, onlyTCP, leave)...)
		switch f {
		case ipv4:
			uses := 2
			if p.serves(ipv6) {
				uses += translators
			}
			finders := p.finders(f, prefix, t.ports, uses)
			named4 = ask(finders, nil, bothPorts, p.let)
			steer4 = ask(finders, nil, onlyTCP, leave)
			for i := range forms {
				if forms[i].translated && p.serves(ipv6) {
					// TCP goes through the proxy, see below.
					wrapped = append(wrapped, ask(finders, &forms[i], onlyUDP, p.let)...)
				}
			}
		case ipv6:
			finders := p.finders(f, prefix, t.ports, 3)
			named6 = ask(finders, nil, bothPorts, p.let)
			steer6 = ask(finders, nil, onlyTCP, leave)
			finders = p.finders(f, prefix+"_exact", t.exact, 2)
			exact = ask(finders, nil, bothPorts, p.let)
			steerExact = ask(finders, nil, onlyTCP, leave)
		}
	}
	filterDNS, steerDNS := p.refuse, to(proxyChain)
	if dns != nil {
		// What is named with port 53 goes straight, and nothing else does on that port.
		filterDNS, steerDNS = to(p.name("dns")), to(p.name("steer", "dns"))
		p.chain(p.name("dns"), append(dns, rule{p.refuse})...)
		p.chain(p.name("steer", "dns"), append(dns, rule{to(proxyChain)})...)
	}
	steer = dnsTo(steerDNS)
	steer = append(append(steer, rule{not(l4proto, word("tcp")), back}), local...)
	if !p.straightTCP() {
		filter = append(filter, p.localTCP())
	} else {
		steer = slices.Concat(steer, steer4, steerExact)
		if steer6 != nil {
			// TCP to IPv6 addresses that hide an IPv4 one is judged by the proxy, unless the very address is named.
			steer = append(append(steer, p.hiding(to(proxyChain))...), steer6...)
		}
	}
	filter = slices.Concat(filter, named4, exact)
	if len(wrapped)+len(named6) > 0 {
		// Other addresses shall not pay for those that hide an IPv4 one.
		name := p.name("wrapped")
		p.chain(name, slices.Concat(wrapped, []rule{{jump(p.builder.name("floor", "hidden"))}}, named6, []rule{{p.refuse}})...)
		filter = append(filter, p.hiding(to(name))...)
	}
	filter = slices.Concat(filter, named6, []rule{{p.refuse}})
	return p.judge(filterDNS, filter), append(steer, p.toProxy()...)
}

// localTCP lets TCP go straight only to local addresses that are targets.
func (p *phaseBuilder) localTCP() rule {
	name := p.name("local")
	var rules []rule
	for _, f := range p.families() {
		t := p.allowed(p.of, f, p.local(f))
		rules = append(rules, ask(p.finders(f, p.phase.String()+"_local", t.ports, 1), nil, onlyTCP, p.let)...)
	}
	p.chain(name, append(rules, rule{p.refuse})...)
	return rule{is(l4proto, word("tcp")), to(name)}
}

// toProxy ends the steering of a phase whose TCP goes through the proxy by default.
func (p *phaseBuilder) toProxy() []rule {
	var rules []rule
	for _, f := range p.families() {
		if !p.routes(f) {
			rules = append(rules, rule{is(nfproto, f.word()), back})
		}
	}
	return append(rules, rule{to(proxyChain)})
}

// denylist refuses the floor and the targets; a public policy is one without targets.
func (p *phaseBuilder) denylist() (filter, steer []rule) {
	filter = []rule{{jump(p.builder.name("floor"))}}
	var local, denied, wrapped, steerLocal, steerDenied []rule
	for _, f := range p.families() {
		local = append(local, ask(p.locals[f], nil, bothPorts, p.let)...)
		steerLocal = append(steerLocal, ask(p.locals[f], nil, onlyTCP, leave)...)
		uses := 3
		if f == ipv4 && p.serves(ipv6) {
			uses += len(forms)
		}
		finders := p.finders(f, p.phase.String(), p.denied(p.of, f).ports, uses)
		denied = append(denied, ask(finders, nil, bothPorts, p.no)...)
		steerDenied = append(steerDenied, ask(finders, nil, onlyTCP, leave)...)
		for i := range forms {
			if f == ipv4 && p.serves(ipv6) {
				wrapped = append(wrapped, ask(finders, &forms[i], bothPorts, p.no)...)
			}
		}
	}
	filter = append(filter, denied...)
	if wrapped != nil {
		p.chain(p.name("wrapped"), wrapped...)
		filter = append(filter, p.hiding(jump(p.name("wrapped")))...)
	}
	steer = dnsTo(to(proxyChain))
	proxies := p.proxies(p.of)
	if proxies {
		steer = slices.Concat(steer, []rule{{not(l4proto, word("tcp")), back}}, steerLocal, steerDenied, p.toProxy())
	}
	var rest []rule // what is refused but for local addresses
	names := p.of.Rules.Mode() == policy.Denylist && p.of.Rules.HasNameRules()
	switch {
	case p.Internal:
		rest = []rule{{p.refuse}}
	case names:
		// QUIC hides the name, and TCP that was not redirected has not been asked for it.
		rest = []rule{{is(udpPort, number(443)), p.refuse}, {is(l4proto, word("tcp")), p.refuse}}
	case proxies:
		// TCP that is not redirected was open before the phase came, or has no way through the proxy.
		for _, f := range p.families() {
			if !p.routes(f) {
				rest = append(rest, rule{is(nfproto, f.word()), is(l4proto, word("tcp")), is(ctState, anyOf{"new"}), p.refuse})
			}
		}
	}
	if rest != nil {
		filter = slices.Concat(filter, local, rest)
	}
	if !p.Internal {
		filter = append(filter, p.let())
	}
	return p.judge(p.refuse, filter), steer
}
