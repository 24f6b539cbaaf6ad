package gate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// tableID is that of the gate's table.
var tableID = nft.ID{Family: "inet", Name: "sluice"}

// The chains of the table that are there whatever the phase.
const (
	// Base chains.
	outputChain  = "output"
	steerChain   = "steer"
	inputChain   = "input"
	forwardChain = "forward"
	leaveChain   = "leave"
	arriveChain  = "arrive"

	output6Chain    = "output6"
	resetsChain     = "resets"
	refuseChain     = "refuse"
	denyChain       = "deny"
	hushChain       = "hush"
	quietChain      = "quiet"
	rejectChain     = "reject_all"
	proxyChain      = "to_proxy"
	dnsChain        = "dns_to_proxy"
	swallowChain    = "swallow"
	loopbackChain   = "loopback"
	redirectedChain = "redirected"
	sealedChain     = "sealed"
	listenersChain  = "listeners" // and the family's number
)

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

func version(f nft.Kind) string { return map[nft.Kind]string{nft.IPv4: "4", nft.IPv6: "6"}[f] }

// ref is a phase of a generation.
type ref struct {
	generation generation
	phase      policy.Phase
	common     *common
	restricted bool // refuses connections into the container, so that it has an input chain
	proxied    bool // sends TCP to the proxy, so that it has a chain for that
}

// common is what the phases of a generation have in common.
type common struct {
	families     []nft.Kind
	closed, open []netip.AddrPort // see ref.head
	shared       *Shared
}

func (c *common) has(f nft.Kind) bool { return slices.Contains(c.families, f) }

func (r ref) chain(f nft.Kind) string { return r.generation.name(r.phase.String(), version(f)) }
func (r ref) input() string           { return r.generation.name(r.phase.String(), "input") }
func (r ref) steer() string {
	if !r.proxied {
		return dnsChain
	}
	return r.generation.name(r.phase.String(), "steer")
}

// Listing shows the rules that are in force while one phase is, as nft reads them. Rules that nft has no words for are
// comments.
func Listing(s *Spec, phase policy.Phase) (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	return whole(s, phase).String(), nil
}

// whole is the table with one phase in force.
func whole(s *Spec, phase policy.Phase) *nft.Table {
	t, refs := build(s, 1)
	t.Counters = allCounters()
	t.Sets = append(t.Sets, s.Shared.sets()...)
	t.Chains = append(t.Chains, fixed(s)...)
	for _, c := range inForce(refs[phase]) {
		t.Put(c)
	}
	return t.Reachable()
}

// builder makes what a generation needs.
type builder struct {
	*Spec
	generation generation
	plan       *direct.Plan
	floor      *direct.Floor
	chains     []nft.Chain
}

// build makes the sets and chains of all phases. Nothing leads to them yet.
func build(s *Spec, g generation) (*nft.Table, [policy.PhaseCount]ref) {
	b := &builder{Spec: s, generation: g, plan: direct.NewPlan(&s.Spec, s.families(), true, g.name)}
	var phases []policy.Phase
	for n := range s.Phases {
		phases = append(phases, policy.Phase(n))
	}
	b.floor = b.plan.NewFloor("floor", phases, func(nft.Kind) nft.Verdict { return refuse })
	b.chains = b.floor.Chains
	for _, f := range s.families() {
		if f == nft.IPv6 {
			b.fresh6()
		}
		b.others(f)
		// The sets of what heads ask.
		b.plan.Closed(f)
		b.plan.Open(f)
	}
	b.steer()
	b.rest()
	all := &common{s.families(), slices.Clone(s.Closed), slices.Clone(s.Open), s.Shared}
	var refs [policy.PhaseCount]ref
	for _, n := range phases {
		refs[n] = ref{g, n, all, s.restricted(n), s.Proxies(n)}
		b.phase(refs[n])
	}
	return &nft.Table{ID: tableID, Sets: b.plan.Sets, Chains: b.chains}, refs
}

func (b *builder) name(parts ...string) string { return b.generation.name(parts...) }

func (b *builder) chain(kind nft.Kind, name string, rules ...nft.Rule) {
	b.chains = append(b.chains, nft.Chain{Name: name, Kind: kind, Rules: rules})
}

// inForce are the chains that say which phases are in force: all of them must let a packet through. The rules that do
// not depend on a phase are those of the first one's generation.
func inForce(phases ...ref) []nft.Chain {
	first := phases[0]
	shared := first.common.shared
	steer := nft.Chain{Name: steerChain, Hook: steerHook, Rules: append(shared.opening(), nft.Rule{nft.Jump(first.generation.name("common", "steer"))})}
	input := nft.Chain{Name: inputChain, Hook: inputHook, Rules: arriving()}
	if slices.ContainsFunc(phases, func(r ref) bool { return r.restricted }) {
		input.Rules = append(input.Rules, nft.Rule{nft.Is(nft.InIndex, loopback), nft.Accept})
	}
	output := nft.Chain{Name: outputChain, Hook: outputHook, Kind: nft.IPv4, Rules: through(nft.IPv4, phases)}
	output6 := nft.Chain{Name: output6Chain, Kind: nft.IPv6}
	if !first.common.has(nft.IPv6) {
		// What refuses IPv6 answers by way of the loopback.
		output6.Rules = []nft.Rule{{nft.Is(nft.OutIndex, loopback), nft.Goto(loopbackChain)}, {refuse}}
	} else {
		output6.Rules = through(nft.IPv6, phases)
	}
	// What is left is IPv4, as the chain says.
	output.Rules = slices.Concat(shared.own(), []nft.Rule{{nft.Is(nft.Family, word(nft.IPv6)), nft.Goto(output6Chain)}}, output.Rules)
	for _, r := range phases {
		steer.Rules = append(steer.Rules, nft.Rule{nft.Jump(r.steer())})
		if r.restricted {
			input.Rules = append(input.Rules, nft.Rule{nft.Jump(r.input())})
		}
	}
	return []nft.Chain{output, output6, steer, input}
}

// through are the rules for packets of a family.
func through(f nft.Kind, phases []ref) []nft.Rule {
	rules := phases[0].head(f)
	for _, r := range phases {
		if !r.common.has(f) {
			rules = append(rules, nft.Rule{refuse}) // a newer Spec has no listeners for it
		} else {
			rules = append(rules, nft.Rule{nft.Jump(r.chain(f))})
		}
	}
	return append(rules, nft.Rule{nft.Accept})
}

func word(f nft.Kind) nft.Word { return map[nft.Kind]nft.Word{nft.IPv4: "ipv4", nft.IPv6: "ipv6"}[f] }
