package gate

import (
	"fmt"
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

// judge makes the rules of the phase's chain: replies, port 53 for what can be judged, then the rules given. These are
// in a chain of their own for each family, so that most packets come there at once.
func (p *phaseBuilder) judge(dns verdict, targets map[family][]rule) []rule {
	filter := p.replies()
	var rest []rule
	for _, f := range p.families() {
		name := p.name(fmt.Sprintf("targets%d", f))
		p.chain(name, targets[f]...)
		filter = append(filter, p.shapely(f, "tcp", tcpPort, to(name)), p.shapely(f, "udp", udpPort, to(name)))
		rest = append(rest, rule{is(nfproto, f.word()), to(name)})
	}
	return slices.Concat(filter, []rule{{jump(shapeChain)}}, dnsTo(dns), rest, []rule{{p.refuse}})
}

// shapely holds for packets that shape has nothing against, on other ports than that of DNS.
func (p *phaseBuilder) shapely(f family, protocol word, port field, do verdict) rule {
	r := rule{is(ip6Next, protocol)}
	if f == ipv4 {
		r = rule{is(ipProtocol, protocol)}
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
		{is(ip6Next, word("ipv6-icmp")), is(icmp6Type, between{routerSearch, neighbourAnswer}), back},
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
	targets := make(map[family][]rule)
	var dns, local, straight, wrapped, lifted []rule
	for _, f := range p.families() {
		within := every(f)
		if p.Internal {
			within = p.near(f)
		}
		t := p.allowed(p.of, f, within)
		dns = append(dns, ask(p.find(f, p.phase.String()+"_dns", t.dns, 2), nil, bothPorts, leave)...)
		local = append(local, ask(p.locals[f], nil, onlyTCP, leave)...)
		if !p.straightTCP() {
			targets[f] = []rule{p.localTCP(f)}
		}
		uses := 2
		if p.serves(ipv6) {
			uses = 3 // there is the chain "wrapped"
			if f == ipv4 {
				uses += translators - 1
			}
		}
		finders := p.finders(f, p.phase.String(), t.ports, uses)
		named := ask(finders, nil, bothPorts, p.let)
		direct := ask(finders, nil, onlyTCP, leave)
		if f == ipv4 {
			targets[f] = append(targets[f], named...)
			straight = append(straight, direct...)
			for i := range forms {
				if forms[i].translated && p.serves(ipv6) {
					wrapped = append(wrapped, ask(finders, &forms[i], onlyUDP, p.let)...)
				}
			}
			lifted = p.lifted(t)
			continue
		}
		exact := p.finders(f, p.phase.String()+"_exact", t.exact, 2)
		targets[f] = append(targets[f], ask(exact, nil, bothPorts, p.let)...)
		straight = append(straight, ask(exact, nil, onlyTCP, leave)...)
		if direct != nil {
			// TCP to addresses that hide an IPv4 one is judged by the proxy, unless the very address is named.
			straight = slices.Concat(straight, p.hiding(to(proxyChain)), direct)
		}
		if len(wrapped)+len(named) > 0 {
			// Other addresses shall not pay for those that hide an IPv4 one.
			name, judged := p.name("wrapped"), slices.Concat(named, []rule{{p.refuse}})
			if lifted != nil {
				p.chain(p.name("lifted"), judged...)
			}
			p.chain(name, slices.Concat(wrapped, lifted, []rule{{jump(p.builder.name("floor", "hidden"))}}, judged)...)
			targets[f] = append(targets[f], p.hiding(to(name))...)
		}
		targets[f] = append(targets[f], named...)
	}
	for f := range targets {
		targets[f] = append(targets[f], rule{p.refuse})
	}
	filterDNS, steerDNS := p.refuse, to(proxyChain)
	if dns != nil {
		// What is named with port 53 goes straight, and nothing else does on that port.
		filterDNS, steerDNS = to(p.name("dns")), to(p.name("steer", "dns"))
		p.chain(p.name("dns"), slices.Concat(dns, []rule{{p.refuse}})...)
		p.chain(p.name("steer", "dns"), slices.Concat(dns, []rule{{to(proxyChain)}})...)
	}
	if !p.straightTCP() {
		straight = nil
	}
	steer = slices.Concat(dnsTo(steerDNS), []rule{{not(l4proto, word("tcp")), back}}, local, straight, p.toProxy())
	return p.judge(filterDNS, targets), steer
}

// lifted leads IPv6 addresses past the floor whose IPv4 one is on it, but is a target itself. It does not allow them:
// that takes a target of their own, for behind the ends of tunnels there are other hosts.
func (p *phaseBuilder) lifted(t *targets) []rule {
	if !p.serves(ipv6) {
		return nil
	}
	named := make(map[uint16]spans)
	for port, s := range t.ports {
		if on := s.within(p.floor(ipv4)); len(on) > 0 {
			named[port] = on
		}
	}
	finders := p.finders(ipv4, p.phase.String()+"_lifted", named, len(forms))
	var rules []rule
	for i := range forms {
		rules = append(rules, ask(finders, &forms[i], bothPorts, then(to(p.name("lifted"))))...)
	}
	return rules
}

// localTCP lets TCP go straight only to local addresses that are targets.
func (p *phaseBuilder) localTCP(f family) rule {
	name := p.name(fmt.Sprintf("local%d", f))
	finders := p.finders(f, p.phase.String()+"_local", p.allowed(p.of, f, p.local(f)).ports, 1)
	p.chain(name, append(ask(finders, nil, onlyTCP, p.let), rule{p.refuse})...)
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
	targets := make(map[family][]rule)
	var local, straight, wrapped []rule
	for _, f := range p.families() {
		uses := 3
		if f == ipv4 && p.serves(ipv6) {
			uses += len(forms)
		}
		finders := p.finders(f, p.phase.String(), p.denied(p.of, f).ports, uses)
		local = append(local, ask(p.locals[f], nil, onlyTCP, leave)...)
		straight = append(straight, ask(finders, nil, onlyTCP, leave)...) // to be refused
		targets[f] = append([]rule{{jump(p.builder.name(fmt.Sprintf("floor%d", f)))}}, ask(finders, nil, bothPorts, p.no)...)
		for i := range forms {
			if f == ipv4 && p.serves(ipv6) {
				wrapped = append(wrapped, ask(finders, &forms[i], bothPorts, p.no)...)
			}
		}
		if f == ipv6 && wrapped != nil {
			p.chain(p.name("wrapped"), wrapped...)
			targets[f] = append(targets[f], p.hiding(jump(p.name("wrapped")))...)
		}
		if rest := p.rest(f); rest != nil {
			targets[f] = slices.Concat(targets[f], ask(p.locals[f], nil, bothPorts, p.let), rest)
		}
		if !p.Internal {
			targets[f] = append(targets[f], p.let())
		}
	}
	steer = dnsTo(to(proxyChain))
	if p.proxies(p.of) {
		steer = slices.Concat(steer, []rule{{not(l4proto, word("tcp")), back}}, local, straight, p.toProxy())
	}
	return p.judge(p.refuse, targets), steer
}

// rest is what a public policy or a denylist refuses although no target does, but for local addresses.
func (p *phaseBuilder) rest(f family) []rule {
	switch {
	case p.Internal:
		return []rule{{p.refuse}}
	case p.of.Rules.Mode() == policy.Denylist && p.of.Rules.HasNameRules():
		// QUIC hides the name, and TCP that was not redirected has not been asked for it.
		return []rule{{is(udpPort, number(443)), p.refuse}, {is(l4proto, word("tcp")), p.refuse}}
	case p.proxies(p.of) && !p.routes(f):
		// Other TCP that is not redirected was open before the phase came.
		return []rule{{is(l4proto, word("tcp")), is(ctState, anyOf{"new"}), p.refuse}}
	}
	return nil
}
