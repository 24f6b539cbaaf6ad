package guard

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// tablePrefix is what the names of the ports' tables start with. The rest is the interface's.
const tablePrefix = "sluice_"

func tableOf(port string) nft.ID { return nft.ID{Family: "netdev", Name: tablePrefix + port} }

// ingressChain is the base chain, the only one that does not belong to a generation.
const ingressChain = "ingress"

// Counters of a port's table: what is marked, and what is dropped.
const (
	allowedCount = "allowed" // also for connections that are open already
	repliesCount = "replies"
	resetsCount  = "resets"

	refusedCount     = "refused" // by the phase
	sourceCount      = "false_source"
	malformedCount   = "malformed"
	misdirectedCount = "misdirected"
	neighbourCount   = "neighbour"
	quarantineCount  = "quarantine"
)

var allCounters = []string{allowedCount, repliesCount, resetsCount,
	refusedCount, sourceCount, malformedCount, misdirectedCount, neighbourCount, quarantineCount}

// The kernel looks at every chain of all tables whenever anything changes (nf_tables_commit), so there are few.

// Chains that drop and log, one for what the phase refuses and one for what no phase would let through.
const (
	refusedChain = "refused"
	forgedChain  = "forged"
)

// generation numbers the chains and sets that were made of one Spec.
type generation uint32

func (g generation) name(parts ...string) string {
	return strings.Join(parts, "_") + fmt.Sprintf("_%d", g)
}

// ref is a phase of a generation.
type ref struct {
	generation generation
	phase      policy.Phase
	inbound    policy.Inbound
	families   []nft.Kind
	closed     bool // lets nothing through
	// secluded is set if few neighbours are let in or out, so that the phase has chains for that.
	secluded bool
}

func (s *Spec) ref(g generation, p policy.Phase) ref {
	phase := &s.Phases[p]
	return ref{generation: g, phase: p, inbound: phase.Inbound, families: s.families(),
		closed: phase.Rules.Mode() == policy.NoNetwork, secluded: phase.Inbound == policy.InboundNone && phase.RefusesByDefault()}
}

func version(f nft.Kind) string {
	if f == nft.IPv4 {
		return "4"
	}
	return "6"
}

func (r ref) chain(f nft.Kind) string { return r.generation.name(r.phase.String(), version(f)) }
func (r ref) link(f nft.Kind) string  { return r.generation.name(r.phase.String(), "link"+version(f)) }

// Which phases are in force is said in these chains. Neighbours are sought and answered by ARP and neighbour discovery,
// which all of the phases must let pass.
func (g generation) judge(f nft.Kind) string { return g.name("judge" + version(f)) }
func (g generation) link(f nft.Kind) string  { return g.name("link" + version(f)) }

// config is what the rules of all ports have in common.
type config struct {
	mark     Mark
	logGroup uint16
}

// Listing shows the rules of a port that are in force while one phase is, as nft reads them. Rules that nft has no
// words for are comments.
func Listing(s *Spec, phase policy.Phase, m Mark, logGroup uint16) (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	if err := m.check(); err != nil {
		return "", err
	}
	t := build(s, config{m, logGroup}, 1)
	t.Counters = allCounters
	t.Put(config{m, logGroup}.ingress(s, 1))
	for _, c := range (config{m, logGroup}).inForce(s, s.ref(1, phase)) {
		t.Put(c)
	}
	return t.Reachable().String(), nil
}

// builder makes what a generation needs.
type builder struct {
	*Spec
	config
	generation
	plan   *direct.Plan
	sets   []nft.Set // besides the plan's
	chains []nft.Chain
	floors map[policy.Inbound]*direct.Floor
}

// build makes the sets and chains of all phases, with those for what is in force still empty. Nothing leads to them yet.
func build(s *Spec, c config, g generation) *nft.Table {
	b := &builder{Spec: s, config: c, generation: g, floors: make(map[policy.Inbound]*direct.Floor)}
	b.plan = direct.NewPlan(&s.Spec, s.families(), g.name)
	for _, name := range []string{refusedChain, forgedChain} {
		b.chain(nft.AnyKind, b.name(name), b.dropped(name)...)
	}
	for _, f := range s.families() {
		b.chain(f, g.judge(f))
		if b.secluded() {
			b.chain(map[nft.Kind]nft.Kind{nft.IPv4: nft.ARP, nft.IPv6: nft.IPv6}[f], g.link(f))
		}
		b.packets(f)
	}
	for i := range s.Phases {
		b.refusals(s.Phases[i].Inbound)
		for _, f := range s.families() {
			b.phase(policy.Phase(i), f)
		}
	}
	return &nft.Table{ID: tableOf(s.Interface), Sets: append(b.plan.Sets, b.sets...), Chains: b.chains}
}

func (b *builder) chain(kind nft.Kind, name string, rules ...nft.Rule) {
	b.chains = append(b.chains, nft.Chain{Name: name, Kind: kind, Rules: rules})
}

// to is how a packet gets to a chain of this generation for good.
func (g generation) to(parts ...string) nft.Verdict { return nft.Goto(g.name(parts...)) }

// drop makes a rule that counts a packet and drops it, if tests hold: what the phase refuses, or else what no phase
// would let through.
func (g generation) drop(counter string, tests ...nft.Part) nft.Rule {
	chain := forgedChain
	if counter == refusedCount {
		chain = refusedChain
	}
	return slices.Concat(tests, []nft.Part{nft.Count{Counter: counter}, g.to(chain)})
}

// Limits of what is logged, by reason and port, and how much of a packet: the headers and what a reader could recognise.
const (
	logRate, logBurst = 20, 100 // packets, a second and at once
	logBytes          = 160
)

// dropped logs and drops.
func (c config) dropped(why string) []nft.Rule {
	return []nft.Rule{
		{nft.Limit{Rate: logRate, Burst: logBurst}, nft.Log{Prefix: "sluice guard " + why, Group: c.logGroup, Snaplen: logBytes}},
		{nft.Drop},
	}
}

func (c config) setMark(bits uint32) nft.SetMark {
	return nft.SetMark{Clear: uint32(c.mark) &^ bits, Set: bits}
}

// addMark leaves the other one of the two bits as it is.
func addMark(bits uint32) nft.SetMark { return nft.SetMark{Set: bits} }

// ingress judges frames and ARP, and leads packets to the chains of a generation.
func (c config) ingress(s *Spec, g generation) nft.Chain {
	rules := []nft.Rule{
		g.drop(sourceCount, nft.Not(nft.EtherSource, s.Hardware)),
		{nft.SetMark{Clear: uint32(c.mark)}},
	}
	for _, f := range s.families() {
		rules = append(rules, nft.Rule{nft.Is(nft.EtherType, nft.Word(f.String())), g.to("ip" + version(f))})
	}
	return nft.Chain{Name: ingressChain, Hook: ingressHook(s.Interface), Rules: slices.Concat(rules, c.arp(s, g), []nft.Rule{
		g.drop(neighbourCount, isARP),
		g.drop(malformedCount),
	})}
}

// inForce are the chains that say which phases are in force: all of them must let a packet through. s is the Spec of
// the first one, whose generation the chains belong to.
func (c config) inForce(s *Spec, phases ...ref) (chains []nft.Chain) {
	g := phases[0].generation
	for _, f := range s.families() {
		judge, link := nft.Chain{Name: g.judge(f), Kind: f}, nft.Chain{Name: g.link(f), Kind: f}
		if f == nft.IPv4 {
			link.Kind = nft.ARP
		}
		for _, r := range phases {
			switch {
			case !slices.Contains(r.families, f): // a newer Spec has no addresses of the family
				judge.Rules = append(judge.Rules, g.drop(malformedCount))
			case r.closed:
				judge.Rules = append(judge.Rules, nft.Rule{r.generation.refusal(r.inbound, f)})
			default:
				judge.Rules = append(judge.Rules, nft.Rule{nft.Jump(r.chain(f))})
			}
			if r.secluded && slices.Contains(r.families, f) {
				link.Rules = append(link.Rules, nft.Rule{nft.Jump(r.link(f))})
			}
		}
		judge.Rules = append(judge.Rules, nft.Rule{addMark(c.mark.allowed()), nft.Count{Counter: allowedCount}, nft.Accept})
		chains = append(chains, judge)
		if s.secluded() {
			chains = append(chains, link)
		}
	}
	return chains
}

// secluded reports whether any phase lets few neighbours in or out.
func (s *Spec) secluded() bool {
	for i := range s.Phases {
		if s.ref(0, policy.Phase(i)).secluded {
			return true
		}
	}
	return false
}

// The first of the chains that a veth may have, so that no flow table takes packets away before.
const ingressPriority = -500

func ingressHook(port string) *nft.Hook {
	return &nft.Hook{Type: "filter", At: "ingress", Device: port, Priority: ingressPriority}
}

// quarantined is what the chain "ingress" holds while everything is dropped.
func (c config) quarantined(port string) nft.Chain {
	return nft.Chain{Name: ingressChain, Hook: ingressHook(port), Rules: append([]nft.Rule{{nft.Count{Counter: quarantineCount}}}, c.dropped(quarantineCount)...)}
}

// packets makes the chain for packets of a family: what does not depend on a phase.
func (b *builder) packets(f nft.Kind) {
	judge := nft.Goto(b.generation.judge(f))
	var rules []nft.Rule
	next, icmp, icmpType, header := nft.IPProtocol, nft.Word("icmp"), nft.ICMPType, nft.Number(20)
	if f == nft.IPv4 {
		rules = []nft.Rule{
			b.drop(malformedCount, nft.Not(nft.IPHeaderLength, nft.Number(5))),
			b.drop(malformedCount, nft.Masked{Field: nft.IPFragment, Mask: 0x3fff, Not: true, Value: nft.Number(0)}),
		}
	} else {
		next, icmp, icmpType, header = nft.IP6Next, "ipv6-icmp", nft.ICMP6Type, 40
		rules = b.neighbours6()
	}
	rules = append(rules, b.drop(sourceCount, b.notOwn(f, f.Source())), b.misdirected(f))
	rules = append(rules, b.plan.Closed(f, b.drop(refusedCount)...)...)
	// The reset of a socket that a switch has destroyed must reach the other end, whatever the phase.
	for _, words := range resetWords {
		rules = append(rules, nft.Rule{
			nft.Masked{Field: nft.TCPFlags, Mask: 7, Words: []nft.Word{"fin", "syn", "rst"}, Value: nft.Word("rst")},
			nft.Is(nft.TCPOffset, words), nft.Is(nft.Length, header+4*words),
			addMark(b.mark.open()), nft.Count{Counter: resetsCount}, nft.Accept})
	}
	rules = append(rules, b.plan.Open(f, addMark(b.mark.allowed()), nft.Count{Counter: allowedCount}, nft.Accept)...)
	forContainers := nft.Rule{nft.Is(next, icmp)}
	for _, types := range notForContainers[f] {
		forContainers = append(forContainers, nft.Not(icmpType, types))
	}
	b.chain(f, b.name("ip"+version(f)), append(rules,
		nft.Rule{nft.Is(next, nft.Word("tcp")), nft.Not(nft.TCPPort, nft.Number(0)), judge},
		nft.Rule{nft.Is(next, nft.Word("udp")), nft.Not(nft.UDPPort, nft.Number(0)), judge},
		append(forContainers, judge),
		b.drop(malformedCount))...)
}

// resetWords are how many words of 4 bytes a reset has that Linux sends: the header, and timestamps if the connection
// has them (RFC 7323 §3.2). Data it has none.
var resetWords = []nft.Number{5, 8}

// notForContainers are ICMP types that are neither echoes nor errors: redirects, routers and what else a network tells
// its hosts (RFC 792, RFC 1256), and of IPv6 the groups of listeners too (RFC 4861 §4, RFC 2710, RFC 3810).
var notForContainers = map[nft.Kind][]nft.Range{
	nft.IPv4: {{First: 4, Last: 7}, {First: 9, Last: 10}, {First: 13, Last: 255}},
	nft.IPv6: {{First: 130, Last: 255}},
}

// notOwn holds if an address is none of the container's on this link.
func (b *builder) notOwn(f nft.Kind, field *nft.Field) nft.Part {
	if own := of(b.Addresses, f, itself); len(own) == 1 {
		return nft.Not(field, nft.Single(own[0]))
	}
	in := b.own(f, field)
	in.Not = true
	return in
}

// own holds if it is one.
func (b *builder) own(f nft.Kind, field *nft.Field) nft.In {
	own := of(b.Addresses, f, itself)
	slices.SortFunc(own, netip.Addr.Compare)
	var elements []nft.Element
	for _, a := range slices.Compact(own) {
		elements = append(elements, nft.Element{First: a, Last: a})
	}
	return nft.In{Fields: []*nft.Field{field}, Set: b.set(f, "own", elements)}
}

// set makes a set of addresses, once, and returns its name.
func (b *builder) set(f nft.Kind, name string, elements []nft.Element) string {
	name = b.name(name + version(f))
	if !slices.ContainsFunc(b.sets, func(s nft.Set) bool { return s.Name == name }) {
		b.sets = append(b.sets, nft.Set{
			Name: name, Type: map[nft.Kind]nft.Type{nft.IPv4: nft.Address4, nft.IPv6: nft.Address6}[f],
			Interval: slices.ContainsFunc(elements, func(e nft.Element) bool { return e.First != e.Last }),
			Elements: elements,
		})
	}
	return name
}

// onLink are the networks of this link.
func (b *builder) onLink(f nft.Kind) []netip.Prefix { return of(b.OnLink, f, netip.Prefix.Addr) }

// misdirected drops packets to elsewhere than this link that are not sent to a router: some other container would get
// them, whatever its address.
func (b *builder) misdirected(f nft.Kind) nft.Rule {
	var elsewhere []nft.Part
	for _, p := range append(b.onLink(f), groups[f]...) {
		elsewhere = append(elsewhere, nft.Not(f.Destination(), nft.Network(p)))
	}
	for _, h := range b.Routers {
		elsewhere = append(elsewhere, nft.Not(nft.EtherDestination, h))
	}
	return b.drop(misdirectedCount, elsewhere...)
}

// groups are addresses that no router is needed for on any link.
var groups = map[nft.Kind][]netip.Prefix{
	nft.IPv4: {netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32")},
	nft.IPv6: {netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8")},
}

var inboundNames = map[policy.Inbound]string{policy.InboundAll: "all", policy.InboundHost: "host", policy.InboundNone: "none"}

// refusal is what happens to a packet that a phase does not allow.
func (g generation) refusal(i policy.Inbound, f nft.Kind) nft.Verdict {
	return g.to("refuse"+version(f), inboundNames[i])
}

// phase makes the chains of a phase for a family.
func (b *builder) phase(n policy.Phase, f nft.Kind) {
	r := b.ref(b.generation, n)
	if r.secluded {
		b.link(r, f)
	}
	if r.closed {
		return
	}
	refuse := b.generation.refusal(r.inbound, f)
	rules, chains := b.plan.Judge(n, f, direct.Outcomes{
		Refuse:     refuse,
		Let:        func(tests ...nft.Part) nft.Rule { return append(slices.Clone(tests), nft.Return) },
		Redirected: []nft.Part{addMark(b.mark.replies())},
		Floor:      b.floors[r.inbound],
	})
	b.chains = append(b.chains, chains...)
	// Replies and errors belong to what has come in.
	unasked := nft.Rule{nft.Is(nft.Protocol, nft.Word("icmp")), nft.Not(nft.ICMPType, nft.Word("echo-request")), refuse}
	if f == nft.IPv6 {
		unasked = nft.Rule{nft.Is(nft.Protocol, nft.Word("ipv6-icmp")), nft.Not(nft.ICMP6Type, nft.Echo6), refuse}
	}
	b.chain(f, r.chain(f), append([]nft.Rule{unasked}, rules...)...)
}

// refusals makes the chains, once, that refuse for phases with a choice of who may dial the container.
func (b *builder) refusals(i policy.Inbound) {
	if b.floors[i] != nil {
		return
	}
	for _, f := range b.families() {
		b.chain(f, b.generation.refusal(i, f).Chain(), b.refuse(i, f)...)
	}
	var phases []policy.Phase
	for n := range b.Phases {
		if b.Phases[n].Inbound == i {
			phases = append(phases, policy.Phase(n))
		}
	}
	b.floors[i] = b.plan.NewFloor("floor_"+inboundNames[i], phases, func(f nft.Kind) nft.Verdict { return b.generation.refusal(i, f) })
	b.chains = append(b.chains, b.floors[i].Chains...)
}

// refuse drops what a phase does not allow, but for what may be a reply to something that has come in.
func (b *builder) refuse(i policy.Inbound, f nft.Kind) []nft.Rule {
	refused := b.drop(refusedCount)
	reply := []nft.Part{b.setMark(b.mark.replies()), nft.Count{Counter: repliesCount}, nft.Accept}
	echo := nft.Is(nft.ICMPType, nft.Word("echo-request"))
	if f == nft.IPv6 {
		echo = nft.Is(nft.ICMP6Type, nft.Echo6)
	}
	// The first segment of a connection and a request for an echo are no replies.
	first := []nft.Rule{
		b.drop(refusedCount, echo),
		b.drop(refusedCount, nft.Masked{Field: nft.TCPFlags, Mask: 18, Words: []nft.Word{"syn", "ack"}, Value: nft.Word("syn")}),
	}
	switch i {
	case policy.InboundAll:
		return append(first, nft.Rule(reply))
	case policy.InboundHost:
		return append(append(first, b.plan.Host(f, reply...)...), refused)
	default:
		return []nft.Rule{refused}
	}
}
