package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/lifecycle"
	"sluice/lifecycle/evidence"
)

const (
	// quietTime is how long no record must come for the last one to be taken for the last; a record is on its way for
	// some milliseconds.
	quietTime = 300 * time.Millisecond
	// quietLimit bounds the wait for that, and for an answer of the controller.
	quietLimit = 3 * time.Second
	// againAfter is how long to wait before records are asked for again.
	againAfter = 100 * time.Millisecond
)

// recorder gathers the audit records of a task's containers while it runs.
type recorder struct {
	client *api.Client
	chain  *evidence.Chain // nil if nobody wants the file
	wait   sync.WaitGroup
	cancel context.CancelFunc

	mu      sync.Mutex // guards all below, and the chain
	ids     map[string]bool
	live    int // containers that run
	reading bool
	gaps    float64 // of the controller, when it was asked last
	summary evidence.Summary
	last    time.Time
	problem string
}

func newRecorder(client *api.Client) *recorder {
	return &recorder{client: client, ids: map[string]bool{}, cancel: func() {}}
}

// start begins to read the controller's records, unless that is being done.
func (r *recorder) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reading {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.reading, r.cancel = true, cancel
	r.wait.Go(func() { r.read(ctx) })
}

// read takes records until ctx ends, or the stream does while no container runs: a controller that was started for the
// task ends with its last container.
func (r *recorder) read(ctx context.Context) {
	for {
		var ended error
		for e, err := range r.client.Events(ctx) {
			if err != nil {
				ended = err // always the last that comes
				break
			}
			r.add(e)
		}
		if ctx.Err() != nil || r.over(ended) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(againAfter):
		}
	}
}

// over notes that the stream has ended, and reports whether that is all right.
func (r *recorder) over(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live > 0 {
		r.brokeLocked(fmt.Errorf("the records broke off: %w", err))
	}
	r.reading = r.live > 0
	return !r.reading
}

func (r *recorder) add(e control.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ids[e.ContainerID] {
		return
	}
	r.last = time.Now()
	r.summary.Add(&e)
	if r.chain != nil {
		if err := r.chain.Decision(e); err != nil {
			r.brokeLocked(err)
		}
	}
}

// brokeLocked notes the first reason for which evidence may be missing. r.mu is held.
func (r *recorder) brokeLocked(err error) {
	if r.problem == "" {
		r.problem = err.Error()
	}
}

// opened takes the records of a container too.
func (r *recorder) opened(id string) {
	r.start() // another controller may have taken it than the one that was asked before
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checkGapsLocked(len(r.ids) == 0)
	r.ids[id] = true
	r.live++
}

// closing is told that a container is about to go, while the controller still has a reason to be there; the container's
// last records are still taken.
func (r *recorder) closing() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checkGapsLocked(false)
	r.live--
}

// step writes a step to the audit file and returns its head.
func (r *recorder) step(s lifecycle.Step) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.chain == nil {
		return ""
	}
	if err := r.chain.Step(s); err != nil {
		r.brokeLocked(err)
	}
	return r.chain.Head()
}

// stop waits until no more records come, and returns what they say.
func (r *recorder) stop() (*evidence.Summary, taskAudit) {
	began := time.Now()
	for r.quietFor(began) < quietTime && time.Since(began) < quietLimit {
		time.Sleep(quietTime / 10)
	}
	r.mu.Lock()
	cancel := r.cancel
	if r.live > 0 { // it is kept
		r.checkGapsLocked(false)
	}
	r.mu.Unlock()
	cancel()
	r.wait.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	a := taskAudit{Records: r.summary.Records(), Complete: r.problem == "", Problem: r.problem}
	if r.chain != nil {
		a.Head = r.chain.Head()
	}
	return &r.summary, a
}

// gapsMetric counts how often records of a sidecar may have been lost.
const gapsMetric = "sluice_sidecar_audit_gaps_total"

// checkGapsLocked asks the controller whether records may have been lost since it was asked before, or, the first time,
// only remembers what it says. Another controller counts from 0. r.mu is held.
func (r *recorder) checkGapsLocked(first bool) {
	gaps, err := r.readGaps()
	switch {
	case err != nil:
		r.brokeLocked(err)
		return
	case !first && gaps > r.gaps:
		r.brokeLocked(errors.New("a sidecar ended, or its records came too fast: some may be lost"))
	}
	r.gaps = gaps
}

func (r *recorder) readGaps() (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), quietLimit)
	defer cancel()
	text, err := r.client.Metrics(ctx)
	if err != nil {
		return 0, fmt.Errorf("whether records are lost is not known: %w", err)
	}
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, gapsMetric+" "); found {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("whether records are lost is not known: the controller has no metric %s", gapsMetric)
}

// quietFor is how long ago the last record came, but not longer than since began.
func (r *recorder) quietFor(began time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.reading && len(r.ids) == 0 {
		return quietTime // nothing was ever read
	}
	if r.last.After(began) {
		return time.Since(r.last)
	}
	return time.Since(began)
}
