package guard

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unique"

	"sluice/dockernet/nft"
	"sluice/policy"
)

// Port is the guard of one veth. Its methods may be called by any number of goroutines; they run one after another.
//
// What a method changes of the rules in force, it changes in one transaction of rules only, so that no packet ever
// meets a part of it; an error means that nothing of it has happened, unless the kernel's answer was lost. Then what
// is in force is unknown, and [Port.Quarantine] is the way out.
type Port struct {
	host *Host
	name string

	mu sync.Mutex // guards what follows; taken before any of a group's or the host's
	portState
	// at is the table with the rules of portState, nil while there are none.
	at *group
	// former are tables that have rules of before, which go when others are in force.
	former  []*group
	removed bool
}

type portState struct {
	// staged is the newest generation. inForce are the phases in force, with the generation of the first in current:
	// one or two, or none before Install and in a quarantine.
	staged, current *stage
	inForce         []ref
	quarantined     bool
	// older are generations before staged, to be deleted with the next switch.
	older []*stage
}

// stage is what is known of a generation that the kernel has. The rules are made anew where they are needed again.
type stage struct {
	generation generation
	spec       *Spec
	names      map[string]string // of what it shares with others, in the table, as far as a switch needs them
	own        []string          // chains of the port's own, with their full names
	shared     nft.Objects
}

// entry are the rules that lead to those of the generation.
func (s *stage) entry(c config) *builder {
	return &builder{Spec: s.spec, config: c, generation: s.generation}
}

func (s *stage) ref(p policy.Phase) ref { return s.spec.ref(s.generation, p) }

// Port returns the guard of the veth whose end on the host has this name. It is always the same one for a name, until
// [Port.Remove]. After that it has to be asked for again.
func (h *Host) Port(name string) *Port {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.ports[name]
	if p == nil {
		p = &Port{host: h, name: name, former: h.found[name]}
		h.ports[name] = p
	}
	return p
}

// Install puts the rules of all phases on the veth, and the phase in force. Rules that are there already, for instance
// of an earlier process, are in force until the new ones are, whatever they were.
func (p *Port) Install(s *Spec, phase policy.Phase) error {
	return p.do("install", func() error {
		if err := p.stage(s); err != nil {
			return err
		}
		return p.enforce(p.staged.ref(phase))
	})
}

// Stage puts the rules of a new Spec beside those that are there. [Port.Both] and [Port.Switch] use them from now on;
// before that nothing of them is in force.
func (p *Port) Stage(s *Spec) error {
	return p.do("stage", func() error { return p.stage(s) })
}

// Both lets only through what the phase in force and the given one allow. In a quarantine nothing is let through
// anyway, and Both leaves it so.
func (p *Port) Both(phase policy.Phase) error {
	return p.do("narrow", func() error {
		if p.staged == nil {
			return errNotInstalled
		}
		if p.current == nil {
			return nil
		}
		return p.both(p.staged.ref(phase))
	})
}

// Switch puts the phase in force, of the Spec that came last, and ends a quarantine.
func (p *Port) Switch(phase policy.Phase) error {
	return p.do("switch", func() error {
		if p.staged == nil {
			return errNotInstalled
		}
		return p.enforce(p.staged.ref(phase))
	})
}

var errRemoved = errors.New("its rules were removed: ask the host for the port again")

var errNotInstalled = errors.New("no rules have been staged: install the guard first")

// Quarantine drops every frame that the container sends. It needs nothing to be there but the veth.
func (p *Port) Quarantine() error {
	return p.do("quarantine", p.quarantine)
}

// Remove takes the rules away, also where the veth is gone or an earlier process has made them. On a managed network
// the port is mute from then on, elsewhere nothing is refused any more.
func (p *Port) Remove() error {
	return p.do("remove", func() error {
		if err := p.leaveFormer(); err != nil {
			return err
		}
		if p.at != nil {
			if err := p.takeOut(); err != nil {
				return err
			}
		}
		p.portState, p.at, p.removed = portState{}, nil, true
		p.host.mu.Lock()
		delete(p.host.found, p.name)
		if p.host.ports[p.name] == p {
			delete(p.host.ports, p.name)
		}
		p.host.mu.Unlock()
		return p.host.removePort(p.name)
	})
}

// takeOut deletes all that the port has in its table.
func (p *Port) takeOut() error {
	g, all := p.at, p.older
	if p.staged != nil {
		all = append(slices.Clone(all), p.staged)
	}
	own, shared := objectsOf(all)
	err := p.host.takeOut(g, p.name, shared, func(_ *nft.Conn, b *nft.Batch) error {
		counters := portCounters
		switch {
		case p.staged != nil:
		case p.quarantined:
			counters = []string{quarantineCount}
		default:
			return nil // it has not come to that
		}
		b.DeleteBaseChain(g.id, p.full(ingressChain))
		g.delete(b, own, shared)
		b.DeleteCounters(g.id, p.counters(counters...)...)
		return nil
	})
	if err != nil {
		// Not all is there that should be. What the table has of others may not be what it should be either.
		p.host.close(g)
		return p.host.leave(g, p.name)
	}
	return nil
}

// delete adds to a batch what deletes chains, and what nobody needs without some generations.
func (g *group) delete(b *nft.Batch, own []string, shared nft.Objects) {
	o := g.unneeded(shared)
	b.Delete(g.id, nft.Objects{Chains: append(slices.Clone(own), o.Chains...), Sets: o.Sets})
}

// objectsOf are the chains of some generations, and what they need of others', as often as they need it.
func objectsOf(stages []*stage) (own []string, shared nft.Objects) {
	for _, s := range stages {
		own = append(own, s.own...)
		shared.Chains = append(shared.Chains, s.shared.Chains...)
		shared.Sets = append(shared.Sets, s.shared.Sets...)
	}
	return own, shared
}

// leaveFormer deletes the rules of before.
func (p *Port) leaveFormer() error {
	for len(p.former) > 0 {
		if err := p.host.leave(p.former[0], p.name); err != nil {
			return fmt.Errorf("%w: %w", errLeft, err)
		}
		p.former = p.former[1:]
	}
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	delete(p.host.found, p.name)
	return nil
}

func (p *Port) do(what string, f func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := f(); err != nil {
		return fmt.Errorf("%s guard of %s: %w", what, p.name, err)
	}
	return nil
}

// isThere returns [ErrGone] if the veth is not the one that is meant, or none if that is not known. The kernel knows
// chains by the interface's name only.
func (p *Port) isThere(s *stage) error {
	link, err := p.host.links.LinkByName(p.name)
	switch {
	case isNotFound(err), err == nil && s != nil && link.Attrs().Index != s.spec.Index:
		return ErrGone
	default:
		return err
	}
}

// stage gives the kernel the sets and chains of a new generation, to which nothing leads yet.
func (p *Port) stage(s *Spec) error {
	if err := s.check(); err != nil {
		return err
	}
	if p.removed {
		return errRemoved
	}
	if s.Interface != p.name {
		return fmt.Errorf("the rules are for interface %s", s.Interface)
	}
	made := &stage{spec: s.clone()}
	if err := p.isThere(made); err != nil {
		return err
	}
	if p.at == nil {
		p.at = p.host.join(p.name)
	}
	g, next, older := p.at, generation(1), p.older
	if p.staged != nil {
		next = p.staged.generation + 1
		older = append(slices.Clone(older), p.staged)
	}
	made.generation = next
	c, err := p.content(build(made.spec, p.host.config, next))
	if err != nil {
		return err
	}
	made.names, made.own = c.names, chainNames(c.own)
	made.shared = nft.Objects{Chains: chainNames(c.shared), Sets: setNames(c.sets)}
	made.forget(p.host.config)

	g.mu.Lock()
	defer g.mu.Unlock()
	newChains, newSets := g.missing(c)
	chains := append(newChains, c.own...)
	b := new(nft.Batch)
	b.AddTable(g.id)
	b.AddCounters(g.id, tableCounters...)
	b.AddCounters(g.id, p.counters(portCounters...)...)
	b.AddSets(g.id, newSets...)
	b.AddChains(g.id, chains...)
	b.AddRules(g.id, chains...)
	err = p.host.with(func(c *nft.Conn) error {
		// Before there are rules nothing depends on the port's name in the host's sets, and without it they do not hold.
		if err := p.host.addPort(p.name, b, func() error { return c.Send(b) }); err != nil {
			return err
		}
		if err := c.Verify(g.id, newSets); err != nil {
			d := new(nft.Batch)
			d.Delete(g.id, nft.Objects{Chains: chainNames(chains), Sets: setNames(newSets)})
			return errors.Join(err, c.Send(d))
		}
		return nil
	})
	if err != nil {
		return err
	}
	g.keep(made.shared)
	p.staged, p.older = made, older
	return nil
}

func setNames(sets []nft.Set) []string {
	names := make([]string, len(sets))
	for i := range sets {
		names[i] = sets[i].Name
	}
	return names
}

func chainNames(chains []nft.Chain) []string {
	names := make([]string, len(chains))
	for i := range chains {
		names[i] = chains[i].Name
	}
	return names
}

// forget keeps of the names what a switch needs, and what ports share once for all of them.
func (s *stage) forget(c config) {
	entry := s.entry(c)
	chains := []nft.Chain{c.ingress(s.spec, s.generation)}
	for n := range s.spec.Phases {
		chains = append(chains, entry.inForce(s.ref(policy.Phase(n)))...)
	}
	names := make(map[string]string)
	for i := range chains {
		for _, needed := range chains[i].Uses() {
			if name, ok := s.names[needed]; ok {
				names[strings.Clone(needed)] = unique.Make(name).Value()
			}
		}
	}
	s.names = names
	for _, list := range [][]string{s.shared.Chains, s.shared.Sets} {
		for i := range list {
			list[i] = unique.Make(list[i]).Value()
		}
	}
}

// enforce puts one phase of the newest generation in force, and deletes what is older.
func (p *Port) enforce(r ref) error {
	g := p.at
	own, shared := objectsOf(p.older)
	b := new(nft.Batch)
	if p.current != p.staged {
		ingress := p.named(p.staged.names, p.host.ingress(p.staged.spec, r.generation))
		b.AddChains(g.id, ingress...)
		b.Replace(g.id, ingress...)
	}
	b.Replace(g.id, p.named(p.staged.names, p.staged.entry(p.host.config).inForce(r)...)...)
	g.mu.Lock()
	g.delete(b, own, shared)
	err := p.host.with(func(c *nft.Conn) error { return c.Send(b) })
	if err == nil {
		g.drop(shared)
	}
	g.mu.Unlock()
	if err != nil {
		return err
	}
	p.current, p.inForce, p.quarantined, p.older = p.staged, []ref{r}, false, nil
	if err := p.leaveFormer(); err != nil {
		return err
	}
	// The name may have changed hands while the chain was made.
	return p.isThere(p.staged)
}

func (p *Port) both(r ref) error {
	refs := []ref{p.inForce[0], r}
	b := new(nft.Batch)
	names := maps.Clone(p.current.names)
	maps.Copy(names, p.staged.names) // which may be of another generation
	b.Replace(p.at.id, p.named(names, p.current.entry(p.host.config).inForce(refs...)...)...)
	if err := p.host.with(func(c *nft.Conn) error { return c.Send(b) }); err != nil {
		return err
	}
	p.inForce = refs
	return nil
}

// quarantine drops everything, in the table where the port has its rules or is to have them.
func (p *Port) quarantine() error {
	if p.removed {
		return errRemoved
	}
	if p.at == nil {
		p.at = p.host.join(p.name)
	}
	chains := p.named(nil, p.host.quarantined(p.name))
	b := new(nft.Batch)
	b.AddTable(p.at.id)
	b.AddCounters(p.at.id, p.counters(quarantineCount)...)
	b.AddChains(p.at.id, chains...)
	b.Replace(p.at.id, chains...)
	if err := p.host.with(func(c *nft.Conn) error { return c.Send(b) }); err != nil {
		return errors.Join(p.isThere(nil), err)
	}
	p.current, p.inForce, p.quarantined = nil, nil, true
	return nil
}

// Counters reads the table's counters. Without a table all are zero.
func (p *Port) Counters() (c PortCounters, err error) {
	err = p.do("read counters of", func() error {
		if p.at == nil {
			return nil
		}
		return p.host.with(func(conn *nft.Conn) error {
			got, err := conn.Counters(p.at.id)
			if err != nil {
				return err
			}
			of := func(counter string) nft.Counter { return got[p.full(counter)] }
			c = PortCounters{
				Allowed: of(allowedCount), Resets: of(resetsCount),
				FalseSource: of(sourceCount), Malformed: of(malformedCount), Misdirected: of(misdirectedCount), Neighbour: of(neighbourCount), Quarantine: of(quarantineCount),
			}
			return nil
		})
	})
	return c, err
}
