package gate

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"sluice/dockernet/netns"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// Gate is the table inside one namespace. Its methods may be called by any number of goroutines; they run one after
// another. Nothing else may change its tables. It keeps a socket open in the namespace, until [Gate.Close].
//
// What a method changes of the rules in force, it changes in one transaction of rules only, so that no packet ever
// meets a part of it; an error means that nothing of it has happened, unless the kernel's answer was lost. Then what
// is in force is unknown, and [Gate.Quarantine] is the way out.
type Gate struct {
	ns *netns.Namespace

	mu sync.Mutex // guards all below
	// staged is the newest generation and current what is in force: one phase of some generation, or none before
	// Install and in a quarantine.
	staged  *stage
	current *ref
	// known is what of the newest Spec the chains need that belong to no generation, see fixed.
	known  Spec
	kernel *nft.Conn // nil until it is needed
	// unheld is set if the kernel cannot refuse frames.
	unheld bool
	// older are chains and sets of generations before staged, to be deleted with the next switch.
	older nft.Objects
}

// stage is what is known of a generation that the kernel has.
type stage struct {
	generation generation
	refs       [policy.PhaseCount]ref
	allPublic  bool // so that fewer frames of the workload's are refused
}

// New returns the gate of a namespace. The namespace stays the caller's and must be open for as long as the gate is
// used.
func New(ns *netns.Namespace) *Gate { return &Gate{ns: ns} }

// Install puts the rules of all phases into the namespace, and the phase in force. Where a table is there already, for
// instance of a controller that has ended, its rules are in force until the new ones are, whatever they were.
//
// Where the namespace has addresses of a family but no default route, it gets one that leads nowhere, so that
// connections come as far as the rules.
func (g *Gate) Install(s *Spec, phase policy.Phase) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.do("install", func() error {
		if err := s.check(); err != nil {
			return err
		}
		if err := g.ns.Do(addRoutes); err != nil {
			return err
		}
		if err := g.stage(s); err != nil {
			return err
		}
		return g.enforce(g.staged.refs[phase])
	})
}

// Stage puts the rules of a new Spec beside those that are there. [Gate.Both] and [Gate.Switch] use them from now on;
// before that nothing of them is in force. The container may have left the network with its default route since
// [Gate.Install], so that what is said there of routes holds here too.
func (g *Gate) Stage(s *Spec) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.do("stage", func() error {
		if err := s.check(); err != nil {
			return err
		}
		if err := g.ns.Do(addRoutes); err != nil {
			return err
		}
		return g.stage(s)
	})
}

// Both lets only through what the phase in force and the given one allow. In a quarantine nothing is let through
// anyway, and Both leaves it so.
func (g *Gate) Both(phase policy.Phase) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.do("narrow", func() error {
		if g.staged == nil {
			return errNotInstalled
		}
		if g.current == nil {
			return nil
		}
		b := new(nft.Batch)
		b.Replace(tableID, inForce(*g.current, g.staged.refs[phase])...)
		return g.kernel.Send(b)
	})
}

// Switch puts the phase in force, of the Spec that came last, and ends a quarantine.
func (g *Gate) Switch(phase policy.Phase) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.do("switch", func() error {
		if g.staged == nil {
			return errNotInstalled
		}
		return g.enforce(g.staged.refs[phase])
	})
}

var errNotInstalled = errors.New("no rules have been staged: install the gate first")

// Retarget makes redirects lead to other listeners, which must be of the same families. Connections that were
// redirected before stay where they are.
func (g *Gate) Retarget(l Listeners) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.do("retarget", func() error {
		if g.staged == nil {
			return errNotInstalled
		}
		if err := l.check(); err != nil {
			return err
		}
		if (l.TCP6 == 0) != (g.known.Listeners.TCP6 == 0) {
			return errors.New("the namespace has got or lost ::1: install the gate again")
		}
		b := new(nft.Batch)
		b.Replace(tableID, forListeners(l, g.known.Shared)...)
		if err := g.kernel.Send(b); err != nil {
			return err
		}
		g.known.Listeners = l
		return nil
	})
}

// Quarantine refuses everything, open connections into the container and to the listeners included, but for the
// workload's own loopback. It needs nothing to be there.
func (g *Gate) Quarantine() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.do("quarantine", func() error {
		there, err := existing(g.kernel)
		if err != nil {
			return err
		}
		b := new(nft.Batch)
		b.AddTable(tableID)
		base := fixed(&g.known)
		if g.staged == nil {
			// What is there was made by somebody who knew the listeners.
			base = slices.DeleteFunc(base, func(c nft.Chain) bool { return slices.Contains(there.Chains, c.Name) })
		}
		b.AddCounters(tableID, refusedCount, proxiedCount, dnsCount)
		b.AddChains(tableID, base...)
		b.Replace(tableID, base...)
		b.Replace(tableID, quarantined()...)
		if err := g.kernel.Send(b); err != nil {
			return err
		}
		g.current = nil
		return nil
	})
}

// Remove takes the table and what Install added to the routes away. Nothing is refused or redirected any more.
func (g *Gate) Remove() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.do("remove", func() error {
		b := new(nft.Batch)
		b.DeleteTable(tableID)
		b.DeleteTable(framesID)
		if err := g.kernel.Send(b); err != nil {
			return err
		}
		g.staged, g.current, g.known, g.older = nil, nil, Spec{}, nft.Objects{}
		return g.ns.Do(removeRoutes)
	})
}

// Close closes the connection to the kernel. The rules stay, and a method that needs a connection opens another.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.kernel != nil {
		_ = g.kernel.Close()
		g.kernel = nil
	}
}

// do runs f with a connection. The caller has locked g.
func (g *Gate) do(what string, f func() error) error {
	var err error
	if g.kernel == nil {
		err = g.dial()
	}
	if err == nil {
		err = f()
	}
	if err == nil {
		return nil
	}
	if g.kernel != nil {
		_ = g.kernel.Close() // there may be answers in it that nobody has read
		g.kernel = nil
	}
	return fmt.Errorf("%s gate in network namespace %v: %w", what, g.ns.ID(), err)
}

// dial opens a connection, in place of one that is of no more use.
func (g *Gate) dial() error {
	if g.kernel != nil {
		_ = g.kernel.Close()
		g.kernel = nil
	}
	return g.ns.Do(func() (err error) {
		g.kernel, err = nft.Dial()
		return err
	})
}

// stage gives the kernel the sets and chains of a new generation, to which nothing leads yet.
func (g *Gate) stage(s *Spec) error {
	there, err := existing(g.kernel)
	if err != nil {
		return err
	}
	next := newest(there) + 1
	if s, err = g.narrowed(s); err != nil {
		return err
	}
	t, refs := build(s, next)
	base := fixed(s)
	b := new(nft.Batch)
	b.AddTable(tableID)
	b.AddCounters(tableID, allCounters()...)
	// Base chains follow when there are rules for them.
	b.AddChains(tableID, slices.DeleteFunc(slices.Clone(base), func(c nft.Chain) bool { return c.Hook != nil })...)
	b.AddChains(tableID, t.Chains...)
	b.AddSets(tableID, slices.Concat(t.Sets, s.Shared.sets())...)
	b.AddRules(tableID, t.Chains...)
	if err := g.kernel.Send(b); err != nil {
		return err
	}
	staged := &stage{generation: next, refs: refs, allPublic: s.allPublic() && s.Shared == nil}
	if err := g.kernel.Verify(tableID, t.Sets); err != nil {
		d := new(nft.Batch)
		d.Delete(tableID, t.Objects())
		return errors.Join(err, g.kernel.Send(d))
	}
	if !staged.allPublic {
		which := heldAll
		if s.Shared != nil {
			which = heldSockets
		}
		if err := g.holdFrames(which); err != nil {
			return err
		}
		if err := s.checkFrames(g.unheld); err != nil {
			return err
		}
	}
	g.staged, g.known = staged, Spec{Listeners: s.Listeners, LogGroup: s.LogGroup, Shared: s.Shared, noLinks6: s.noLinks6}
	g.older = generations(there)
	return nil
}

// enforce puts one phase of the newest generation in force, and deletes what is older.
func (g *Gate) enforce(r ref) error {
	b := new(nft.Batch)
	if g.current == nil || g.current.generation != r.generation {
		base := fixed(&g.known)
		b.AddChains(tableID, base...)
		b.Replace(tableID, base...)
	}
	wider := g.staged.allPublic && (g.current == nil || g.current.generation != r.generation)
	b.Replace(tableID, inForce(r)...)
	b.Delete(tableID, g.older)
	if err := g.kernel.Send(b); err != nil {
		return err
	}
	g.current, g.older = &r, nft.Objects{}
	if wider {
		return g.holdFrames(heldIPv6)
	}
	return nil
}

// Installed reports whether there are rules of a gate, whoever has made them.
func (g *Gate) Installed() (is bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	err = g.do("look for", func() error {
		there, err := existing(g.kernel)
		is = len(there.Chains) > 0
		return err
	})
	return is, err
}

// Counters reads the table's counters. Without a table all are zero.
func (g *Gate) Counters() (c Counters, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	err = g.do("read counters of", func() error {
		got, err := g.kernel.Counters(tableID)
		if err != nil {
			return err
		}
		c.RefusedAlways, c.Redirected, c.DNS = got[refusedCount], got[proxiedCount], got[dnsCount]
		for p := range policy.Phase(policy.PhaseCount) {
			c.Direct[p], c.Refused[p] = got[directCounter(p)], got[refusedCounter(p)]
		}
		return nil
	})
	return c, err
}
