package gate

import (
	"fmt"
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

	shapeChain      = "shape"
	resetsChain     = "resets"
	refuseChain     = "refuse"
	quietChain      = "quiet"
	rejectChain     = "reject_all"
	proxyChain      = "to_proxy"
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
	// What all phases look for, by family.
	locals, hosts map[family][]finder
}

// build makes the sets and chains of all phases. Nothing leads to them yet.
func build(s *Spec, g generation) *table {
	b := &builder{Spec: s, generation: g, locals: make(map[family][]finder), hosts: make(map[family][]finder)}
	for _, f := range b.families() {
		// An allowlist asks for local addresses once, the other modes twice.
		b.locals[f] = b.find(f, "local", s.local(f), 2*policy.PhaseCount)
		b.hosts[f] = b.find(f, "host", addresses(s.Host, f), 1)
	}
	b.common()
	b.floorChains()
	for i := range s.Phases {
		b.phase(policy.Phase(i))
	}
	return &b.table
}

func (b *builder) name(parts ...string) string { return b.generation.name(parts...) }

func (b *builder) chain(name string, rules ...rule) {
	b.table.chains = append(b.table.chains, chain{name: name, rules: rules})
}

// families that there are listeners for. All of another one is refused.
func (b *builder) families() []family {
	if b.serves(ipv6) {
		return families
	}
	return families[:1]
}
