package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"sluice/control"
	"sluice/dockernet/netns"
)

// socket is one that a session is served on.
type socket struct {
	kind     string // of package control
	explicit netip.AddrPort
	file     *os.File
	close    func() error
}

// session is one container. Its lock keeps Apply, Hand and Delete of one session apart, for as long as these take.
type session struct {
	lock chan struct{} // holds a token while it is locked

	// The rest is guarded by Sidecar.mu.

	gone bool
	// spec is what the session was given in all, its generation, phase and policies those in force. A sidecar that is
	// started gets it as a whole. Without policies it gets none, and refuses.
	spec    control.SessionSpec
	sockets []socket // replaced and never changed
	set     uint64   // their number; 0 without
}

// locked returns the session, made if there is none and create is set, and what unlocks it.
func (s *Sidecar) locked(ctx context.Context, id string, create bool) (*session, func(), error) {
	if err := control.CheckID(id); err != nil {
		return nil, nil, err
	}
	select {
	case <-s.adopted: // who there is, is known
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("session %s: wait for the sidecar: %w", id, context.Cause(ctx))
	}
	for {
		s.mu.Lock()
		x := s.sessions[id]
		if x == nil && create {
			x = &session{lock: make(chan struct{}, 1)}
			s.sessions[id] = x
		}
		s.mu.Unlock()
		if x == nil {
			return nil, nil, control.NotFoundError(id)
		}
		select {
		case x.lock <- struct{}{}:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("session %s: wait for another change of it: %w", id, context.Cause(ctx))
		}
		s.mu.Lock()
		gone := x.gone
		s.mu.Unlock()
		if !gone {
			return x, func() { <-x.lock }, nil
		}
		<-x.lock
	}
}

// Apply makes or changes a session in every live sidecar, one that drains after an upgrade included. When it returns a
// receipt, no sidecar passes anything that the new rules refuse. Absent fields of spec keep what the session has.
//
// A sidecar that does not do so in time is killed, which cuts its flows, and Apply waits for the next one. An error that is
// the caller's to repair ([control.CodeInvalid], [control.CodeStale], [control.CodeNotFound]) has changed nothing. After any
// other one the session refuses everything, also in sidecars to come, until Apply succeeds.
func (s *Sidecar) Apply(ctx context.Context, id string, spec control.SessionSpec) (control.Receipt, error) {
	began := time.Now()
	x, unlock, err := s.locked(ctx, id, true)
	if err != nil {
		return control.Receipt{}, err
	}
	defer unlock()
	s.mu.Lock()
	before := x.spec
	s.mu.Unlock()
	var total *control.Receipt
	done := map[*instance]bool{}
	for {
		present, err := s.present(ctx)
		if err != nil {
			s.block(x)
			return control.Receipt{}, fmt.Errorf("session %s refuses everything now: %w", id, err)
		}
		for _, i := range present {
			if done[i] {
				continue
			}
			tell := spec
			if !i.isSettled() {
				// It may not have the session yet. What it is given later with a lower generation, it refuses.
				tell = merged(before, spec)
				tell.Generation = cmp.Or(tell.Generation, before.Generation+1)
			}
			r, err := i.apply(id, tell)
			switch {
			case err == nil:
			case total == nil && callersFault(err):
				s.mu.Lock()
				defer s.mu.Unlock()
				if before.Generation == 0 && x.set == 0 { // nothing is known of it but its name
					x.gone = true
					delete(s.sessions, id)
				}
				return control.Receipt{}, err
			default:
				s.kill(i, reasonSwitch, fmt.Errorf("session %s: %w", id, err))
				continue
			}
			done[i] = true
			spec.Generation = r.Generation // the same in all, also where it was left open
			if total == nil {
				total = &r
				continue
			}
			total.FlowsCut, total.FlowsKept = total.FlowsCut+r.FlowsCut, total.FlowsKept+r.FlowsKept
			total.Unchanged = total.Unchanged && r.Unchanged
		}
		s.mu.Lock()
		// A sidecar that was started meanwhile got what was in force before.
		if total != nil && !slices.ContainsFunc(s.instances, func(i *instance) bool { return !done[i] && !i.dead() }) {
			spec.Generation, spec.Phase = total.Generation, total.Phase
			x.spec = merged(before, spec)
			s.mu.Unlock()
			total.Milliseconds = float64(time.Since(began)) / float64(time.Millisecond)
			return *total, nil
		}
		s.mu.Unlock()
	}
}

// callersFault reports whether a sidecar says that it has changed nothing, because of what it was asked.
func callersFault(err error) bool {
	return errors.Is(err, control.ErrInvalid) || errors.Is(err, control.ErrStale) || errors.Is(err, control.ErrNotFound) ||
		errors.Is(err, &control.Error{Code: control.CodeTooLarge})
}

// block makes the sidecars to come refuse everything in a session: what is in force is not known any more.
func (s *Sidecar) block(x *session) {
	s.mu.Lock()
	x.spec.Policies = nil
	all := slices.Clone(s.instances)
	s.mu.Unlock()
	for _, i := range all {
		if !i.isSettled() { // it may have read what was there before
			s.kill(i, reasonSwitch, errors.New("a switch failed while it was started"))
		}
	}
}

func (s *Sidecar) forget(id string, x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.gone = true
	delete(s.sessions, id)
}

// merged is what a session has been given when it gets more.
func merged(a, b control.SessionSpec) control.SessionSpec {
	if b.Container != "" {
		a.Container = b.Container
	}
	if b.ContainerID != "" {
		a.ContainerID = b.ContainerID
	}
	if b.Phase != "" {
		a.Phase = b.Phase
	}
	if b.Policies != nil {
		a.Policies = maps.Clone(b.Policies)
	}
	if b.Upstreams != nil {
		a.Upstreams = b.Upstreams
	}
	if b.Never != nil {
		a.Never = b.Never
	}
	if b.Hosts != nil {
		a.Hosts = b.Hosts
	}
	if b.NoRoute != nil {
		a.NoRoute = b.NoRoute
	}
	a.Generation = b.Generation
	return a
}

// Hand gives a session its sockets: the newest sidecar serves them, and so does every one after it. The sockets stay the
// caller's too ([netns.Socket.Share]). Those of an earlier Hand stay in service beside them, until [Sidecar.Settle]: first turn the
// redirect to the new ones.
//
// Apply comes first: a session without rules refuses.
func (s *Sidecar) Hand(ctx context.Context, id string, sockets *netns.Sockets) error {
	var all []socket
	for _, one := range []struct {
		socket netns.Socket
		kind   string
		six    bool
	}{
		{sockets.TCP4, control.KindTCP, false}, {sockets.TCP6, control.KindTCP, true},
		{sockets.UDP4, control.KindUDP, false}, {sockets.UDP6, control.KindUDP, true},
	} {
		if one.socket.File == nil {
			continue
		}
		add := socket{kind: one.kind, file: one.socket.File, close: one.socket.Share().Close}
		if at := slices.IndexFunc(s.o.Explicit, func(a netip.AddrPort) bool { return a.Addr().Is6() == one.six }); at >= 0 && one.kind == control.KindTCP {
			add.explicit = s.o.Explicit[at]
		}
		all = append(all, add)
	}
	return s.hand(ctx, id, all)
}

// hand closes the sockets if it fails, or when they are replaced.
func (s *Sidecar) hand(ctx context.Context, id string, sockets []socket) error {
	x, unlock, err := s.locked(ctx, id, true)
	if err != nil {
		closeAll(sockets)
		return err
	}
	defer unlock()
	s.mu.Lock()
	set := max(x.set+1, uint64(time.Now().UnixNano())) // greater than those of a controller before this one
	s.mu.Unlock()
	for {
		live, err := s.live(ctx)
		if err != nil {
			closeAll(sockets)
			return fmt.Errorf("session %s: %w", id, err)
		}
		newest := last(live)
		if err := newest.hand(id, set, sockets); err != nil {
			if errors.Is(err, control.ErrNotTaken) {
				closeAll(sockets) // what it took of them goes with the next Settle
				return err
			}
			s.kill(newest, reasonHand, err)
			continue
		}
		s.mu.Lock()
		// One that was started meanwhile may have passed this session already.
		if last(s.instances) == newest {
			former := x.sockets
			x.sockets, x.set = sockets, set
			s.mu.Unlock()
			closeAll(former) // nobody starts with them any more
			return nil
		}
		s.mu.Unlock()
	}
}

// Settle ends the service of the sockets that a session had before the last [Sidecar.Hand], wherever they are. Who is
// connected through them, or waits in their queues, is served.
func (s *Sidecar) Settle(ctx context.Context, id string) error {
	x, unlock, err := s.locked(ctx, id, false)
	if err != nil {
		return err
	}
	defer unlock()
	s.settleSession(id, x)
	return nil
}

// settleSession does so for a session that the caller has locked.
func (s *Sidecar) settleSession(id string, x *session) {
	s.mu.Lock()
	set := x.set
	s.mu.Unlock()
	if set == 0 {
		return // an earlier controller's are the only ones
	}
	ready := s.ready()
	for n, i := range ready {
		keep := set
		if n < len(ready)-1 {
			keep = 0 // the newest has them
		}
		if err := i.drop(id, keep); err != nil && !errors.Is(err, control.ErrNotFound) {
			s.kill(i, reasonHand, err)
		}
	}
}

func closeAll(sockets []socket) {
	for _, one := range sockets {
		_ = one.close()
	}
}

// Delete ends a session in every sidecar, cuts its flows, and closes its descriptors. A session that is not there is no
// error.
func (s *Sidecar) Delete(ctx context.Context, id string) error {
	x, unlock, err := s.locked(ctx, id, false)
	if errors.Is(err, control.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	s.forget(id, x)
	for _, i := range s.all() {
		// One that is being started may have passed this session already. It becomes ready, or ends.
		<-i.settled
		if i.dead() {
			continue
		}
		if err := i.delete(id); err != nil && !errors.Is(err, control.ErrNotFound) {
			s.kill(i, reasonSwitch, err)
		}
	}
	closeAll(x.sockets)
	return nil
}

// Flows lists a session's open connections in all sidecars.
func (s *Sidecar) Flows(ctx context.Context, id string) ([]control.Flow, error) {
	live, err := s.live(ctx)
	if err != nil {
		return nil, err
	}
	var all []control.Flow
	known := false
	for _, i := range live {
		flows, err := i.client.Flows(ctx, id)
		if errors.Is(err, control.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all, known = append(all, flows...), true
	}
	if !known {
		return nil, control.NotFoundError(id)
	}
	return all, nil
}

// Explain asks the newest sidecar what would happen to target, "host:port" or "host".
func (s *Sidecar) Explain(ctx context.Context, id, target string) (control.Explanation, error) {
	live, err := s.live(ctx)
	if err != nil {
		return control.Explanation{}, err
	}
	return live[len(live)-1].client.Explain(ctx, id, target)
}

// Session returns a session as the newest sidecar has it, with its policies.
func (s *Sidecar) Session(ctx context.Context, id string) (control.SessionStatus, error) {
	live, err := s.live(ctx)
	if err != nil {
		return control.SessionStatus{}, err
	}
	return live[len(live)-1].client.Session(ctx, id)
}

// Sessions lists the ids of all sessions that are known, those included that a controller before this one made.
func (s *Sidecar) Sessions(ctx context.Context) ([]string, error) {
	select {
	case <-s.adopted:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return s.ids(), nil
}
