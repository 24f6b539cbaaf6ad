package sidecar

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"sluice/control"
)

// Socket is a listening socket in a container's namespace.
type Socket struct {
	Kind string // control.KindTCP or control.KindUDP
	// Explicit is the loopback address in the container that is redirected to a TCP listener for clients that are told
	// of a proxy; zero if there is none.
	Explicit netip.AddrPort
	File     *os.File
}

// session is one container. Its lock keeps Apply, Hand and Delete of one session apart, for as long as these take.
type session struct {
	lock chan struct{} // holds a token while it is locked

	// The rest is guarded by Sidecar.mu.

	gone bool
	// spec is what the session was given in all, its generation, phase and policies those in force. A sidecar that is
	// started gets it as a whole. Without policies it gets none, and refuses.
	spec    control.SessionSpec
	sockets []Socket // duplicates, replaced and never changed
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
	if spec.Generation == 0 {
		spec.Generation = before.Generation + 1
	}
	var total *control.Receipt
	done := map[*instance]bool{}
	for {
		live, err := s.live(ctx)
		if err != nil {
			s.block(x)
			return control.Receipt{}, fmt.Errorf("session %s refuses everything now: %w", id, err)
		}
		for _, i := range slices.Backward(live) { // the newest says what is right
			if done[i] {
				continue
			}
			r, err := i.apply(id, spec)
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
	a.Generation = b.Generation
	return a
}

// Hand gives a session its sockets: duplicates are served by the newest sidecar and by every one after it. Sockets of an
// earlier Hand are replaced. turn, which may be nil, is called when the new ones are in service and before the service of
// the earlier ones ends: let it turn the redirect. If it fails, both stay in service until the next Hand.
//
// Apply comes first: a session without rules refuses. The caller's files stay its own.
func (s *Sidecar) Hand(ctx context.Context, id string, sockets []Socket, turn func() error) error {
	x, unlock, err := s.locked(ctx, id, true)
	if err != nil {
		return err
	}
	defer unlock()
	copies, err := duplicates(sockets)
	if err != nil {
		return fmt.Errorf("session %s: %w", id, err)
	}
	s.mu.Lock()
	set := max(x.set+1, uint64(time.Now().UnixNano())) // greater than those of a controller before this one
	former, formerSet := x.sockets, x.set
	s.mu.Unlock()
	for in := (*instance)(nil); ; {
		live, err := s.live(ctx)
		if err != nil {
			closeAll(copies)
			return fmt.Errorf("session %s: %w", id, err)
		}
		newest := live[len(live)-1]
		if newest != in {
			if err := newest.hand(id, set, copies); err != nil {
				if errors.Is(err, control.ErrNotTaken) {
					_ = newest.drop(id, formerSet) // what it took of them; the next Hand tries again
					closeAll(copies)
					return err
				}
				s.kill(newest, reasonHand, err)
				continue
			}
			in = newest
		}
		s.mu.Lock()
		// A sidecar that is being started may have passed this session already.
		if last := s.instances[len(s.instances)-1]; last == in {
			x.sockets, x.set = copies, set
			s.mu.Unlock()
			break
		}
		s.mu.Unlock()
	}
	defer closeAll(former) // nobody starts with them any more
	if turn != nil {
		if err := turn(); err != nil {
			return fmt.Errorf("session %s: turn the redirect: %w", id, err)
		}
	}
	s.retire(id, set)
	return nil
}

// retire ends the service of a session's other listeners, wherever they are. The caller has locked the session, and the
// newest sidecar has the set.
func (s *Sidecar) retire(id string, set uint64) {
	ready := s.ready()
	for n, i := range ready {
		keep := set
		if n < len(ready)-1 {
			keep = 0
		}
		if err := i.drop(id, keep); err != nil && !errors.Is(err, control.ErrNotFound) {
			s.kill(i, reasonHand, err)
		}
	}
}

// duplicates makes descriptors of our own.
func duplicates(sockets []Socket) ([]Socket, error) {
	var all []Socket
	for _, one := range sockets {
		raw, err := one.File.SyscallConn()
		if err != nil {
			closeAll(all)
			return nil, fmt.Errorf("%s socket: %w", one.Kind, err)
		}
		fd, dupErr := -1, error(nil)
		if err := raw.Control(func(old uintptr) { fd, dupErr = dupCloexec(int(old)) }); err != nil || dupErr != nil {
			closeAll(all)
			return nil, fmt.Errorf("duplicate %s socket: %w", one.Kind, errors.Join(err, dupErr))
		}
		all = append(all, Socket{one.Kind, one.Explicit, os.NewFile(uintptr(fd), one.Kind+" listener")})
	}
	return all, nil
}

func dupCloexec(fd int) (int, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return -1, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", errno)
	}
	return int(n), nil
}

func closeAll(sockets []Socket) {
	for _, one := range sockets {
		one.File.Close()
	}
}

// Delete ends a session in every sidecar, cuts its flows, and closes its descriptors. A session that is not there is no
// error.
func (s *Sidecar) Delete(ctx context.Context, id string) (control.Receipt, error) {
	x, unlock, err := s.locked(ctx, id, false)
	if errors.Is(err, control.ErrNotFound) {
		return control.Receipt{Session: id}, nil
	}
	if err != nil {
		return control.Receipt{}, err
	}
	defer unlock()
	s.forget(id, x)
	total := control.Receipt{Session: id}
	for _, i := range s.all() {
		// One that is being started may have passed this session already. It always becomes ready, or ends.
		<-i.settled
		if i.dead() {
			continue
		}
		r, err := i.delete(id)
		switch {
		case err == nil:
			total.Generation, total.Phase, total.FlowsCut = r.Generation, r.Phase, total.FlowsCut+r.FlowsCut
		case !errors.Is(err, control.ErrNotFound):
			s.kill(i, reasonSwitch, err)
		}
	}
	closeAll(x.sockets)
	return total, nil
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
