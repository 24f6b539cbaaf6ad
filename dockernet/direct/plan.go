package direct

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice/dockernet/nft"
	"sluice/policy"
)

// Names of the sets that all phases share, see [Plan.Find].
const (
	// Local are destinations that are on the direct plane whatever the mode.
	Local = "local"
	// Host are the host's addresses.
	Host = "host"
	// Open and Closed are addresses with the TCP ports that every phase, or none, may reach.
	Open, Closed = "open", "closed"

	floorSet = "floor"
	// wrapperSet holds the prefixes of IPv6 addresses that hide an IPv4 one.
	wrapperSet = "wrapper"
)

// Plan has the sets of a Spec, and makes rules that look into them.
type Plan struct {
	Sets   []nft.Set
	spec   *Spec
	name   func(parts ...string) string
	phases [policy.PhaseCount]map[nft.Kind]names
}

// names are the sets of a phase's targets of one family, "" where there is none.
type names struct{ any, host, net, dns, exact, exactPort string }

func (n names) byAddress() []string { return []string{n.any} }
func (n names) byPort() []string    { return []string{n.host, n.net} }

// NewPlan makes the sets for the families: IPv4, or both. name makes the names of sets and chains of their parts.
func NewPlan(s *Spec, families []nft.Kind, name func(parts ...string) string) *Plan {
	p := &Plan{spec: s, name: name}
	for _, f := range families {
		if f == nft.IPv6 {
			p.add(f, wrapperSet, false, plainElements(wrappers()))
		}
		p.add(f, Local, false, plainElements(s.local(f)))
		p.add(f, floorSet, false, plainElements(s.floor(f)))
		p.add(f, Host, false, plainElements(addresses(s.Host, f)))
		p.add(f, Open, true, endpoints(s.Open, f))
		p.add(f, Closed, true, endpoints(s.Closed, f))
	}
	for i := range s.Phases {
		n, phase := policy.Phase(i), &s.Phases[i]
		p.phases[n] = make(map[nft.Kind]names)
		for _, f := range families {
			switch phase.Rules.Mode() {
			case policy.Allowlist:
				p.phases[n][f] = p.targets(n, f, s.allowed(phase, f))
			case policy.Denylist:
				p.phases[n][f] = p.targets(n, f, s.denied(phase, f))
			}
		}
	}
	return p
}

func (p *Plan) targets(n policy.Phase, f nft.Kind, t *targets) names {
	prefix := n.String() + "_"
	return names{
		any:       p.add(f, prefix+"any", false, plainElements(t.any)),
		host:      p.add(f, prefix+"host", true, portElements(t.ports, true)),
		net:       p.add(f, prefix+"net", true, portElements(t.ports, false)),
		dns:       p.add(f, prefix+"dns", false, plainElements(t.dns)),
		exact:     p.add(f, prefix+"exact", false, plainElements(t.exact[0])),
		exactPort: p.add(f, prefix+"exactport", true, portElements(t.exact, true)),
	}
}

// Named are the addresses that a phase which refuses by default lets through on some port, with those of Open.
func (s *Spec) Named(n policy.Phase, f nft.Kind) []nft.Element {
	p := &s.Phases[n]
	var list spans
	if p.Rules.Mode() == policy.Allowlist {
		t := s.allowed(p, f)
		list = append(slices.Clone(t.any), t.dns...)
		for _, m := range []map[uint16]spans{t.ports, t.exact} {
			for _, s := range m {
				list = append(list, s...)
			}
		}
	}
	for _, a := range s.Open {
		if kindOf(a.Addr()) == f {
			list = append(list, span{a.Addr(), a.Addr()})
		}
	}
	return plainElements(list.merged())
}

// add adds a set if it has elements, and returns its name, or else "".
func (p *Plan) add(f nft.Kind, name string, withPort bool, elements []nft.Element) string {
	if len(elements) == 0 {
		return ""
	}
	kind := map[nft.Kind]nft.Type{nft.IPv4: nft.Address4, nft.IPv6: nft.Address6}[f]
	if withPort {
		kind = map[nft.Kind]nft.Type{nft.IPv4: nft.Address4Port, nft.IPv6: nft.Address6Port}[f]
	}
	name = p.setName(f, name)
	interval := slices.ContainsFunc(elements, func(e nft.Element) bool { return e.First != e.Last })
	p.Sets = append(p.Sets, nft.Set{Name: name, Type: kind, Interval: interval, Elements: elements})
	return name
}

func (p *Plan) setName(f nft.Kind, name string) string {
	version := map[nft.Kind]int{nft.IPv4: 4, nft.IPv6: 6}[f]
	return p.name(fmt.Sprintf("%s%d", name, version))
}

// Find returns the name of a set that all phases share, or "" if the Spec has nothing for it.
func (p *Plan) Find(f nft.Kind, name string) string {
	name = p.setName(f, name)
	if slices.ContainsFunc(p.Sets, func(s nft.Set) bool { return s.Name == name }) {
		return name
	}
	return ""
}

func plainElements(s spans) []nft.Element {
	list := make([]nft.Element, len(s))
	for i := range s {
		list[i].First, list[i].Last = s[i].first, s[i].last
	}
	return list
}

// portElements returns the ports' spans that are single addresses, or those that are not.
func portElements(ports map[uint16]spans, single bool) []nft.Element {
	var list []nft.Element
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		for _, s := range ports[port] {
			if port != 0 && s.single() == single {
				list = append(list, nft.Element{First: s.first, Last: s.last, Port: port})
			}
		}
	}
	return list
}

// addresses of the family, each once and in order.
func addresses(list []netip.Addr, f nft.Kind) spans {
	var all spans
	for _, a := range list {
		if kindOf(a) == f {
			all = append(all, span{a, a})
		}
	}
	slices.SortFunc(all, func(a, b span) int { return a.first.Compare(b.first) })
	return slices.Compact(all)
}

func endpoints(list []netip.AddrPort, f nft.Kind) []nft.Element {
	ports := make(map[uint16]spans)
	for _, a := range list {
		ports[a.Port()] = append(ports[a.Port()], span{a.Addr(), a.Addr()})
	}
	for port, s := range ports {
		var all []netip.Addr
		for _, a := range s {
			all = append(all, a.first)
		}
		ports[port] = addresses(all, f)
	}
	return portElements(ports, true)
}

// Outcomes say what rules do.
type Outcomes struct {
	// Refuse is for what is not on the direct plane.
	Refuse nft.Verdict
	// Let makes a rule for what is, if tests hold.
	Let func(tests ...nft.Part) nft.Rule
	// Redirected are rules for TCP that the phase's policy allows but that goes to the proxy, where only connections
	// can be on the direct plane that were open before the phase came. They must not refuse these, nor others.
	Redirected []nft.Rule
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

var ports = []*nft.Field{nft.TCPPort, nft.UDPPort}

// dns refuses port 53, but for what is named with that very port.
func (j *judge) dns(named string) []nft.Rule {
	var let, refuse []nft.Rule
	for _, port := range ports {
		is53 := nft.Is(port, nft.Number(dnsPort))
		if named != "" {
			let = append(let, j.Let(is53, j.to(named)))
		}
		refuse = append(refuse, nft.Rule{is53, j.Refuse})
	}
	return append(let, refuse...)
}

// to looks the destination up in a set.
func (j *judge) to(set string) nft.In {
	return nft.In{Fields: []*nft.Field{j.family.Destination()}, Set: set}
}

// look returns a rule for each way in which a packet can be in the sets: by address, or by address and port. With a
// form, it is the IPv4 address inside an IPv6 one that is looked up.
func (j *judge) look(in *form, byAddress, byPort []string, do func(...nft.Part) nft.Rule) []nft.Rule {
	address, shape := j.family.Destination(), []nft.Part(nil)
	if in != nil {
		address, shape = in.inner, []nft.Part{in.shape}
	}
	var rules []nft.Rule
	add := func(set string, fields ...*nft.Field) {
		if set != "" {
			rules = append(rules, do(append(slices.Clone(shape), nft.In{Fields: fields, Set: set})...))
		}
	}
	for _, set := range byAddress {
		add(set, address)
	}
	for _, set := range byPort {
		for _, port := range ports {
			add(set, address, port)
		}
	}
	return rules
}

func (j *judge) refused(tests ...nft.Part) nft.Rule { return append(slices.Clone(tests), j.Refuse) }

// allowlist lets the targets through.
func (j *judge) allowlist() []nft.Rule {
	sets := j.phases[j.phase]
	own := sets[j.family]
	rules := j.dns(own.dns)
	if !j.spec.StraightTCP() {
		notLocal := nft.Rule{nft.Is(nft.Protocol, nft.Word("tcp"))}
		if set := j.Find(j.family, Local); set != "" {
			in := j.to(set)
			in.Not = true
			notLocal = append(notLocal, in)
		}
		rules = append(rules, append(notLocal, j.Refuse))
	}
	named := j.look(nil, own.byAddress(), own.byPort(), j.Let)
	if j.family == nft.IPv6 {
		wrapped := j.look(nil, []string{own.exact}, []string{own.exactPort}, j.Let)
		for i := range forms {
			if forms[i].translated {
				wrapped = append(wrapped, j.look(&forms[i], sets[nft.IPv4].byAddress(), sets[nft.IPv4].byPort(), j.Let)...)
			}
		}
		if len(named)+len(wrapped) > 0 {
			rules = append(rules, j.wrapped(nft.Goto, slices.Concat(wrapped, j.hiddenFloor(), named, []nft.Rule{{j.Refuse}}))...)
		}
	}
	return slices.Concat(rules, named, []nft.Rule{{j.Refuse}})
}

// wrapped leads IPv6 addresses that hide an IPv4 one to a chain of their own with the rules, so that others do not pay
// for them.
func (j *judge) wrapped(how func(chain string) nft.Verdict, rules []nft.Rule) []nft.Rule {
	name := j.name(j.phase.String(), "wrapped")
	j.chains = append(j.chains, nft.Chain{Name: name, Rules: rules, Kind: nft.IPv6})
	isatap := forms[len(forms)-1].shape
	return []nft.Rule{
		{j.to(j.Find(nft.IPv6, wrapperSet)), how(name)},
		{isatap, how(name)},
	}
}

// hiddenFloor refuses IPv6 addresses with an IPv4 one of the floor in them.
func (j *judge) hiddenFloor() []nft.Rule {
	rules := []nft.Rule{j.refused(isUnreadable...)}
	for i := range forms {
		rules = append(rules, j.look(&forms[i], []string{j.Find(nft.IPv4, floorSet)}, nil, j.refused)...)
	}
	return rules
}

// denylist refuses the floor and the targets; a public policy is one without targets.
func (j *judge) denylist() []nft.Rule {
	sets := j.phases[j.phase]
	own := sets[j.family]
	rules := append(j.dns(""), j.refused(j.to(j.Find(j.family, floorSet))))
	if j.family == nft.IPv6 {
		wrapped := j.hiddenFloor()
		for i := range forms {
			wrapped = append(wrapped, j.look(&forms[i], sets[nft.IPv4].byAddress(), sets[nft.IPv4].byPort(), j.refused)...)
		}
		rules = append(rules, j.wrapped(nft.Jump, wrapped)...)
	}
	rules = append(rules, j.look(nil, own.byAddress(), own.byPort(), j.refused)...)
	var local []nft.Rule
	if set := j.Find(j.family, Local); set != "" {
		local = append(local, j.Let(j.to(set)))
	}
	switch {
	case j.spec.Internal:
		return append(append(rules, local...), nft.Rule{j.Refuse})
	case j.of.deniesNames():
		// QUIC hides the name, and TCP that was not redirected has not been asked for it.
		rules = append(append(rules, local...),
			nft.Rule{nft.Is(nft.UDPPort, nft.Number(443)), j.Refuse},
			nft.Rule{nft.Is(nft.Protocol, nft.Word("tcp")), j.Refuse})
	case j.spec.Proxies(j.phase):
		rules = slices.Concat(rules, local, j.Redirected)
	}
	return append(rules, j.Let())
}
