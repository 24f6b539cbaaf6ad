package gate

import (
	"fmt"
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

	resetsChain     = "resets"
	refuseChain     = "refuse"
	denyChain       = "deny"
	quietChain      = "quiet"
	rejectChain     = "reject_all"
	proxyChain      = "to_proxy"
	dnsChain        = "dns_to_proxy"
	swallowChain    = "swallow"
	loopbackChain   = "loopback"
	redirectedChain = "redirected"
	sealedChain     = "sealed"
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

// common and judge are where packets of a family go: through what does not depend on a phase, and then to the phases
// in force.
func (g generation) common(f nft.Kind) string { return g.name("common" + version(f)) }
func (g generation) judge(f nft.Kind) string  { return g.name("judge" + version(f)) }

func version(f nft.Kind) string { return map[nft.Kind]string{nft.IPv4: "4", nft.IPv6: "6"}[f] }

// ref is a phase of a generation.
type ref struct {
	generation generation
	phase      policy.Phase
	families   []nft.Kind
	restricted bool // refuses connections into the container, so that it has an input chain
	proxied    bool // sends TCP to the proxy, so that it has a chain for that
}

func (s *Spec) ref(g generation, p policy.Phase) ref {
	return ref{g, p, s.families(), s.restricted(p), s.Proxies(p)}
}

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
	t := build(s, 1)
	t.Counters = allCounters()
	t.Chains = append(t.Chains, fixed(s)...)
	for _, c := range inForce(s.ref(1, phase)) {
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
func build(s *Spec, g generation) *nft.Table {
	b := &builder{Spec: s, generation: g, plan: direct.NewPlan(&s.Spec, s.families(), true, g.name)}
	var phases []policy.Phase
	for n := range s.Phases {
		phases = append(phases, policy.Phase(n))
	}
	b.floor = b.plan.NewFloor("floor", phases, func(nft.Kind) nft.Verdict { return refuse })
	b.chains = b.floor.Chains
	for _, f := range s.families() {
		b.chain(f, g.judge(f))
		b.common(f)
	}
	b.steer()
	for _, n := range phases {
		b.phase(n)
	}
	return &nft.Table{ID: tableID, Sets: b.plan.Sets, Chains: b.chains}
}

func (b *builder) name(parts ...string) string { return b.generation.name(parts...) }

func (b *builder) chain(kind nft.Kind, name string, rules ...nft.Rule) {
	b.chains = append(b.chains, nft.Chain{Name: name, Kind: kind, Rules: rules})
}

// inForce are the chains that say which phases are in force: all of them must let a packet through. The rules that do
// not depend on a phase are those of the first one's generation.
func inForce(phases ...ref) []nft.Chain {
	first := phases[0]
	output := nft.Chain{Name: outputChain, Hook: outputHook}
	steer := nft.Chain{Name: steerChain, Hook: steerHook, Rules: []nft.Rule{{nft.Jump(first.generation.name("common", "steer"))}}}
	input := nft.Chain{Name: inputChain, Hook: inputHook, Rules: arriving()}
	if slices.ContainsFunc(phases, func(r ref) bool { return r.restricted }) {
		input.Rules = append(input.Rules, nft.Rule{nft.Is(nft.InIndex, loopback), nft.Accept})
	}
	var chains []nft.Chain
	for _, f := range first.families {
		output.Rules = append(output.Rules, nft.Rule{nft.Is(nft.Family, word(f)), nft.Goto(first.generation.common(f))})
		judge := nft.Chain{Name: first.generation.judge(f), Kind: f}
		for _, r := range phases {
			if slices.Contains(r.families, f) {
				judge.Rules = append(judge.Rules, nft.Rule{nft.Jump(r.chain(f))})
			} else {
				judge.Rules = append(judge.Rules, nft.Rule{refuse})
			}
		}
		judge.Rules = append(judge.Rules, nft.Rule{nft.Accept})
		chains = append(chains, judge)
	}
	// Of another family there is nothing but what refuses it, which goes by the loopback.
	output.Rules = append(output.Rules, nft.Rule{nft.Is(nft.OutIndex, loopback), nft.Goto(loopbackChain)}, nft.Rule{refuse})
	for _, r := range phases {
		steer.Rules = append(steer.Rules, nft.Rule{nft.Jump(r.steer())})
		if r.restricted {
			input.Rules = append(input.Rules, nft.Rule{nft.Jump(r.input())})
		}
	}
	return append(chains, output, steer, input)
}

func word(f nft.Kind) nft.Word { return map[nft.Kind]nft.Word{nft.IPv4: "ipv4", nft.IPv6: "ipv6"}[f] }
