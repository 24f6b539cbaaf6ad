package direct

import (
	"net/netip"
	"slices"

	"sluice/dockernet/nft"
	"sluice/policy"
)

// Plan makes rules of a Spec, and the sets that they look into.
type Plan struct {
	// Sets are those of the rules that were made until now.
	Sets []nft.Set

	spec     *Spec
	families []nft.Kind
	name     func(parts ...string) string
	// By family.
	locals, floors      map[nft.Kind][]finder
	hosts, open, closed map[nft.Kind][]finder // made when they are needed
	phases              [policy.PhaseCount]map[nft.Kind]names
}

// names are the targets of a phase of one family. lifted are those on the floor, of IPv4.
type names struct{ ports, exact, dns, lifted []finder }

// NewPlan makes the sets for the families: IPv4, or both. name makes the names of sets and chains of their parts. Who
// makes rules by [Plan.Steer] too says so.
func NewPlan(s *Spec, families []nft.Kind, steers bool, name func(parts ...string) string) *Plan {
	p := &Plan{spec: s, families: families, name: name, locals: make(map[nft.Kind][]finder), floors: make(map[nft.Kind][]finder),
		hosts: make(map[nft.Kind][]finder), open: make(map[nft.Kind][]finder), closed: make(map[nft.Kind][]finder)}
	// How often rules ask for an address of a packet: once a phase, and where they steer, of targets twice, and of local
	// addresses once more in all.
	once, localUses := 1, policy.PhaseCount
	if steers {
		once, localUses = 2, policy.PhaseCount+1
	}
	hidden := map[nft.Kind]int{nft.IPv4: 0, nft.IPv6: 0} // and for the one that it hides
	if slices.Contains(families, nft.IPv6) {
		hidden[nft.IPv4] = places
	}
	for _, f := range families {
		p.locals[f] = p.find(f, "local", s.local(f), localUses)
		p.floors[f] = p.find(f, "floor", s.floor(f), 1+hidden[f])
	}
	for i := range s.Phases {
		n, phase := policy.Phase(i), &s.Phases[i]
		p.phases[n] = make(map[nft.Kind]names)
		for _, f := range families {
			switch phase.Rules.Mode() {
			case policy.Allowlist:
				t := s.allowed(phase, f)
				uses := once + min(hidden[f], 1)
				if f == nft.IPv6 {
					uses = 1 + once
				}
				own := names{
					ports: p.finders(f, n.String(), t.ports, uses),
					exact: p.finders(f, n.String()+"_exact", t.exact, once),
					dns:   p.find(f, n.String()+"_dns", t.dns, once),
				}
				if hidden[f] > 0 {
					own.lifted = p.finders(f, n.String()+"_lifted", t.on(s.floor(f)), len(forms))
				}
				p.phases[n][f] = own
			case policy.Denylist:
				p.phases[n][f] = names{ports: p.finders(f, n.String(), s.denied(phase, f).ports, once+hidden[f])}
			}
		}
	}
	return p
}

// NewEndpoints makes a Plan for [Plan.Open] and [Plan.Closed] alone, which are the same as those of the whole Plan.
func NewEndpoints(s *Spec, name func(parts ...string) string) *Plan {
	return &Plan{spec: s, name: name, open: make(map[nft.Kind][]finder), closed: make(map[nft.Kind][]finder)}
}

// later makes finders once.
func later(made map[nft.Kind][]finder, f nft.Kind, find func() []finder) []finder {
	if _, ok := made[f]; !ok {
		made[f] = find()
	}
	return made[f]
}

// Host makes rules for packets to the host's addresses, Open and Closed for those to TCP ports that every phase, or
// none, may reach.
func (p *Plan) Host(f nft.Kind, do ...nft.Part) []nft.Rule {
	hosts := later(p.hosts, f, func() []finder { return p.find(f, "host", addresses(p.spec.Host, f), 1) })
	return ask(hosts, f, f.Destination(), nft.AnyPort, then(do...))
}

func (p *Plan) Open(f nft.Kind, do ...nft.Part) []nft.Rule {
	open := later(p.open, f, func() []finder { return p.finders(f, "open", endpoints(p.spec.Open, f), 2) })
	return endpointRules(open, f, do)
}

func (p *Plan) Closed(f nft.Kind, do ...nft.Part) []nft.Rule {
	closed := later(p.closed, f, func() []finder { return p.finders(f, "closed", endpoints(p.spec.Closed, f), 1) })
	return endpointRules(closed, f, do)
}

func endpointRules(finders []finder, f nft.Kind, do []nft.Part) (rules []nft.Rule) {
	for i := range finders {
		rules = append(rules, slices.Concat(finders[i].tests(f.Destination(), nft.AnyPort), []nft.Part{isTCP}, do))
	}
	return rules
}

// NewFloor makes the chains that refuse the addresses of the floor, and IPv6 addresses that hide one, for phases that
// refuse in the same way. Only those are made that one of the phases needs.
func (p *Plan) NewFloor(name string, phases []policy.Phase, refuse func(nft.Kind) nft.Verdict) *Floor {
	fl := &Floor{rules: make(map[nft.Kind][]nft.Rule)}
	open, listed := 0, 0
	for _, n := range phases {
		switch p.spec.Phases[n].Rules.Mode() {
		case policy.Public, policy.Denylist:
			open++
		case policy.Allowlist:
			listed++
		}
	}
	for _, f := range p.families {
		no := then(refuse(f))
		if f == nft.IPv6 && open+listed > 0 {
			fl.hidden = p.name(name, "hidden")
			rules, chains := p.inside([]string{name, "hidden"}, allForms, p.floors[nft.IPv4], no)
			chains = append(chains, nft.Chain{Name: fl.hidden, Kind: f, Rules: append([]nft.Rule{no(isUnreadable...)}, rules...)})
			fl.Chains = append(fl.Chains, chains...)
		}
		rules := ask(p.floors[f], f, f.Destination(), nft.AnyPort, no)
		if open > 1 || open > 0 && f == nft.IPv6 {
			chain := nft.Chain{Name: p.name(name + version(f)), Kind: f, Rules: rules}
			fl.Chains = append(fl.Chains, chain)
			rules = []nft.Rule{{nft.Jump(chain.Name)}}
		}
		if open > 0 && f == nft.IPv6 {
			if on := p.spec.floor(f).within(spansOf(global)); len(on) == 0 {
				// Most addresses are there, and need not be compared with those of the floor.
				rules[0] = append(nft.Rule{isElsewhere}, rules[0]...)
			}
			rules = append(rules, hiding(nft.Jump(fl.hidden))...)
		}
		fl.rules[f] = rules
	}
	return fl
}

// Floor are chains made by [Plan.NewFloor].
type Floor struct {
	Chains []nft.Chain
	rules  map[nft.Kind][]nft.Rule // that refuse what is on the floor
	hidden string                  // a chain
}

// global is where most addresses are, and none of the floor (RFC 4291 §2.4).
var (
	global      = netip.MustParsePrefix("2000::/3")
	isElsewhere = nft.Masked{Field: nft.InNetwork(24, 1), Mask: 0xe0, Not: true, Value: nft.Hex(0x20)}
)

// hiding leads IPv6 addresses that hide an IPv4 one elsewhere.
func hiding(elsewhere nft.Verdict) []nft.Rule {
	var rules []nft.Rule
	for _, w := range wrappers {
		rules = append(rules, nft.Rule{nft.Is(nft.IP6Destination, nft.Network(w)), elsewhere})
	}
	return append(rules, nft.Rule{isatap, elsewhere})
}

func allForms(*form) bool { return true }

func translated(f *form) bool { return f.translated }

// inside makes rules that look for IPv4 addresses inside of IPv6 ones of some forms. There is a chain for each place
// where the address may be. Packets come back from it if nothing is found, or go on to the chain next, if one is given.
func (p *Plan) inside(name []string, which func(*form) bool, finders []finder, do func(...nft.Part) nft.Rule, next ...nft.Part) (rules []nft.Rule, chains []nft.Chain) {
	if len(finders) == 0 {
		return nil, nil
	}
	for i := range forms {
		f := &forms[i]
		if !which(f) {
			continue
		}
		at := p.name(append(slices.Clone(name), map[*nft.Field]string{atEnd: "end", of6to4: "6to4", flipped: "teredo"}[f.inner])...)
		if !slices.ContainsFunc(chains, func(c nft.Chain) bool { return c.Name == at }) {
			asked := ask(finders, nft.IPv6, f.inner, nft.AnyPort, do)
			if next != nil {
				asked = append(asked, nft.Rule(next))
			}
			chains = append(chains, nft.Chain{Name: at, Kind: nft.IPv6, Rules: asked})
		}
		way := nft.Jump(at)
		if next != nil {
			way = nft.Goto(at)
		}
		rules = append(rules, append(f.shape(), way))
	}
	return rules, chains
}

// Named are the addresses that a phase which refuses by default lets through on some port, with those of Open.
func (s *Spec) Named(n policy.Phase, f nft.Kind) []nft.Element {
	p := &s.Phases[n]
	var list spans
	if p.Rules.Mode() == policy.Allowlist {
		t := s.allowed(p, f)
		list = slices.Clone(t.dns)
		for _, ports := range []map[uint16]spans{t.ports, t.exact} {
			for _, s := range ports {
				list = append(list, s...)
			}
		}
	}
	for _, a := range s.Open {
		if kindOf(a.Addr()) == f {
			list = append(list, span{a.Addr(), a.Addr()})
		}
	}
	var elements []nft.Element
	for _, s := range list.merged() {
		elements = append(elements, nft.Element{First: s.first, Last: s.last})
	}
	return elements
}

// Outcomes say what rules do.
type Outcomes struct {
	// Refuse is for what is not on the direct plane.
	Refuse nft.Verdict
	// Let makes a rule for what is, if tests hold.
	Let func(tests ...nft.Part) nft.Rule
	// Redirected is what to do with TCP that goes to the proxy if the phase lets it through, so that only connections
	// can be on the direct plane that were open before the phase came. It must not end the rules for these.
	Redirected []nft.Part
	// Floor was made for this phase, and refuses in the same way.
	Floor *Floor
}

// Judge makes the rules of a phase for one family: for TCP, UDP and echo requests, with a destination port that is
// not 0, to something else than the container itself. They refuse or let through, all of them; further chains are
// those that the rules lead to.
func (p *Plan) Judge(n policy.Phase, f nft.Kind, o Outcomes) (rules []nft.Rule, chains []nft.Chain) {
	j := &judge{Plan: p, Outcomes: o, phase: n, of: &p.spec.Phases[n], family: f}
	switch j.of.Rules.Mode() {
	case policy.Allowlist:
		rules = j.allowlist()
	case policy.Public, policy.Denylist:
		rules = j.denylist()
	default:
		rules = []nft.Rule{{o.Refuse}}
	}
	return rules, j.chains
}

// judge makes the rules of one phase for one family.
type judge struct {
	*Plan
	Outcomes
	phase  policy.Phase
	of     *Phase
	family nft.Kind
	chains []nft.Chain
}

func (j *judge) no(tests ...nft.Part) nft.Rule { return then(j.Refuse)(tests...) }

var isTCP = nft.Is(nft.Protocol, nft.Word("tcp"))

// dns refuses port 53, but for what is named with that very port.
func (j *judge) dns(named []finder) []nft.Rule {
	is53 := []nft.Part{nft.Is(nft.AnyPort, nft.Number(dnsPort)), nft.Not(nft.Protocol, echo[j.family])}
	return append(ask(named, j.family, j.family.Destination(), nft.AnyPort, func(tests ...nft.Part) nft.Rule {
		return j.Let(slices.Concat(is53, tests)...)
	}), j.no(is53...))
}

// ask makes the rules that ask about the destination of packets.
func (j *judge) ask(finders []finder, do func(...nft.Part) nft.Rule) []nft.Rule {
	return ask(finders, j.family, j.family.Destination(), nft.AnyPort, do)
}

// allowlist lets the targets through.
func (j *judge) allowlist() []nft.Rule {
	own, four := j.phases[j.phase][j.family], j.phases[j.phase][nft.IPv4]
	rules := j.dns(own.dns)
	if !j.spec.StraightTCP() {
		// To local addresses only.
		name := j.name(j.phase.String(), "local"+version(j.family))
		j.chain(name, append(j.ask(j.locals[j.family], then(nft.Return)), nft.Rule{j.Refuse}))
		rules = append(rules, nft.Rule{isTCP, nft.Jump(name)})
	}
	named := j.ask(own.ports, j.Let)
	if j.family == nft.IPv6 {
		rules = append(rules, j.ask(own.exact, j.Let)...)
		if len(four.ports)+len(named) > 0 {
			// Other addresses shall not pay for those that hide an IPv4 one. TCP to these is judged by the proxy.
			rules = append(rules, hiding(nft.Goto(j.wrapped(four, named)))...)
		}
	}
	return slices.Concat(rules, named, []nft.Rule{{j.Refuse}})
}

// wrapped makes the chains for addresses that hide an IPv4 one. They let through what is translated into a target, and
// what is named itself, unless the hidden address is on the floor. The first of them is returned.
func (j *judge) wrapped(four names, named []nft.Rule) string {
	phase, name := j.phase.String(), j.name(j.phase.String(), "wrapped")
	unlifted := []nft.Rule{{nft.Jump(j.Floor.hidden)}}
	judged := append(named, nft.Rule{j.Refuse})
	if len(four.lifted) > 0 {
		// Past the floor, if the hidden address is a target itself. That does not allow it, for behind the ends of
		// tunnels there are other hosts.
		past := j.name(phase, "lifted")
		j.chain(past, judged)
		var lifted []nft.Rule
		for i := range forms {
			lifted = append(lifted, ask(four.lifted, nft.IPv6, forms[i].inner, nft.AnyPort, func(tests ...nft.Part) nft.Rule {
				return slices.Concat(forms[i].shape(), tests, []nft.Part{nft.Goto(past)})
			})...)
		}
		unlifted, judged = append(lifted, unlifted...), []nft.Rule{{nft.Goto(past)}}
	}
	rest := slices.Concat(unlifted, judged)
	if len(four.ports) == 0 {
		j.chain(name, append(j.redirected(), rest...))
		return name
	}
	after := j.name(phase, "wrapped", "rest")
	rules, chains := j.inside([]string{phase, "wrapped"}, translated, four.ports, j.Let, nft.Goto(after))
	j.chains = append(j.chains, chains...)
	j.chain(after, rest)
	j.chain(name, slices.Concat(j.redirected(), rules, []nft.Rule{{nft.Goto(after)}}))
	return name
}

func (j *judge) redirected() []nft.Rule {
	if j.Redirected == nil {
		return nil
	}
	return []nft.Rule{append(nft.Rule{isTCP}, j.Redirected...)}
}

func (j *judge) chain(name string, rules []nft.Rule) {
	j.chains = append(j.chains, nft.Chain{Name: name, Kind: j.family, Rules: rules})
}

// denylist refuses the floor and the targets; a public policy is one without targets.
func (j *judge) denylist() []nft.Rule {
	own, four := j.phases[j.phase][j.family], j.phases[j.phase][nft.IPv4]
	rules := append(j.dns(nil), j.Floor.rules[j.family]...)
	rules = append(rules, j.ask(own.ports, j.no)...)
	if j.family == nft.IPv6 && len(four.ports) > 0 {
		name := j.name(j.phase.String(), "wrapped")
		wrapped, chains := j.inside([]string{j.phase.String(), "wrapped"}, allForms, four.ports, j.no)
		j.chains = append(j.chains, chains...)
		j.chain(name, wrapped)
		rules = append(rules, hiding(nft.Jump(name))...)
	}
	local := j.ask(j.locals[j.family], j.Let)
	switch {
	case j.spec.Internal:
		return append(append(rules, local...), nft.Rule{j.Refuse})
	case j.of.deniesNames():
		// QUIC hides the name, and TCP that was not redirected has not been asked for it.
		rules = append(append(rules, local...), j.no(nft.Is(nft.UDPPort, nft.Number(443))), j.no(isTCP))
	case j.spec.Proxies(j.phase):
		rules = slices.Concat(rules, local, j.redirected())
	}
	return append(rules, j.Let())
}

// Steer makes the rules of a phase for the first segments of TCP connections, of one family, to other ports than 53:
// stay is for those that are judged here, and what hides an IPv4 address goes to rest. So does what is left. There the
// rules of [Plan.Stay] come first, and then the proxy if the phase has one, see [Spec.Proxies].
func (p *Plan) Steer(n policy.Phase, f nft.Kind, stay nft.Part, rest nft.Verdict) []nft.Rule {
	own := p.phases[n][f]
	ask := func(finders []finder) []nft.Rule { return ask(finders, f, f.Destination(), nft.TCPPort, then(stay)) }
	if p.spec.Phases[n].Rules.Mode() != policy.Allowlist {
		return ask(own.ports) // to be refused
	}
	if !p.spec.StraightTCP() {
		return nil
	}
	rules := ask(own.exact)
	if f == nft.IPv6 && len(own.ports) > 0 {
		rules = append(rules, hiding(rest)...)
	}
	return append(rules, ask(own.ports)...)
}

// Stay makes the rules for the same segments that hold for all phases: those to local addresses are judged here.
func (p *Plan) Stay(f nft.Kind, stay nft.Part) []nft.Rule {
	return ask(p.locals[f], f, f.Destination(), nft.TCPPort, then(stay))
}

// DNS makes rules for packets to port 53 of servers that a phase names with that very port.
func (p *Plan) DNS(n policy.Phase, f nft.Kind, do ...nft.Part) []nft.Rule {
	return ask(p.phases[n][f].dns, f, f.Destination(), nft.AnyPort, then(do...))
}
