package proxy

import (
	"context"
	"sync"

	"sluice/matcher"
	"sluice/proxy/resolve"
)

// askedNames are a session's look-ups under way of names that clients chose.
type askedNames struct {
	mu   sync.Mutex // guards what follows
	open map[*askedName]struct{}
}

// askedName is one of them.
type askedName struct {
	target endpoint
	cancel context.CancelFunc
}

func (a *askedNames) add(one *askedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = make(map[*askedName]struct{})
	}
	a.open[one] = struct{}{}
}

func (a *askedNames) remove(one *askedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, one)
}

// rejudge ends the look-ups of names that r refuses.
func (a *askedNames) rejudge(r *rules) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for one := range a.open {
		if r.target(one.target).Verdict == matcher.Refuse {
			one.cancel()
		}
	}
}

// resolveFor looks up the host of an endpoint that a client chose, and that r allows. What name servers have to be asked
// for that comes out of r's budget. A switch that refuses it ends the look-up.
func (s *Session) resolveFor(ctx context.Context, r *rules, e endpoint) (resolve.Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	one := &askedName{e, cancel}
	s.asked.add(one)
	defer s.asked.remove(one)
	// A switch before this line is seen here, one after it sees the look-up.
	if now := s.rules(); now != r && now.target(e).Verdict == matcher.Refuse {
		cancel()
	}
	const questions = 2 // one for each family
	return s.resolver().LookupIf(ctx, e.host, func() bool {
		return r.budget.Spend(r.set.Name(e.host, e.port), []byte(e.host), questions)
	})
}
