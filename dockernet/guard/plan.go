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

// Chains that do not belong to a generation: what is in force is said in them.
const (
	ingressChain = "ingress"
	judge4Chain  = "judge4"
	judge6Chain  = "judge6"
	// Neighbours are sought and answered by ARP and neighbour discovery, which every phase in force must let pass.
	link4Chain = "link4"
	link6Chain = "link6"
)

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

// reasons are the counters of what is dropped, each with a chain of its own, but for quarantineCount.
var reasons = []string{refusedCount, sourceCount, malformedCount, misdirectedCount, neighbourCount}

func allCounters() []string {
	return append([]string{allowedCount, repliesCount, resetsCount, quarantineCount}, reasons...)
}

// generation numbers the chains and sets that were made of one Spec.
type generation uint32

func (g generation) name(parts ...string) string {
	return strings.Join(parts, "_") + fmt.Sprintf("_%d", g)
}

// ref is a phase of a generation.
type ref struct {
	generation generation
	phase      policy.Phase
	families   []nft.Kind
	// secluded is set if few neighbours are let in or out, so that the phase has chains for that.
	secluded bool
}

func (s *Spec) ref(g generation, p policy.Phase) ref {
	phase := &s.Phases[p]
	return ref{g, p, s.families(), phase.Inbound == policy.InboundNone && phase.RefusesByDefault()}
}

func version(f nft.Kind) string {
	if f == nft.IPv4 {
		return "4"
	}
	return "6"
}

func (r ref) judge(f nft.Kind) string { return r.generation.name(r.phase.String(), version(f)) }
func (r ref) link(f nft.Kind) string  { return r.generation.name(r.phase.String(), "link"+version(f)) }

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
	t.Counters = allCounters()
	t.Chains = append(t.Chains, config{m, logGroup}.inForce(s, s.ref(1, phase))...)
	return t.Reachable().String(), nil
}

// builder makes what a generation needs.
type builder struct {
	*Spec
	config
	generation generation
	plan       *direct.Plan
	sets       []nft.Set // besides the plan's
	chains     []nft.Chain
	floors     map[policy.Inbound]*direct.Floor
}

// build makes the sets and chains of all phases, with empty ones for what is in force. Nothing leads to them yet.
func build(s *Spec, c config, g generation) *nft.Table {
	b := &builder{Spec: s, config: c, generation: g, floors: make(map[policy.Inbound]*direct.Floor)}
	b.plan = direct.NewPlan(&s.Spec, s.families(), g.name)
	for _, why := range reasons {
		b.chain(nft.AnyKind, b.name(why), b.dropped(why)...)
	}
	b.arp()
	for _, f := range s.families() {
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

func (b *builder) name(parts ...string) string { return b.generation.name(parts...) }

func (b *builder) chain(kind nft.Kind, name string, rules ...nft.Rule) {
	b.chains = append(b.chains, nft.Chain{Name: name, Kind: kind, Rules: rules})
}

// to is how a packet gets to a chain of this generation for good.
func (b *builder) to(parts ...string) nft.Verdict { return nft.Goto(b.name(parts...)) }

// Limits of what is logged, by reason and port, and how much of a packet: the headers and what a reader could recognise.
const (
	logRate, logBurst = 20, 100 // packets, a second and at once
	logBytes          = 160
)

// dropped counts, logs and drops.
func (c config) dropped(why string) []nft.Rule {
	return []nft.Rule{
		{nft.Count{Counter: why},
			nft.Limit{Rate: logRate, Burst: logBurst}, nft.Log{Prefix: "sluice guard " + why, Group: c.logGroup, Snaplen: logBytes}},
		{nft.Drop},
	}
}

func (c config) setMark(bits uint32) nft.SetMark {
	return nft.SetMark{Clear: uint32(c.mark) &^ bits, Set: bits}
}

// addMark leaves the other one of the two bits as it is.
func addMark(bits uint32) nft.SetMark { return nft.SetMark{Set: bits} }

// inForce is what the chains hold that do not belong to a generation while some phases are in force: all of them must
// let a packet through. The first one says which generation the common rules are of. s is the Spec of that generation.
func (c config) inForce(s *Spec, phases ...ref) []nft.Chain {
	first := phases[0]
	ingress := nft.Chain{Name: ingressChain, Hook: ingressHook(s.Interface), Rules: []nft.Rule{
		{nft.Not(nft.EtherSource, s.Hardware), nft.Goto(first.generation.name(sourceCount))},
		{nft.SetMark{Clear: uint32(c.mark)}},
		{nft.Is(nft.EtherType, nft.Word("ip")), nft.Goto(first.generation.name("ip4"))},
		{nft.Is(nft.EtherType, nft.Word("arp")), nft.Goto(first.generation.name("arp"))},
	}}
	if slices.Contains(first.families, nft.IPv6) {
		ingress.Rules = append(ingress.Rules, nft.Rule{nft.Is(nft.EtherType, nft.Word("ip6")), nft.Goto(first.generation.name("ip6"))})
	}
	ingress.Rules = append(ingress.Rules, nft.Rule{nft.Goto(first.generation.name(malformedCount))})

	judge, link := map[nft.Kind]*nft.Chain{}, map[nft.Kind]*nft.Chain{}
	chains := emptyInForce(s.Interface)
	chains[0] = ingress
	judge[nft.IPv4], judge[nft.IPv6], link[nft.IPv4], link[nft.IPv6] = &chains[1], &chains[2], &chains[3], &chains[4]
	for _, f := range first.families {
		for _, r := range phases {
			// A family that a newer Spec has no addresses of has no chains there.
			switch {
			case !slices.Contains(r.families, f):
				judge[f].Rules = append(judge[f].Rules, nft.Rule{nft.Goto(first.generation.name(malformedCount))})
			default:
				judge[f].Rules = append(judge[f].Rules, nft.Rule{nft.Jump(r.judge(f))})
				if r.secluded {
					link[f].Rules = append(link[f].Rules, nft.Rule{nft.Jump(r.link(f))})
				}
			}
		}
		judge[f].Rules = append(judge[f].Rules, nft.Rule{addMark(c.mark.allowed()), nft.Count{Counter: allowedCount}, nft.Accept})
	}
	return chains
}

// emptyInForce are the chains of inForce without rules.
func emptyInForce(port string) []nft.Chain {
	return []nft.Chain{
		{Name: ingressChain, Hook: ingressHook(port)},
		{Name: judge4Chain, Kind: nft.IPv4},
		{Name: judge6Chain, Kind: nft.IPv6},
		{Name: link4Chain, Kind: nft.ARP},
		{Name: link6Chain, Kind: nft.IPv6},
	}
}

// The first of the chains that a veth may have, so that no flow table takes packets away before.
const ingressPriority = -500

func ingressHook(port string) *nft.Hook {
	return &nft.Hook{Type: "filter", At: "ingress", Device: port, Priority: ingressPriority}
}

// quarantined is what the chain "ingress" holds while everything is dropped.
func (c config) quarantined(port string) nft.Chain {
	return nft.Chain{Name: ingressChain, Hook: ingressHook(port), Rules: c.dropped(quarantineCount)}
}

// packets makes the chain for packets of a family: what does not depend on a phase.
func (b *builder) packets(f nft.Kind) {
	malformed := b.to(malformedCount)
	var rules []nft.Rule
	if f == nft.IPv4 {
		rules = []nft.Rule{
			{nft.Not(nft.IPHeaderLength, nft.Number(5)), malformed},
			{nft.Masked{Field: nft.IPFragment, Mask: 0x3fff, Not: true, Value: nft.Number(0)}, malformed},
		}
	} else {
		b.neighbours6()
		rules = []nft.Rule{
			{nft.Is(nft.IP6Next, nft.Word("ipv6-icmp")), nft.Is(nft.ICMP6Type, nft.Word("nd-neighbor-solicit")), b.to("solicit")},
			{nft.Is(nft.IP6Next, nft.Word("ipv6-icmp")), nft.Is(nft.ICMP6Type, nft.Word("nd-neighbor-advert")), b.to("advert")},
		}
	}
	rules = append(rules, nft.Rule{b.notOwn(f, f.Source()), b.to(sourceCount)})
	rules = append(rules, b.offLink(f)...)
	rules = append(rules, b.plan.Closed(f, b.to(refusedCount))...)
	b.resets(f)
	rules = append(rules, nft.Rule{
		nft.Masked{Field: nft.TCPFlags, Mask: 7, Words: []nft.Word{"fin", "syn", "rst"}, Value: nft.Word("rst")}, nft.Jump(b.name("resets" + version(f)))})
	rules = append(rules, b.plan.Open(f, addMark(b.mark.allowed()), nft.Count{Counter: allowedCount}, nft.Accept)...)
	next, icmp, judge := nft.IPProtocol, nft.Word("icmp"), nft.Goto(judge4Chain)
	if f == nft.IPv6 {
		next, icmp, judge = nft.IP6Next, nft.Word("ipv6-icmp"), nft.Goto(judge6Chain)
	}
	rules = append(rules,
		nft.Rule{nft.Is(next, nft.Word("tcp")), nft.Not(nft.TCPPort, nft.Number(0)), judge},
		nft.Rule{nft.Is(next, nft.Word("udp")), nft.Not(nft.UDPPort, nft.Number(0)), judge})
	for _, types := range notForContainers[f] {
		field := nft.ICMPType
		if f == nft.IPv6 {
			field = nft.ICMP6Type
		}
		rules = append(rules, nft.Rule{nft.Is(next, icmp), nft.Is(field, types), malformed})
	}
	rules = append(rules, nft.Rule{nft.Is(next, icmp), judge}, nft.Rule{malformed})
	b.chain(f, b.name("ip"+version(f)), rules...)
}

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

// offLink drops packets to elsewhere than this link that are not sent to a router: some other container would get
// them, whatever its address.
func (b *builder) offLink(f nft.Kind) []nft.Rule {
	beside := []nft.Rule{}
	for _, p := range append(b.onLink(f), groups[f]...) {
		beside = append(beside, nft.Rule{nft.Is(f.Destination(), nft.Network(p)), nft.Return})
	}
	for _, h := range b.Routers {
		beside = append(beside, nft.Rule{nft.Is(nft.EtherDestination, h), nft.Return})
	}
	name := b.name("routed" + version(f))
	b.chain(f, name, append(beside, nft.Rule{b.to(misdirectedCount)})...)
	return []nft.Rule{{nft.Jump(name)}}
}

// groups are addresses that no router is needed for on any link.
var groups = map[nft.Kind][]netip.Prefix{
	nft.IPv4: {netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32")},
	nft.IPv6: {netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8")},
}

// A reset that the kernel sends has no data, and few options: timestamps (RFC 7323), and MP_TCPRST (RFC 8684 §3.6).
const minTCPWords, maxTCPWords = 5, 9

// resets lets resets of connections through that are open, whatever the phase: those of sockets that a switch has
// destroyed must reach the other end.
func (b *builder) resets(f nft.Kind) {
	header := nft.Number(20)
	if f == nft.IPv6 {
		header = 40
	}
	var rules []nft.Rule
	for words := nft.Number(minTCPWords); words <= maxTCPWords; words++ {
		rules = append(rules, nft.Rule{nft.Is(nft.TCPOffset, words), nft.Is(nft.Length, header+4*words),
			addMark(b.mark.open()), nft.Count{Counter: resetsCount}, nft.Accept})
	}
	b.chain(f, b.name("resets"+version(f)), rules...)
}

var inboundNames = map[policy.Inbound]string{policy.InboundAll: "all", policy.InboundHost: "host", policy.InboundNone: "none"}

func (b *builder) refusal(i policy.Inbound, f nft.Kind) nft.Verdict {
	return b.to("refuse"+version(f), inboundNames[i])
}

// phase makes the chains of a phase for a family.
func (b *builder) phase(n policy.Phase, f nft.Kind) {
	refuse := b.refusal(b.Phases[n].Inbound, f)
	rules, chains := b.plan.Judge(n, f, direct.Outcomes{
		Refuse:     refuse,
		Let:        func(tests ...nft.Part) nft.Rule { return append(slices.Clone(tests), nft.Return) },
		Redirected: []nft.Part{addMark(b.mark.replies())},
		Floor:      b.floors[b.Phases[n].Inbound],
	})
	b.chains = append(b.chains, chains...)
	// Replies and errors belong to what has come in.
	unasked := nft.Rule{nft.Is(nft.Protocol, nft.Word("icmp")), nft.Not(nft.ICMPType, nft.Word("echo-request")), refuse}
	if f == nft.IPv6 {
		unasked = nft.Rule{nft.Is(nft.Protocol, nft.Word("ipv6-icmp")), nft.Not(nft.ICMP6Type, nft.Echo6), refuse}
	}
	r := b.ref(b.generation, n)
	b.chain(f, r.judge(f), append([]nft.Rule{unasked}, rules...)...)
	if r.secluded {
		b.link(r, f)
	}
}

// refusals makes the chains, once, that refuse for phases with a choice of who may dial the container.
func (b *builder) refusals(i policy.Inbound) {
	if b.floors[i] != nil {
		return
	}
	for _, f := range b.families() {
		b.chain(f, b.refusal(i, f).Chain(), b.refuse(i, f)...)
	}
	b.floors[i] = b.plan.NewFloor("floor_"+inboundNames[i], func(f nft.Kind) nft.Verdict { return b.refusal(i, f) })
	b.chains = append(b.chains, b.floors[i].Chains...)
}

// refuse drops what a phase does not allow, but for what may be a reply to something that has come in.
func (b *builder) refuse(i policy.Inbound, f nft.Kind) []nft.Rule {
	refused := nft.Rule{b.to(refusedCount)}
	reply := []nft.Part{b.setMark(b.mark.replies()), nft.Count{Counter: repliesCount}, nft.Accept}
	echo := nft.Is(nft.ICMPType, nft.Word("echo-request"))
	if f == nft.IPv6 {
		echo = nft.Is(nft.ICMP6Type, nft.Echo6)
	}
	// The first segment of a connection and a request for an echo are no replies.
	first := []nft.Rule{
		{echo, b.to(refusedCount)},
		{nft.Masked{Field: nft.TCPFlags, Mask: 18, Words: []nft.Word{"syn", "ack"}, Value: nft.Word("syn")}, b.to(refusedCount)},
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
