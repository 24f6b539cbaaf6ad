package controller

import (
	"context"
	"sync"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/controller/tally"
	"sluice/policy"
)

// What is kept of a container for its report. More is only counted: it stands in the records, which are for others to
// keep.
const (
	keptSwitches = 64
	keptAttempts = 512 // of each phase
)

// history is what has happened to a container since this controller began to look after it.
type history struct {
	since   time.Time
	partial string // why what was before is not known; empty if there was nothing

	mu       sync.Mutex // guards what follows
	switches []api.Switch
	earlier  int
	tried    tally.Summary
}

// changed notes a change that has succeeded, or the problem for which it has not.
func (h *history) changed(began time.Time, r api.Receipt, problem string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.switches) == keptSwitches {
		h.switches = append(h.switches[:0], h.switches[1:]...)
		h.earlier++
	}
	h.switches = append(h.switches, api.Switch{Began: began, Receipt: r, Problem: problem})
}

// record takes an audit record in.
func (h *history) record(e *control.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried.Limit = keptAttempts
	h.tried.Add(e)
}

// publish gives an audit record to all that want it.
func (c *Controller) publish(e control.Event) {
	c.mu.Lock()
	m := c.about[e.ContainerID]
	c.mu.Unlock()
	if m != nil {
		m.history.record(&e)
	}
	c.events.Publish(e)
}

// Report says what has happened to a container since a controller began to look after it.
func (c *Controller) Report(ctx context.Context, ref string) (api.Report, error) {
	m, err := c.present(ctx, ref)
	if err != nil {
		return api.Report{}, err
	}
	now := m.shown.Load()
	r := api.Report{Status: m.status(), Since: m.history.since, Partial: m.history.partial, Now: time.Now(), Packets: []api.Packets{}}
	if r.Status.Policies, err = now.set.policies(); err != nil {
		return r, err
	}
	if now.net != nil {
		// Where they cannot be read, it has ended as a rule.
		if p, err := now.net.Packets(); err == nil {
			for i := range p.Direct {
				r.Packets = append(r.Packets, api.Packets{Phase: policy.Phase(i).String(), Allowed: p.Direct[i], AllowedBytes: p.DirectBytes[i], Refused: p.Refused[i]})
			}
		}
	}
	h := &m.history
	h.mu.Lock()
	defer h.mu.Unlock()
	r.Switches, r.Earlier, r.Traffic = append([]api.Switch{}, h.switches...), h.earlier, h.tried.Phases()
	return r, nil
}
