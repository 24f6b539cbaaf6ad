package guard

import (
	"fmt"
	"slices"
	"strings"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// ingressChain is the base chain, the only one that does not belong to a generation.
const ingressChain = "ingress"

// Counters: of a port, and of all ports that share a table.
const (
	allowedCount = "allowed" // also for connections that are open already
	resetsCount  = "resets"

	sourceCount      = "false_source"
	malformedCount   = "malformed"
	misdirectedCount = "misdirected"
	neighbourCount   = "neighbour"
	quarantineCount  = "quarantine"

	repliesCount = "replies"
	refusedCount = "refused" // by the phase, or closed
)

var (
	portCounters = []string{allowedCount, resetsCount,
		sourceCount, malformedCount, misdirectedCount, neighbourCount, quarantineCount}
	tableCounters = []string{repliesCount, refusedCount}
)

// The kernel looks at every chain of all tables whenever anything changes (nf_tables_commit), so there are few of a
// port's own: those with its addresses, counters and limits of neighbours. Ports that share a table have the others in
// common.

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
// words for are comments. In the kernel the port shares a table with others, and its name is before that of each chain.
func Listing(s *Spec, phase policy.Phase, m Mark, logGroup uint16) (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	if err := m.check(); err != nil {
		return "", err
	}
	t := build(s, config{m, logGroup}, 1)
	t.Counters = slices.Concat(portCounters, tableCounters)
	t.Put(config{m, logGroup}.ingress(s, 1))
	for _, c := range t.inForce(s.ref(1, phase)) {
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
	own    map[string]bool // chains of the port's own
	floors map[policy.Inbound]*direct.Floor
}

// rules are what a generation consists of.
type rules struct {
	nft.Table
	*builder
}

// build makes the sets and chains of all phases, with those for what is in force still empty. Nothing leads to them yet.
func build(s *Spec, c config, g generation) *rules {
	b := &builder{Spec: s, config: c, generation: g, own: make(map[string]bool), floors: make(map[policy.Inbound]*direct.Floor)}
	b.plan = direct.NewPlan(&s.Spec, s.families(), false, g.name)
	b.chain(nft.AnyKind, b.name(refusedChain), b.dropped(refusedChain)...)
	b.chain(nft.AnyKind, b.name(forgedChain), b.dropped(forgedChain)...)
	for _, f := range s.families() {
		b.ownChain(f, g.judge(f))
		if b.secluded() {
			b.ownChain(linkKind(f), g.link(f))
		}
		b.packets(f)
	}
	for i := range s.Phases {
		b.refusals(s.Phases[i].Inbound)
		for _, f := range s.families() {
			b.phase(policy.Phase(i), f)
		}
	}
	return &rules{nft.Table{ID: nft.ID{Family: "netdev", Name: hostName}, Sets: append(b.plan.Sets, b.sets...), Chains: b.chains}, b}
}

// chain makes one that does not tell ports from each other.
func (b *builder) chain(kind nft.Kind, name string, rules ...nft.Rule) {
	b.chains = append(b.chains, nft.Chain{Name: name, Kind: kind, Rules: rules})
}

func (b *builder) ownChain(kind nft.Kind, name string, rules ...nft.Rule) {
	b.chain(kind, name, rules...)
	b.own[name] = true
}

// linkKind is how neighbours of a family are sought.
func linkKind(f nft.Kind) nft.Kind {
	if f == nft.IPv4 {
		return nft.ARP
	}
	return f
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

// Limits of what is logged, by reason and table, and how much of a packet: the headers and what a reader could recognise.
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

// etherTypes are asked for in one piece with the address before them: of the link's header the kernel reads every piece
// the slow way.
var etherTypes = map[nft.Kind]nft.Bytes{nft.IPv4: {0x08, 0x00}, nft.IPv6: {0x86, 0xdd}}

// ingress judges frames and ARP, and leads packets to the chains of a generation.
func (c config) ingress(s *Spec, g generation) nft.Chain {
	rules := []nft.Rule{{nft.SetMark{Clear: uint32(c.mark)}}}
	for _, f := range s.families() {
		rules = append(rules, nft.Rule{nft.Is(nft.EtherFrom, slices.Concat(s.Hardware[:], etherTypes[f])), g.to("ip" + version(f))})
	}
	rules = append(rules, g.drop(sourceCount, nft.Not(nft.EtherSource, s.Hardware)))
	return nft.Chain{Name: ingressChain, Hook: ingressHook(s.Interface), Rules: slices.Concat(rules, c.arp(s, g), []nft.Rule{
		g.drop(neighbourCount, isARP),
		g.drop(malformedCount),
	})}
}

// inForce are the chains that say which phases are in force: all of them must let a packet through. The first one is of
// this generation.
func (b *builder) inForce(phases ...ref) (chains []nft.Chain) {
	for _, f := range b.families() {
		judge, link := nft.Chain{Name: b.generation.judge(f), Kind: f}, nft.Chain{Name: b.generation.link(f), Kind: linkKind(f)}
		for _, r := range phases {
			switch {
			case !slices.Contains(r.families, f): // a newer Spec has no addresses of the family
				judge.Rules = append(judge.Rules, b.drop(malformedCount))
			case r.closed:
				judge.Rules = append(judge.Rules, nft.Rule{r.generation.refusal(r.inbound, f)})
			default:
				judge.Rules = append(judge.Rules, nft.Rule{nft.Jump(r.chain(f))})
			}
			if r.secluded && slices.Contains(r.families, f) {
				link.Rules = append(link.Rules, nft.Rule{nft.Jump(r.link(f))})
			}
		}
		judge.Rules = append(judge.Rules, nft.Rule{nft.Count{Counter: allowedCount}, nft.Accept})
		chains = append(chains, judge)
		if b.secluded() {
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
