package guard

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

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
	id   nft.ID

	mu sync.Mutex // guards what follows; taken before any of the host's
	portState
	removed bool
}

type portState struct {
	// staged is the newest generation. inForce are the phases in force, with the generation of the first in current:
	// one or two, or none before Install and in a quarantine.
	staged, current *stage
	inForce         []ref
	quarantined     bool
	// older are chains and sets of generations before staged, to be deleted with the next switch.
	older nft.Objects
}

// stage is what is known of a generation that the kernel has.
type stage struct {
	generation generation
	spec       *Spec
	objects    nft.Objects
}

func (s *stage) ref(p policy.Phase) ref { return s.spec.ref(s.generation, p) }

// Port returns the guard of the veth whose end on the host has this name. It is always the same one for a name, until
// [Port.Remove]. After that it has to be asked for again.
func (h *Host) Port(name string) *Port {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.ports[name]
	if p == nil {
		p = &Port{host: h, name: name, id: tableOf(name)}
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
		b := new(nft.Batch)
		b.DeleteTable(p.id)
		if err := p.host.with(func(c *nft.Conn) error { return c.Send(b) }); err != nil {
			return err
		}
		p.portState = portState{}
		p.removed = true
		p.host.mu.Lock()
		delete(p.host.found, p.name)
		if p.host.ports[p.name] == p {
			delete(p.host.ports, p.name)
		}
		p.host.mu.Unlock()
		return p.host.removePort(p.name)
	})
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
	// Before there are rules nothing depends on these names, and without them the rules do not hold.
	if err := p.host.addPort(p.name); err != nil {
		return err
	}
	return p.host.with(func(c *nft.Conn) error {
		if err := p.takeOver(c); err != nil {
			return err
		}
		next := generation(1)
		older := p.older
		if p.staged != nil {
			next = p.staged.generation + 1
			older.Chains = slices.Concat(older.Chains, p.staged.objects.Chains)
			older.Sets = slices.Concat(older.Sets, p.staged.objects.Sets)
		}
		next = max(next, newest(older)+1)
		t := build(s, p.host.config, next)
		b := new(nft.Batch)
		b.AddTable(p.id)
		b.AddCounters(p.id, allCounters...)
		b.AddChains(p.id, t.Chains...)
		b.AddSets(p.id, t.Sets...)
		b.AddRules(p.id, t.Chains...)
		if err := c.Send(b); err != nil {
			return err
		}
		if err := c.Verify(p.id, t.Sets); err != nil {
			d := new(nft.Batch)
			d.Delete(p.id, t.Objects())
			return errors.Join(err, c.Send(d))
		}
		made.generation, made.objects = next, t.Objects()
		p.staged, p.older = made, older
		return nil
	})
}

// takeOver finds what an earlier process has left.
func (p *Port) takeOver(c *nft.Conn) error {
	p.host.mu.Lock()
	chains, ok := p.host.found[p.name]
	delete(p.host.found, p.name)
	p.host.mu.Unlock()
	if !ok {
		return nil
	}
	sets, err := c.Sets(p.id)
	if err != nil {
		return err
	}
	for _, name := range chains {
		if _, ok := generationOf(name); ok {
			p.older.Chains = append(p.older.Chains, name)
		}
	}
	p.older.Sets = append(p.older.Sets, sets...)
	return nil
}

// generationOf reads the number at the end of a name.
func generationOf(name string) (generation, bool) {
	i := strings.LastIndexByte(name, '_')
	n, err := strconv.ParseUint(name[i+1:], 10, 32)
	return generation(n), err == nil && i > 0
}

func newest(o nft.Objects) (newest generation) {
	for _, name := range slices.Concat(o.Chains, o.Sets) {
		if g, ok := generationOf(name); ok {
			newest = max(newest, g)
		}
	}
	return newest
}

// enforce puts one phase of the newest generation in force, and deletes what is older.
func (p *Port) enforce(r ref) error {
	b := new(nft.Batch)
	if p.current != p.staged {
		ingress := p.host.ingress(p.staged.spec, r.generation)
		b.AddChains(p.id, ingress)
		b.Replace(p.id, ingress)
	}
	b.Replace(p.id, p.host.inForce(p.staged.spec, r)...)
	b.Delete(p.id, p.older)
	if err := p.host.with(func(c *nft.Conn) error { return c.Send(b) }); err != nil {
		return err
	}
	p.current, p.inForce, p.quarantined, p.older = p.staged, []ref{r}, false, nft.Objects{}
	// The name may have changed hands while the chain was made.
	return p.isThere(p.staged)
}

func (p *Port) both(r ref) error {
	refs := []ref{p.inForce[0], r}
	b := new(nft.Batch)
	b.Replace(p.id, p.host.inForce(p.current.spec, refs...)...)
	if err := p.host.with(func(c *nft.Conn) error { return c.Send(b) }); err != nil {
		return err
	}
	p.inForce = refs
	return nil
}

// addQuarantine adds to a batch what drops everything.
func (p *Port) addQuarantine(b *nft.Batch) {
	chain := p.host.quarantined(p.name)
	b.AddTable(p.id)
	b.AddCounters(p.id, quarantineCount)
	b.AddChains(p.id, chain)
	b.Replace(p.id, chain)
}

func (p *Port) quarantine() error {
	if p.removed {
		return errRemoved
	}
	b := new(nft.Batch)
	p.addQuarantine(b)
	if err := p.host.with(func(c *nft.Conn) error { return c.Send(b) }); err != nil {
		return err
	}
	p.current, p.inForce, p.quarantined = nil, nil, true
	return nil
}

// Counters reads the table's counters. Without a table all are zero.
func (p *Port) Counters() (c PortCounters, err error) {
	err = p.do("read counters of", func() error {
		return p.host.with(func(conn *nft.Conn) error {
			got, err := conn.Counters(p.id)
			if err != nil {
				return err
			}
			c = PortCounters{
				Allowed: got[allowedCount], Replies: got[repliesCount], Resets: got[resetsCount],
				Refused: got[refusedCount], FalseSource: got[sourceCount], Malformed: got[malformedCount],
				Misdirected: got[misdirectedCount], Neighbour: got[neighbourCount], Quarantine: got[quarantineCount],
			}
			return nil
		})
	})
	return c, err
}
