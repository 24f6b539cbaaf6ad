package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
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

// recorder gathers the audit records of a task's containers while it runs. Each container has a stream of its own, that
// of the controller that has attached it: one that was started for an earlier container ends with that.
type recorder struct {
	client *api.Client
	chain  *evidence.Chain // nil if nobody wants the file
	wait   sync.WaitGroup
	ctx    context.Context // of all streams
	cancel context.CancelFunc

	mu      sync.Mutex // guards all below, and the chain
	live    map[string]bool
	taken   bool    // there was a container
	gaps    float64 // of the controller, when it was asked last
	summary evidence.Summary
	last    time.Time
	problem string
}

func newRecorder(client *api.Client) *recorder {
	ctx, cancel := context.WithCancel(context.Background())
	return &recorder{client: client, ctx: ctx, cancel: cancel, live: map[string]bool{}}
}

// attached begins to take the records of a container that the controller has just attached. When it returns, the
// controller collects them, so the container may start.
func (r *recorder) attached(ctx context.Context, id string) error {
	streaming, end := context.WithCancel(r.ctx)
	waiting := context.AfterFunc(ctx, end)
	events, err := r.client.Subscribe(streaming)
	if !waiting() {
		err = context.Cause(ctx)
	}
	if err != nil {
		end()
		return fmt.Errorf("ask the controller for audit records: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checkGapsLocked(!r.taken)
	r.taken, r.live[id] = true, true
	r.wait.Go(func() {
		defer end()
		r.read(streaming, id, events)
	})
	return nil
}

// read takes the records of a container until ctx ends, or the stream does after the container.
func (r *recorder) read(ctx context.Context, id string, events iter.Seq2[control.Event, error]) {
	for {
		var ended error
		for e, err := range events {
			if err != nil {
				ended = err // always the last that comes
				break
			}
			if e.ContainerID == id {
				r.add(e)
			}
		}
		if ctx.Err() != nil || r.over(id, ended) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(againAfter):
		}
		events = r.client.Events(ctx)
	}
}

// over notes that a container's stream has ended, and reports whether that is all right.
func (r *recorder) over(id string, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live[id] {
		r.brokeLocked(fmt.Errorf("the records broke off: %w", err))
	}
	return !r.live[id]
}

func (r *recorder) add(e control.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
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

// closing is told that a container is about to go, while the controller still has a reason to be there; the container's
// last records are still taken.
func (r *recorder) closing(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checkGapsLocked(false)
	delete(r.live, id)
}

// failed is told of a container that never started.
func (r *recorder) failed(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, id)
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
	if len(r.live) > 0 { // it is kept
		r.checkGapsLocked(false)
	}
	r.mu.Unlock()
	r.cancel()
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
	if !r.taken {
		return quietTime // nothing was ever read
	}
	if r.last.After(began) {
		return time.Since(r.last)
	}
	return time.Since(began)
}
