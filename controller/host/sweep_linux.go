package host

import (
	"log/slog"
	"os"
	"sync"
	"time"

	"sluice/dockernet/cut"
)

// A sweep is begun at most so often, and takes at most a part of the time: it walks through conntrack's table, which the
// whole machine shares.
const (
	sweepTime = time.Second
	sweepPart = 10
)

// sweeper ends after switches what no socket stands for, for all containers together. No switch waits for it.
type sweeper struct {
	log *slog.Logger

	mu      sync.Mutex // guards all below
	waiting map[*containerNet]bool
	busy    bool
	ended   chan struct{} // closed by close
	running sync.WaitGroup
}

func newSweeper(log *slog.Logger) *sweeper {
	return &sweeper{log: log, waiting: map[*containerNet]bool{}, ended: make(chan struct{})}
}

// add lets a container be swept soon.
func (s *sweeper) add(n *containerNet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ended:
		return
	default:
	}
	s.waiting[n] = true
	if !s.busy {
		s.busy = true
		s.running.Go(s.run)
	}
}

func (s *sweeper) forget(n *containerNet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, n)
}

// close ends the work; what is left times out.
func (s *sweeper) close() {
	s.mu.Lock()
	close(s.ended)
	s.mu.Unlock()
	s.running.Wait()
}

// next takes those that wait. Without any, nobody is busy any more.
func (s *sweeper) next() (places []cut.Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.waiting {
		places = append(places, cut.Place{Enter: n.enter, Hold: n.rules.hold})
	}
	clear(s.waiting)
	s.busy = places != nil
	return places
}

func (s *sweeper) run() {
	for places := s.next(); places != nil; places = s.next() {
		began := time.Now()
		if _, err := cut.Sweep(nil, places); err != nil {
			s.log.Warn("what no socket stands for is left in conntrack until it times out", "error", err)
		}
		select {
		case <-time.After(max(sweepTime, (sweepPart-1)*time.Since(began))):
		case <-s.ended:
			return
		}
	}
}

// enter runs a function in the namespace, which stays open until that returns.
func (n *containerNet) enter(f func() error) error {
	n.closing.RLock()
	defer n.closing.RUnlock()
	if n.closed {
		return os.ErrClosed
	}
	return n.ns.Do(f)
}

// rules say what a container's rules refuse. They do not while these are changed so that they could refuse less.
type rules struct {
	mu     sync.Mutex // held while something is done because of the rules
	refuse *cut.Spec
}

// hold calls do with what the rules refuse, which they go on to do until it returns. It does nothing if that is not known.
func (r *rules) hold(do func(*cut.Spec)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		do(r.refuse)
	}
}

// are is called when rules are in force, nil before they are changed.
func (r *rules) are(refuse *cut.Spec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = refuse
}
