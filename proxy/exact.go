package proxy

import (
	"sync"

	"golang.org/x/sync/errgroup"

	"sluice/policy"
)

// maxExact bounds the names that are looked up for one address of which none is known.
const maxExact = 256

// exactNames is the run of look-ups of a session's exact names that is under way. All connections that wait for it share
// it: a container that tries address after address must not have one for each.
type exactNames struct {
	mu      sync.Mutex // guards what follows
	rules   *rules     // the run is for these; nil if there is none
	waiting []func()
}

// learnExact looks up the exact names that r allows, so that their addresses are known, and then calls done.
func (s *Session) learnExact(r *rules, done func()) {
	e := &s.exact
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = append(e.waiting, done)
	if e.rules == r {
		return
	}
	e.rules = r // those who wait for a run for other rules are judged by these now
	s.server.running.Go(func() {
		s.lookUpAll(r)
		e.mu.Lock()
		if e.rules != r {
			e.mu.Unlock()
			return
		}
		waiting := e.waiting
		e.rules, e.waiting = nil, nil
		e.mu.Unlock()
		for _, done := range waiting {
			done()
		}
	})
}

// lookUpAll looks up the exact names that r allows.
func (s *Session) lookUpAll(r *rules) {
	var group errgroup.Group
	group.SetLimit(16)
	n := 0
	for _, t := range r.policy.Targets {
		if t.Kind != policy.Hostname {
			continue
		}
		if n++; n > maxExact {
			break
		}
		group.Go(func() error {
			_, _ = s.lookUp(s.server.context, r, endpoint{host: t.Host, port: t.Port}) // one that fails allows nothing
			return nil
		})
	}
	_ = group.Wait()
}
