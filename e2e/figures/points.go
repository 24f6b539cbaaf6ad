package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/e2e/lab/internet"
)

const (
	// points are how many moments of an attach or a switch each program is ended at, from its beginning to its end.
	points = 12
	// afterTruth is for how long it is watched whether what was said is true.
	afterTruth = 300 * time.Millisecond
)

// neverBare is an address that no phase allows.
var neverBare = netip.MustParseAddr("203.0.113.246")

// program is one that is ended. The repair does what a unit or an operator would do.
type program struct {
	name string
	end  func(context.Context, *stage, syscall.Signal) (repair func() error, err error)
}

var programs = []program{
	{"the sidecar", func(ctx context.Context, st *stage, s syscall.Signal) (func() error, error) {
		return func() error { return nil }, signalSidecar(s)(ctx, st, nil)
	}},
	{"the controller", func(ctx context.Context, st *stage, s syscall.Signal) (func() error, error) {
		return st.startController, st.endController(s)
	}},
	{"the engine", func(ctx context.Context, st *stage, s syscall.Signal) (func() error, error) {
		return func() error { return st.StartEngine(ctx) }, st.StopEngine(ctx, s)
	}},
}

// endController signals the controller and waits for its end.
func (st *stage) endController(s syscall.Signal) error {
	err := st.serve.Process.Signal(s)
	select {
	case <-st.ended:
	case <-time.After(recoverLimit):
		err = errors.Join(err, errors.New("the controller does not end"), st.serve.Process.Kill())
		<-st.ended
	}
	st.serve = nil
	return err
}

// pointFigures ends each program at twelve moments of attaches and of switches.
func pointFigures(ctx context.Context, st *stage) error {
	if err := errors.Join(st.nameSoak(), st.liveRestore(ctx)); err != nil {
		return err
	}
	c, err := st.start("points", "bridge")
	if err != nil {
		return err
	}
	s := &soaker{stage: st, id: c.name, ns: c.ns, now: &soakRun}
	for _, p := range programs {
		for _, way := range []struct {
			name   string
			signal syscall.Signal
		}{{"is killed", syscall.SIGKILL}, {"is told to end", syscall.SIGTERM}} {
			for _, call := range []pointCall{{"attach", s.pointAttach}, {"switch", s.pointSwitch}} {
				var all pointOutcome
				for i := range points {
					if err := s.point(ctx, &all, p, way.signal, call, i); err != nil {
						return fmt.Errorf("%s %s at point %d of the %s: %w", p.name, way.name, i, call.name, err)
					}
				}
				row(fmt.Sprintf("%s %s at %d points of the %s", p.name, way.name, points, call.name), "%v", &all)
			}
		}
	}
	return st.end(ctx, c)
}

// pointCall is what is under way when a program ends. It returns what the call said: the state that must hold, if it said
// that it had been done.
type pointCall struct {
	name string
	do   func(context.Context) (said *said, err error)
}

// said is what the answer to a call has told.
type said struct {
	phase      *soakPhase
	generation uint64
}

func (s *soaker) pointAttach(ctx context.Context) (*said, error) {
	status, err := s.api.Attach(ctx, api.Attach{Container: s.id, Policy: soakPolicy(), Phase: soakRun.phase})
	if err != nil {
		return nil, err
	}
	return &said{&soakRun, status.Generation}, nil
}

func (s *soaker) pointSwitch(ctx context.Context) (*said, error) {
	receipt, err := s.api.Phase(ctx, s.id, soakEnd.phase, 0)
	if err != nil {
		return nil, err
	}
	return &said{&soakEnd, receipt.Generation}, nil
}

// pointOutcome sums up what became of all tries.
type pointOutcome struct {
	tries, done, failed int
	kept, undone        int // of the failed calls: what they asked for held afterwards, or did not
	leaked, refused     int64
	recovery            times
}

func (o *pointOutcome) String() string {
	return fmt.Sprintf("%d tries: %d calls answered, all truly; %d failed, of which %d took effect and %d did not; %d of %d refused packets arrived; all works again after p50 %s, at most %s",
		o.tries, o.done, o.failed, o.kept, o.undone, o.leaked, o.refused, milliseconds(o.recovery.at(0.5)), milliseconds(o.recovery.at(1)))
}

// ready brings the container to where the call begins.
func (s *soaker) ready(ctx context.Context, call pointCall) error {
	err := s.api.Detach(ctx, s.id)
	if errors.Is(err, control.ErrNotFound) {
		err = nil
	}
	if err == nil && call.name == "switch" {
		_, err = s.pointAttach(ctx)
	}
	s.now = &soakRun
	return err
}

// point ends a program i twelfths into a call, which has been seen to take so long.
func (s *soaker) point(ctx context.Context, all *pointOutcome, p program, signal syscall.Signal, call pointCall, i int) error {
	if err := s.ready(ctx, call); err != nil {
		return err
	}
	began := time.Now()
	if _, err := call.do(ctx); err != nil {
		return err
	}
	whole := time.Since(began)
	if err := s.ready(ctx, call); err != nil {
		return err
	}
	var refused, leaked atomic.Int64
	capture, err := s.Internet.Capture(func(p *internet.Packet) {
		if p.To.Addr() == neverBare {
			leaked.Add(1)
		}
	})
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	var using sync.WaitGroup
	held := func() { using.Go(func() { s.sendTo(neverBare, stop, &refused) }) }
	if call.name == "switch" { // before an attach, everything is open
		held()
	}
	type answer struct {
		said *said
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		said, err := call.do(ctx)
		answered <- answer{said, err}
	}()
	time.Sleep(whole * time.Duration(i) / points)
	repair, err := p.end(ctx, s.stage, signal)
	ended := time.Now()
	got := answer{}
	if err == nil {
		// Without the engine a call may wait for it, so it is repaired first; without the controller it has ended.
		err = repair()
		got = <-answered
	}
	if err == nil {
		err = s.truth(ctx, got.said, got.err, call, all)
	}
	if err == nil && call.name == "attach" {
		held()
	}
	if err == nil {
		err = s.works(ctx, ended.Add(recoverLimit))
		all.recovery = append(all.recovery, time.Since(ended))
		time.Sleep(afterTruth)
	}
	close(stop)
	using.Wait()
	err = errors.Join(err, capture.Close())
	all.tries++
	all.leaked += leaked.Load()
	all.refused += refused.Load()
	if err == nil {
		err = refusedAll(s)
	}
	return err
}

// truth compares what a call has said with what the controller says afterwards, and what it says with what passes; then
// it brings about what was asked for, if the call has not.
func (s *soaker) truth(ctx context.Context, told *said, failure error, call pointCall, all *pointOutcome) error {
	status, err := s.rest(ctx)
	if told != nil {
		all.done++
		if err != nil {
			return fmt.Errorf("the call was answered, and then: %w", err)
		}
		if status.Phase != told.phase.phase || status.Generation < told.generation || status.State != api.Attached {
			return fmt.Errorf("the call's answer was phase %s, generation %d; now it is %s in phase %s, generation %d: %s", told.phase.phase, told.generation,
				status.State, status.Phase, status.Generation, status.Problem)
		}
		s.now = told.phase
		return nil
	}
	all.failed++
	switch {
	case errors.Is(err, control.ErrNotFound) && call.name == "attach":
		all.undone++
	case err != nil:
		return fmt.Errorf("after the call's error %w: %w", failure, err)
	case status.State == api.Attached:
		s.now = &soakRun
		if status.Phase == soakEnd.phase {
			s.now = &soakEnd
		}
		if (call.name == "attach") || s.now == &soakEnd {
			all.kept++
		} else {
			all.undone++
		}
		// What it says has to be so, before anybody does anything about it.
		if err := s.works(ctx, time.Now().Add(recoverLimit)); err != nil {
			return fmt.Errorf("it says that it is in phase %s, but: %w", status.Phase, err)
		}
		if err := refusedAll(s); err != nil {
			return err
		}
	default: // in quarantine, until a switch succeeds
		all.undone++
		if err := refused(s.echo("tcp4", soakRun.bare)); err != nil {
			return fmt.Errorf("in quarantine: %w", err)
		}
	}
	told, err = call.do(ctx)
	if err != nil {
		return fmt.Errorf("once more: %w", err)
	}
	s.now = told.phase
	return nil
}

// rest waits until the controller answers, and has come to rest with the container.
func (s *soaker) rest(ctx context.Context) (status api.Status, err error) {
	err = s.until(ctx, func() (err error) {
		status, err = s.api.Status(ctx, s.id)
		if errors.Is(err, control.ErrNotFound) {
			return nil
		}
		if err == nil && status.State != api.Attached && status.State != api.Quarantined {
			err = fmt.Errorf("it is %s", status.State)
		}
		return err
	})
	if err == nil && status.ID == "" {
		err = control.NotFoundError(s.id)
	}
	return status, err
}

// refusedAll tries what only the other phase allows.
func refusedAll(s *soaker) error {
	for what, err := range map[string]error{
		"TLS":        refused(s.tls(s.now.other())),
		"an address": refused(s.echo("tcp4", s.now.other().bare)),
		"a datagram": refused(s.echo("udp4", s.now.other().bare)),
		"a look-up":  s.lookUp(s.now.other().name, 3),
	} {
		if err != nil {
			return fmt.Errorf("%s that phase %s refuses: %w", what, s.now.phase, err)
		}
	}
	return nil
}
