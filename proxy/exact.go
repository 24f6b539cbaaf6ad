package proxy

import (
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/policy"
)

const (
	// maxExact bounds the names that are looked up for one address of which none is known.
	maxExact = 256
	// exactTime is how long what those look-ups have shown is good for any other address: a container that tries address
	// after address must not keep the proxy busy.
	exactTime = time.Second
)

// exactNames is the last run of look-ups of a session's exact names, which all connections share that wait for it.
type exactNames struct {
	mu      sync.Mutex // guards what follows
	rules   *rules     // the run is for these
	ended   time.Time  // zero while it is under way
	waiting []func()
}

// learnExact looks up the exact names that r allows, so that their addresses are known, and then calls done. It reports
// false, and does nothing, if they were just looked up.
func (s *Session) learnExact(r *rules, done func()) bool {
	e := &s.exact
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.rules != r:
	case e.ended.IsZero():
		e.waiting = append(e.waiting, done)
		return true
	case time.Since(e.ended) < exactTime:
		return false
	}
	former := e.waiting // of a run for other rules, which are judged by these now
	e.rules, e.ended, e.waiting = r, time.Time{}, append(former, done)
	s.server.running.Go(func() {
		s.lookUpAll(r)
		e.mu.Lock()
		if e.rules != r {
			e.mu.Unlock()
			return
		}
		waiting := e.waiting
		e.ended, e.waiting = time.Now(), nil
		e.mu.Unlock()
		for _, done := range waiting {
			done()
		}
	})
	return true
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
			_, _ = s.lookUp(s.server.context, t.Host) // one that fails allows nothing
			return nil
		})
	}
	_ = group.Wait()
}
