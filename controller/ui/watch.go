package ui

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"sluice/control"
	"sluice/controller/tally"
)

// What is kept of the records, which may come faster than anybody reads.
const (
	keptOfAll = 256 // refusals of all containers
	keptOfOne = 16  // refusals of each, so that a noisy one does not hide the others
	maxText   = 256 // bytes of a text that a workload may have chosen

	slots    = 12 // in which a minute is counted
	slotSpan = 5 * time.Second

	pruneEvery = time.Minute
)

// Refusal is what the page shows of a record.
type Refusal struct {
	Time        time.Time `json:"time"`
	Container   string    `json:"container"`
	ContainerID string    `json:"-"`
	Phase       string    `json:"phase"`
	Protocol    string    `json:"protocol"`
	Target      string    `json:"target"`
	Port        uint16    `json:"port,omitempty"`
	Reason      string    `json:"reason"`
	Rule        string    `json:"rule,omitempty"`
	Decision    string    `json:"decision"`
}

// counts are of the last minute.
type counts struct {
	Allowed  uint64 `json:"allowed"`
	Refused  uint64 `json:"refused"`
	BytesIn  uint64 `json:"bytes_in"`
	BytesOut uint64 `json:"bytes_out"`
}

// activity is what a container has done of late.
type activity struct {
	slots [slots]struct {
		number int64
		counts
	}
	refused ring
}

// ring keeps the last refusals, the oldest first. Its limit is the capacity that it was made with.
type ring []*Refusal

func (r *ring) add(x *Refusal) {
	if len(*r) == cap(*r) {
		copy(*r, (*r)[1:])
		(*r)[len(*r)-1] = x
		return
	}
	*r = append(*r, x)
}

func (a *activity) minute(now time.Time) (sum counts) {
	newest := slotOf(now)
	for i := range a.slots {
		if s := &a.slots[i]; s.number > newest-slots && s.number <= newest {
			sum.Allowed, sum.Refused = sum.Allowed+s.Allowed, sum.Refused+s.Refused
			sum.BytesIn, sum.BytesOut = sum.BytesIn+s.BytesIn, sum.BytesOut+s.BytesOut
		}
	}
	return sum
}

func slotOf(t time.Time) int64 { return t.UnixNano() / int64(slotSpan) }

// watch sums records up.
type watch struct {
	mu     sync.Mutex // guards what follows
	of     map[string]*activity
	last   ring
	missed int // times that records came too fast
}

func newWatch() *watch {
	return &watch{of: map[string]*activity{}, last: make(ring, 0, keptOfAll)}
}

// add takes a record in. It is counted when it comes, for its own time is when a connection began.
func (w *watch) add(e *control.Event, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.of[e.ContainerID]
	if a == nil {
		a = &activity{}
		w.of[e.ContainerID] = a
	}
	number := slotOf(now)
	s := &a.slots[number%slots]
	if s.number != number {
		s.number, s.counts = number, counts{}
	}
	s.BytesIn, s.BytesOut = s.BytesIn+e.BytesIn, s.BytesOut+e.BytesOut
	switch e.Verdict {
	case tally.Allowed:
		s.Allowed++
	case tally.Refused:
		s.Refused++
		r := &Refusal{Time: e.Time, Container: clip(e.Container), ContainerID: e.ContainerID, Phase: clip(e.Phase), Protocol: clip(e.Protocol),
			Target: clip(e.Target), Port: e.Port, Reason: clip(e.Reason), Rule: clip(e.Rule), Decision: clip(e.Decision)}
		if a.refused == nil {
			a.refused = make(ring, 0, keptOfOne)
		}
		a.refused.add(r)
		w.last.add(r)
	}
}

// clip keeps the beginning of a text that may be long, in memory of its own.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// prune forgets containers that are gone.
func (w *watch) prune(there func(id string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.of {
		if !there(id) {
			delete(w.of, id)
		}
	}
}

// Run follows the records until ctx is done. Whoever publishes them never waits for it.
func (p *Page) Run(ctx context.Context) error {
	prune := time.NewTicker(pruneEvery)
	defer prune.Stop()
	for ctx.Err() == nil {
		if p.follow(ctx, prune.C) {
			p.watch.mu.Lock()
			p.watch.missed++
			p.watch.mu.Unlock()
		}
	}
	return nil
}

// follow takes records in until ctx is done or they come too fast, which it reports.
func (p *Page) follow(ctx context.Context, prune <-chan time.Time) (dropped bool) {
	s := p.source.Events().Subscribe()
	defer s.Close()
	for {
		select {
		case <-ctx.Done():
			return false
		case e, ok := <-s.C:
			if !ok {
				return true
			}
			p.watch.add(&e, p.now())
		case <-prune:
			all, err := p.containers(ctx)
			if err != nil {
				continue // the next time
			}
			there := map[string]bool{}
			for i := range all {
				there[all[i].ID] = true
			}
			p.watch.prune(func(id string) bool { return there[id] })
			p.mu.Lock()
			maps.DeleteFunc(p.samples, func(id string, _ sample) bool { return !there[id] })
			p.mu.Unlock()
		}
	}
}
