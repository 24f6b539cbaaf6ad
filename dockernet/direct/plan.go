package direct

import (
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
	locals   map[nft.Kind][]finder
	floors   map[nft.Kind][]finder
	phases   [policy.PhaseCount]map[nft.Kind]names
}

// names are the targets of a phase of one family.
type names struct{ ports, exact, dns []finder }

// NewPlan makes the sets for the families: IPv4, or both. name makes the names of sets and chains of their parts.
func NewPlan(s *Spec, families []nft.Kind, name func(parts ...string) string) *Plan {
	p := &Plan{spec: s, families: families, name: name, locals: make(map[nft.Kind][]finder), floors: make(map[nft.Kind][]finder)}
	withIPv6 := slices.Contains(families, nft.IPv6)
	for _, f := range families {
		p.locals[f] = p.find(f, "local", s.local(f), policy.PhaseCount)
		uses := 1
		if f == nft.IPv4 && withIPv6 {
			uses += len(forms)
		}
		p.floors[f] = p.find(f, "floor", s.floor(f), uses)
	}
	for i := range s.Phases {
		n, phase := policy.Phase(i), &s.Phases[i]
		p.phases[n] = make(map[nft.Kind]names)
		for _, f := range families {
			uses := 1
			switch phase.Rules.Mode() {
			case policy.Allowlist:
				if f == nft.IPv4 && withIPv6 {
					uses += translators
				} else if f == nft.IPv6 {
					uses = 2
				}
				t := s.allowed(phase, f)
				p.phases[n][f] = names{
					ports: p.finders(f, n.String(), t.ports, uses),
					exact: p.finders(f, n.String()+"_exact", t.exact, 1),
					dns:   p.find(f, n.String()+"_dns", t.dns, 2),
				}
			case policy.Denylist:
				if f == nft.IPv4 && withIPv6 {
					uses += len(forms)
				}
				p.phases[n][f] = names{ports: p.finders(f, n.String(), s.denied(phase, f).ports, uses)}
			}
		}
	}
	return p
}

// Host makes rules for packets to the host's addresses, Open and Closed for those to TCP ports that every phase, or
// none, may reach.
func (p *Plan) Host(f nft.Kind, do ...nft.Part) []nft.Rule {
	return ask(p.find(f, "host", addresses(p.spec.Host, f), 1), f, nil, bothPorts, then(do...))
}

func (p *Plan) Open(f nft.Kind, do ...nft.Part) []nft.Rule {
	return ask(p.finders(f, "open", endpoints(p.spec.Open, f), 1), f, nil, onlyTCP, then(do...))
}

func (p *Plan) Closed(f nft.Kind, do ...nft.Part) []nft.Rule {
	return ask(p.finders(f, "closed", endpoints(p.spec.Closed, f), 1), f, nil, onlyTCP, then(do...))
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
		var rules []nft.Rule
		no := then(refuse(f))
		if f == nft.IPv6 && open+listed > 0 {
			hidden := []nft.Rule{no(isUnreadable...)}
			for i := range forms {
				hidden = append(hidden, ask(p.floors[nft.IPv4], f, &forms[i], bothPorts, no)...)
			}
			fl.hidden = p.name(name, "hidden")
			fl.Chains = append(fl.Chains, nft.Chain{Name: fl.hidden, Kind: f, Rules: hidden})
			rules = hiding(nft.Jump(fl.hidden))
		}
		rules = append(ask(p.floors[f], f, nil, bothPorts, no), rules...)
		if open > 1 {
			chain := nft.Chain{Name: p.name(name + version(f)), Kind: f, Rules: rules}
			fl.Chains = append(fl.Chains, chain)
			rules = []nft.Rule{{nft.Jump(chain.Name)}}
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

// hiding leads IPv6 addresses that hide an IPv4 one elsewhere.
func hiding(elsewhere nft.Verdict) []nft.Rule {
	var rules []nft.Rule
	for _, w := range wrappers {
		rules = append(rules, nft.Rule{nft.Is(nft.IP6Destination, nft.Network(w)), elsewhere})
	}
	return append(rules, nft.Rule{isISATAP, elsewhere})
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
	var let, refuse []nft.Rule
	for _, port := range bothPorts {
		is53 := nft.Is(port, nft.Number(dnsPort))
		let = append(let, ask(named, j.family, nil, bothPorts, func(tests ...nft.Part) nft.Rule {
			return j.Let(append([]nft.Part{is53}, tests...)...)
		})...)
		refuse = append(refuse, j.no(is53))
	}
	return append(let, refuse...)
}

// allowlist lets the targets through.
func (j *judge) allowlist() []nft.Rule {
	own, four := j.phases[j.phase][j.family], j.phases[j.phase][nft.IPv4]
	rules := j.dns(own.dns)
	if !j.spec.StraightTCP() {
		// To local addresses only.
		name := j.name(j.phase.String(), "local"+version(j.family))
		local := ask(j.locals[j.family], j.family, nil, bothPorts, then(nft.Return))
		j.chain(name, append(local, nft.Rule{j.Refuse}))
		rules = append(rules, nft.Rule{isTCP, nft.Jump(name)})
	}
	named := ask(own.ports, j.family, nil, bothPorts, j.Let)
	if j.family == nft.IPv6 {
		rules = append(rules, ask(own.exact, nft.IPv6, nil, bothPorts, j.Let)...)
		var translated []nft.Rule
		for i := range forms {
			if forms[i].translated {
				translated = append(translated, ask(four.ports, nft.IPv6, &forms[i], bothPorts, j.Let)...)
			}
		}
		if len(translated)+len(named) > 0 {
			// Other addresses shall not pay for those that hide an IPv4 one. TCP to these is judged by the proxy.
			name := j.name(j.phase.String(), "wrapped")
			j.chain(name, slices.Concat(j.redirected(), translated, []nft.Rule{{nft.Jump(j.Floor.hidden)}}, named, []nft.Rule{{j.Refuse}}))
			rules = append(rules, hiding(nft.Goto(name))...)
		}
	}
	return slices.Concat(rules, named, []nft.Rule{{j.Refuse}})
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
	rules = append(rules, ask(own.ports, j.family, nil, bothPorts, j.no)...)
	if j.family == nft.IPv6 {
		var wrapped []nft.Rule
		for i := range forms {
			wrapped = append(wrapped, ask(four.ports, nft.IPv6, &forms[i], bothPorts, j.no)...)
		}
		if wrapped != nil {
			name := j.name(j.phase.String(), "wrapped")
			j.chain(name, wrapped)
			rules = append(rules, hiding(nft.Jump(name))...)
		}
	}
	local := ask(j.locals[j.family], j.family, nil, bothPorts, j.Let)
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
