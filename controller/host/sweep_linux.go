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

// maxLate is how much may be left for later: four sockets for each.
const maxLate = 256

// sweeper ends after switches what no socket stands for, for all containers together. No switch waits for it.
type sweeper struct {
	log *slog.Logger

	mu      sync.Mutex // guards all below
	waiting map[*containerNet]bool
	late    map[*containerNet][]func()
	lates   int // in late
	busy    bool
	ended   chan struct{} // closed by close
	running sync.WaitGroup
}

func newSweeper(log *slog.Logger) *sweeper {
	return &sweeper{log: log, waiting: map[*containerNet]bool{}, late: map[*containerNet][]func(){}, ended: make(chan struct{})}
}

// add lets a container be swept soon.
func (s *sweeper) add(n *containerNet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begin() {
		s.waiting[n] = true
	}
}

// later lets something of a container's be done when nobody switches any more, or a second later: the kernel closes
// sockets of netfilter's under the lock that changes of rules need, too. If much is waiting it is done at once.
func (s *sweeper) later(n *containerNet, do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lates == maxLate || !s.begin() {
		n.ending.Go(do)
		return
	}
	s.late[n] = append(s.late[n], do)
	s.lates++
}

// begin sees to it that somebody works, unless all has ended. The caller holds mu.
func (s *sweeper) begin() bool {
	select {
	case <-s.ended:
		return false
	default:
	}
	if !s.busy {
		s.busy = true
		s.running.Go(s.run)
	}
	return true
}

// forget does at once what is left of a container's, and sweeps it no more.
func (s *sweeper) forget(n *containerNet) {
	s.mu.Lock()
	delete(s.waiting, n)
	late := s.late[n]
	delete(s.late, n)
	s.lates -= len(late)
	s.mu.Unlock()
	for _, do := range late {
		do()
	}
}

// close ends the work; what is left in conntrack times out.
func (s *sweeper) close() {
	s.mu.Lock()
	close(s.ended)
	s.mu.Unlock()
	s.running.Wait()
}

// next takes those that wait. Without any, and nothing late, nobody is busy any more.
func (s *sweeper) next() (places []cut.Place, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.waiting {
		places = append(places, cut.Place{Enter: n.enter, Hold: n.rules.hold})
	}
	clear(s.waiting)
	s.busy = places != nil || s.lates > 0
	return places, s.busy
}

// due takes what is late.
func (s *sweeper) due() map[*containerNet][]func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	late := s.late
	s.late, s.lates = map[*containerNet][]func(){}, 0
	return late
}

func (s *sweeper) run() {
	for places, more := s.next(); more; places, more = s.next() {
		began := time.Now()
		if places != nil {
			if _, err := cut.Sweep(nil, places); err != nil {
				s.log.Warn("what no socket stands for is left in conntrack until it times out", "error", err)
			}
		}
		over := false
		select {
		case <-time.After(max(sweepTime, (sweepPart-1)*time.Since(began))):
		case <-s.ended:
			over = true
		}
		for _, all := range s.due() {
			for _, do := range all {
				do()
			}
		}
		if over {
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
