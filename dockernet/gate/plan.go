package gate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice/policy"
)

// The chains of the table that are there whatever the phase.
const (
	// Base chains. Which phases are in force is said in the first three.
	outputChain  = "output"
	steerChain   = "steer"
	inputChain   = "input"
	forwardChain = "forward"
	leaveChain   = "leave"

	shapeChain   = "shape"
	resetsChain  = "resets"
	refuseChain  = "refuse"
	quietChain   = "quiet"
	rejectChain  = "reject_all"
	proxyChain   = "to_proxy"
	swallowChain = "swallow"
	sealedChain  = "sealed"
)

// Counters of the table, besides two a phase, see directCounter and refusedCounter.
const (
	refusedCount = "refused" // by what does not depend on a phase
	proxiedCount = "proxied" // TCP connections that were redirected
	dnsCount     = "dns"     // UDP flows that were redirected
)

func directCounter(p policy.Phase) string  { return p.String() + "_direct" }
func refusedCounter(p policy.Phase) string { return p.String() + "_refused" }

func allCounters() []string {
	list := []string{refusedCount, proxiedCount, dnsCount}
	for p := range policy.Phase(policy.PhaseCount) {
		list = append(list, directCounter(p), refusedCounter(p))
	}
	return list
}

// Priorities of the base chains. Redirecting comes before the engine's own rules for its resolver (-100).
const (
	steerPriority  = -110
	filterPriority = 0
)

// generation numbers the chains and sets that were made of one Spec. What is built later has a greater number, until
// nothing is there any more.
type generation uint32

// name gives a chain or set of the generation its name.
func (g generation) name(parts ...string) string {
	return strings.Join(parts, "_") + fmt.Sprintf("_%d", g)
}

// ref is a phase of a generation.
type ref struct {
	generation generation
	phase      policy.Phase
	restricted bool // refuses connections into the container, so that it has an input chain
}

func (s *Spec) ref(g generation, p policy.Phase) ref {
	return ref{g, p, s.Phases[p].Inbound != policy.InboundAll}
}

func (r ref) chain() string { return r.generation.name(r.phase.String()) }
func (r ref) steer() string { return r.generation.name(r.phase.String(), "steer") }
func (r ref) input() string { return r.generation.name(r.phase.String(), "input") }

// Listing shows the rules that are in force while one phase is, as nft reads them. Rules that nft has no words for are
// comments.
func Listing(s *Spec, phase policy.Phase) (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	const g = 1
	t := build(s, g)
	t.counters = allCounters()
	t.chains = append(t.chains, fixed(s)...)
	for _, c := range inForce(s.ref(g, phase)) {
		i := slices.IndexFunc(t.chains, func(old chain) bool { return old.name == c.name })
		t.chains[i].rules = c.rules
	}
	return t.reachable().String(), nil
}

// reachable returns what packets can meet: chains from the base chains on, each before those that lead to it, with the
// sets and counters that their rules have.
func (t *table) reachable() *table {
	r := new(table)
	seen := make(map[string]bool)
	var visit func(name string)
	visit = func(name string) {
		i := slices.IndexFunc(t.chains, func(c chain) bool { return c.name == name })
		if seen[name] || i < 0 {
			return
		}
		seen[name] = true
		for _, rule := range t.chains[i].rules {
			for _, p := range rule {
				switch p := p.(type) {
				case verdict:
					visit(p.chain)
				case count:
					seen[p.counter] = true
				case in:
					seen[p.set] = true
				case hidden:
					seen[p.set] = true
				}
			}
		}
		r.chains = append(r.chains, t.chains[i])
	}
	for i := range t.chains {
		if t.chains[i].hook != nil {
			visit(t.chains[i].name)
		}
	}
	for _, c := range t.counters {
		if seen[c] {
			r.counters = append(r.counters, c)
		}
	}
	for _, s := range t.sets {
		if seen[s.name] {
			r.sets = append(r.sets, s)
		}
	}
	return r
}

// builder makes what a generation needs.
type builder struct {
	*Spec
	generation generation
	table      table
}

// build makes the sets and chains of all phases. Nothing leads to them yet.
func build(s *Spec, g generation) *table {
	b := &builder{Spec: s, generation: g}
	b.shared()
	b.common()
	for i := range s.Phases {
		b.phase(policy.Phase(i))
	}
	return &b.table
}

func (b *builder) name(parts ...string) string { return b.generation.name(parts...) }

func (b *builder) chain(name string, rules ...rule) {
	b.table.chains = append(b.table.chains, chain{name: name, rules: rules})
}

// set adds a set if it has elements, and returns its name, or else "".
func (b *builder) set(f family, name string, withPort bool, elements []element) string {
	if len(elements) == 0 {
		return ""
	}
	name = b.name(fmt.Sprintf("%s%d", name, f))
	interval := slices.ContainsFunc(elements, func(e element) bool { return !e.single() })
	b.table.sets = append(b.table.sets, set{name: name, family: f, withPort: withPort, interval: interval, elements: elements})
	return name
}

func plainElements(s spans) []element {
	list := make([]element, len(s))
	for i := range s {
		list[i].span = s[i]
	}
	return list
}

// portElements returns the ports' spans that are single addresses, or those that are not.
func portElements(ports map[uint16]spans, single bool) []element {
	var list []element
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		for _, s := range ports[port] {
			if port != 0 && s.single() == single {
				list = append(list, element{s, port})
			}
		}
	}
	return list
}

func endpoints(list []netip.AddrPort, f family) []element {
	ports := make(map[uint16]spans)
	for _, a := range list {
		if familyOf(a.Addr()) == f {
			ports[a.Port()] = append(ports[a.Port()], span{a.Addr(), a.Addr()})
		}
	}
	var elements []element
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		s := ports[port]
		slices.SortFunc(s, func(a, b span) int { return a.first.Compare(b.first) })
		for _, a := range slices.Compact(s) {
			elements = append(elements, element{a, port})
		}
	}
	return elements
}

// Sets that all phases share, by what they hold. They are empty, and not there, where the Spec has nothing for them.
const (
	localSet  = "local"
	floorSet  = "floor"
	hostSet   = "host"
	openSet   = "open"
	closedSet = "closed"
	// wrapperSet holds the prefixes of IPv6 addresses that hide an IPv4 one.
	wrapperSet = "wrapper"
)

func (b *builder) shared() {
	if b.serves(ipv6) {
		b.set(ipv6, wrapperSet, false, plainElements(wrappers()))
	}
	for _, f := range b.families() {
		b.set(f, localSet, false, plainElements(b.local(f)))
		b.set(f, floorSet, false, plainElements(b.floor(f)))
		b.set(f, hostSet, false, plainElements(addresses(b.Host, f)))
		b.set(f, openSet, true, endpoints(b.Open, f))
		b.set(f, closedSet, true, endpoints(b.Closed, f))
	}
}

// families that there are listeners for. All of another one is refused.
func (b *builder) families() []family {
	if b.serves(ipv6) {
		return families
	}
	return families[:1]
}

// find returns the name of a set that all phases share, or "".
func (b *builder) find(f family, name string) string {
	name = b.name(fmt.Sprintf("%s%d", name, f))
	if slices.ContainsFunc(b.table.sets, func(s set) bool { return s.name == name }) {
		return name
	}
	return ""
}

// common makes what a packet meets before any phase: in the filter "common", and for new connections "common_steer".
func (b *builder) common() {
	rules := []rule{}
	if b.serves(ipv6) {
		rules = append(rules, rule{is(l4proto, word("ipv6-icmp")), jump(b.neighbours())})
	}
	rules = append(rules,
		ownSource,
		reset,
		// What nat has redirected does not have this destination any more. The rest is what nat does not look at.
		rule{is(ipDestination, network(single(engineResolver))), refuse},
		ownLoopback,
	)
	// The interface is the one from before the redirect, so that this is not covered by the rule above.
	for _, f := range b.families() {
		rules = append(rules, rule{is(ctStatus, anyOf{"dnat"}), is(f.destination(), network(single(f.loopback()))), accept})
	}
	// Where the default route leads to the loopback, see addRoutes.
	rules = append(rules, rule{is(oifname, name("lo")), refuse})
	if !b.serves(ipv6) {
		rules = append(rules, rule{is(nfproto, word("ipv6")), refuse})
	}
	for _, f := range b.families() {
		if set := b.find(f, closedSet); set != "" {
			rules = append(rules, rule{in{fields: []field{f.destination(), tcpPort}, set: set}, refuse})
		}
		if set := b.find(f, openSet); set != "" {
			rules = append(rules, rule{in{fields: []field{f.destination(), tcpPort}, set: set}, accept})
		}
	}
	b.chain(b.name("common"), rules...)

	steer := []rule{{is(ipDestination, network(single(engineResolver))), to(proxyChain)}}
	for _, a := range b.Explicit {
		f := familyOf(a.Addr())
		steer = append(steer, rule{is(f.destination(), network(single(a.Addr()))), is(tcpPort, number(a.Port())), to(proxyChain)})
	}
	steer = append(steer, rule{is(fibDestination, word("local")), accept})
	for _, f := range b.families() {
		if set := b.find(f, openSet); set != "" {
			steer = append(steer, rule{in{fields: []field{f.destination(), tcpPort}, set: set}, accept})
		}
	}
	b.chain(b.name("common", "steer"), steer...)
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
		filter, steer = []rule{{p.refuse}}, p.dns(to(proxyChain))
	}
	r := b.ref(b.generation, n)
	p.chain(r.chain(), append(p.replies(), filter...)...)
	p.chain(r.steer(), steer...)
	if r.restricted {
		p.chain(r.input(), p.input()...)
	}
}

// logPrefix is what NFLOG messages carry: who has refused. The kernel allows 127 bytes.
func logPrefix(who string) string { return tableName + " " + who }

// phaseBuilder makes the chains of one phase.
type phaseBuilder struct {
	*builder
	phase  policy.Phase
	of     *Phase
	refuse verdict
}

func (p *phaseBuilder) name(parts ...string) string {
	return p.builder.name(append([]string{p.phase.String()}, parts...)...)
}

// let counts a packet of the direct plane and leaves the chain.
func (p *phaseBuilder) let(tests ...part) rule {
	return append(slices.Clone(tests), count{directCounter(p.phase)}, back)
}

// dns sends what goes to port 53 elsewhere.
func (p *phaseBuilder) dns(elsewhere verdict) []rule {
	return []rule{{is(tcpPort, number(dnsPort)), elsewhere}, {is(udpPort, number(dnsPort)), elsewhere}}
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
			if set := p.find(f, hostSet); set != "" {
				rules = append(rules, rule{reply, in{fields: []field{f.destination()}, set: set}, back})
			}
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
			if set := p.find(f, hostSet); set != "" {
				rules = append(rules, rule{in{fields: []field{f.source()}, set: set}, back})
			}
		}
	}
	return append(rules, rule{p.refuse})
}

// names are the sets of a phase's targets of one family, "" where there is none.
type names struct{ any, host, net, dns, exact, exactPort string }

func (n names) byAddress() []string { return []string{n.any} }
func (n names) byPort() []string    { return []string{n.host, n.net} }

func (p *phaseBuilder) sets(f family, t *targets) names {
	prefix := p.phase.String() + "_"
	return names{
		any:       p.set(f, prefix+"any", false, plainElements(t.any)),
		host:      p.set(f, prefix+"host", true, portElements(t.ports, true)),
		net:       p.set(f, prefix+"net", true, portElements(t.ports, false)),
		dns:       p.set(f, prefix+"dns", false, plainElements(t.dns)),
		exact:     p.set(f, prefix+"exact", false, plainElements(t.exact[0])),
		exactPort: p.set(f, prefix+"exactport", true, portElements(t.exact, true)),
	}
}

// look returns a rule for each way in which a packet can be in the sets: by address, or by address and port. With a
// form, it is the IPv4 address inside an IPv6 one that is looked up.
func look(f family, form *form, byAddress []string, byPort []string, ports []field, do func(part) rule) []rule {
	var rules []rule
	for _, set := range byAddress {
		switch {
		case set == "":
		case form != nil:
			rules = append(rules, do(hidden{form, nil, set}))
		default:
			rules = append(rules, do(in{fields: []field{f.destination()}, set: set}))
		}
	}
	for _, set := range byPort {
		for i := range ports {
			switch {
			case set == "":
			case form != nil:
				rules = append(rules, do(hidden{form, &ports[i], set}))
			default:
				rules = append(rules, do(in{fields: []field{f.destination(), ports[i]}, set: set}))
			}
		}
	}
	return rules
}

var (
	bothPorts = []field{tcpPort, udpPort}
	onlyTCP   = []field{tcpPort}
)

// allowlist lets the targets through; to the proxy goes what is left of TCP.
func (p *phaseBuilder) allowlist() (filter, steer []rule) {
	sets := make(map[family]names)
	named53 := false
	for _, f := range p.families() {
		sets[f] = p.sets(f, p.allowed(p.of, f))
		named53 = named53 || sets[f].dns != ""
	}
	filterDNS, steerDNS := p.refuse, to(proxyChain)
	if named53 {
		filterDNS, steerDNS = p.named53(sets, "dns", p.refuse), p.named53(sets, "steer_dns", steerDNS)
	}
	filter = append([]rule{{jump(shapeChain)}}, p.dns(filterDNS)...)
	steer = append(p.dns(steerDNS), rule{not(l4proto, word("tcp")), back})
	for _, f := range p.families() {
		local := p.find(f, localSet)
		if local != "" {
			steer = append(steer, rule{in{fields: []field{f.destination()}, set: local}, back})
		}
		if !p.straightTCP() {
			notLocal := rule{is(nfproto, f.word()), is(l4proto, word("tcp")), p.refuse}
			if local != "" {
				notLocal = rule{is(l4proto, word("tcp")), in{fields: []field{f.destination()}, set: local, not: true}, p.refuse}
			}
			filter = append(filter, notLocal)
		}
	}
	filter = append(filter, p.direct(sets, bothPorts, p.let, "wrapped", p.hiddenFloor(p.refuse), []rule{{p.refuse}})...)
	if !p.straightTCP() {
		return filter, append(steer, p.toProxy()...)
	}
	leave := func(tests ...part) rule { return append(slices.Clone(tests), back) }
	return filter, append(steer, p.direct(sets, onlyTCP, leave, "steer_wrapped", p.hiddenFloor(to(proxyChain)), p.toProxy())...)
}

func (f family) word() word {
	if f == ipv4 {
		return "ipv4"
	}
	return "ipv6"
}

// named53 makes a chain for port 53, which lets through what is named with that port.
func (p *phaseBuilder) named53(sets map[family]names, name string, rest verdict) verdict {
	var rules []rule
	for _, f := range p.families() {
		if set := sets[f].dns; set != "" {
			rules = append(rules, rule{in{fields: []field{f.destination()}, set: set}, back})
		}
	}
	name = p.name(name)
	p.chain(name, append(rules, rule{rest})...)
	return to(name)
}

// direct are the rules for what an allowlist lets go straight, and end are those for what is left. IPv6 addresses that
// hide an IPv4 one have a chain of their own, so that others do not pay for them; floor are the rules in it for
// those of the floor.
func (p *phaseBuilder) direct(sets map[family]names, ports []field, let func(...part) rule, chain string, floor, end []rule) []rule {
	do := func(test part) rule { return let(test) }
	s4, s6 := sets[ipv4], sets[ipv6]
	rules := look(ipv4, nil, s4.byAddress(), s4.byPort(), ports, do)
	named := look(ipv6, nil, s6.byAddress(), s6.byPort(), ports, do)
	wrapped := look(ipv6, nil, []string{s6.exact}, []string{s6.exactPort}, ports, do)
	for i := range forms {
		if forms[i].translated && p.serves(ipv6) {
			wrapped = append(wrapped, look(ipv6, &forms[i], s4.byAddress(), s4.byPort(), ports, do)...)
		}
	}
	if len(named)+len(wrapped) > 0 {
		wrapped = slices.Concat(wrapped, floor, named, end)
		rules = append(rules, p.wrapped(chain, "goto", wrapped)...)
	}
	return slices.Concat(rules, named, end)
}

// wrapped leads IPv6 addresses that hide an IPv4 one to a chain of the name with the rules.
func (p *phaseBuilder) wrapped(name, how string, rules []rule) []rule {
	name = p.name(name)
	p.chain(name, rules...)
	lead := verdict{how, name}
	return []rule{
		{in{fields: []field{ip6Destination}, set: p.find(ipv6, wrapperSet)}, lead},
		{isISATAP{}, lead},
	}
}

// hiddenFloor sends IPv6 addresses with an IPv4 one of the floor in them elsewhere.
func (p *phaseBuilder) hiddenFloor(elsewhere verdict) []rule {
	rules := []rule{{shortLocalNAT64{}, elsewhere}}
	for i := range forms {
		rules = append(rules, rule{hidden{&forms[i], nil, p.find(ipv4, floorSet)}, elsewhere})
	}
	return rules
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
	filter = append([]rule{{jump(shapeChain)}}, p.dns(p.refuse)...)
	steer = p.dns(to(proxyChain))
	proxies := p.proxies(p.of)
	if proxies {
		steer = append(steer, rule{not(l4proto, word("tcp")), back})
	}
	refuse := func(test part) rule { return rule{test, p.refuse} }
	sets := make(map[family]names)
	var local, denied []rule
	for _, f := range p.families() {
		filter = append(filter, refuse(in{fields: []field{f.destination()}, set: p.find(f, floorSet)}))
		s := p.sets(f, p.denied(p.of, f))
		sets[f] = s
		denied = append(denied, look(f, nil, s.byAddress(), s.byPort(), bothPorts, refuse)...)
		if set := p.find(f, localSet); set != "" {
			local = append(local, p.let(in{fields: []field{f.destination()}, set: set}))
			if proxies {
				steer = append(steer, rule{in{fields: []field{f.destination()}, set: set}, back})
			}
		}
		if proxies {
			steer = append(steer, look(f, nil, s.byAddress(), s.byPort(), onlyTCP,
				func(test part) rule { return rule{test, back} })...)
		}
	}
	if p.serves(ipv6) {
		wrapped, s := p.hiddenFloor(p.refuse), sets[ipv4]
		for i := range forms {
			wrapped = append(wrapped, look(ipv6, &forms[i], s.byAddress(), s.byPort(), bothPorts, refuse)...)
		}
		filter = append(filter, p.wrapped("wrapped", "jump", wrapped)...)
	}
	filter = append(filter, denied...)
	if proxies {
		steer = append(steer, p.toProxy()...)
	}
	names := p.of.Rules.Mode() == policy.Denylist && p.of.Rules.HasNameRules()
	switch {
	case p.Internal:
		return append(append(filter, local...), rule{p.refuse}), steer
	case names:
		// QUIC hides the name, and TCP that was not redirected has not been asked for it.
		filter = append(append(filter, local...),
			rule{is(udpPort, number(443)), p.refuse}, rule{is(l4proto, word("tcp")), p.refuse})
	case proxies:
		// TCP that is not redirected here was open before the phase came, or has no way through the proxy.
		var noRoute []rule
		for _, f := range p.families() {
			if !p.routes(f) {
				noRoute = append(noRoute, rule{is(nfproto, f.word()), is(l4proto, word("tcp")), is(ctState, anyOf{"new"}), p.refuse})
			}
		}
		if noRoute != nil {
			filter = append(append(filter, local...), noRoute...)
		}
	}
	return append(filter, p.let()), steer
}
