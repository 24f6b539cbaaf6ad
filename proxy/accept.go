package proxy

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"sluice/control"
	"sluice/matcher"
	"sluice/proxy/poll"
	"sluice/proxy/refusal"
)

// acceptor takes connections from one listening socket and spreads them over the workers.
type acceptor struct {
	worker  *worker
	session *Session
	how     *redirection // nil for clients that know that they talk to a proxy
	fd      int
	token   poll.Token
	spare   int // a descriptor to give up when there are no more, so that a client can be told; -1 if it is gone
	pause   poll.Timer
}

// acceptTurn bounds how many clients are taken before those that are there have their turn.
const acceptTurn = 64

// listen serves what comes in on fd, a non-blocking listening TCP socket at an address, which it takes over.
func (s *Session) listen(fd int, at net.Addr, how *redirection) error {
	w := s.server.workers[s.server.nextWorker()]
	var failed error
	s.switching.Lock()
	defer s.switching.Unlock()
	if s.ended {
		unix.Close(fd)
		return control.NotFoundError(s.id)
	}
	err := w.Do(s.server.context, func() {
		a := &acceptor{worker: w, session: s, how: how, fd: fd, spare: openSpare()}
		if a.token, failed = w.Add(fd, a, 0, poll.Readable|unix.EPOLLET); failed != nil {
			unix.Close(fd)
			unix.Close(a.spare)
			return
		}
		kind := control.KindProxy
		if how != nil {
			kind = control.KindTCP
		}
		s.addLocked(kind, at, func(drain bool) { _ = w.Do(context.Background(), func() { a.stop(drain) }) })
	})
	if err != nil {
		unix.Close(fd)
		return err
	}
	return failed
}

// ServeTCP serves HTTP proxy clients that connect to l, which it takes over, until the session ends.
func (s *Session) ServeTCP(l *net.TCPListener) error {
	defer l.Close()
	fd, err := duplicate(l)
	if err != nil {
		return fmt.Errorf("taking over the listener on %s: %w", l.Addr(), err)
	}
	if err := prepareListener(fd); err != nil {
		unix.Close(fd)
		return fmt.Errorf("setting up the listener on %s: %w", l.Addr(), err)
	}
	// A proxy's client speaks first: there is nothing to do for it before it has (tcp(7)). It saves a wake-up each,
	// and a client that says nothing comes a second later.
	_ = option(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 1)
	s.server.AddOwn(l.Addr())
	return s.listen(fd, l.Addr(), nil)
}

// prepareListener sets what accepted sockets inherit (tcp(7)), which spares these calls for each of them.
func prepareListener(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	if err := option(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	return probeIdle(fd)
}

func openSpare() int {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// Ready implements [poll.Handler].
func (a *acceptor) Ready(uint8, uint32) {
	if a.take() {
		a.worker.Again(a.token)
	}
}

// take takes some of the clients that wait, and reports whether there may be more.
func (a *acceptor) take() bool {
	for range acceptTurn {
		fd, err := acceptSocket(a.fd)
		switch err {
		case nil:
		case unix.EAGAIN:
			return false
		case unix.EMFILE, unix.ENFILE:
			if a.turnAway() {
				continue
			}
			a.worker.pauses.Start(&a.pause, a)
			return false
		case unix.ENOBUFS, unix.ENOMEM:
			a.worker.pauses.Start(&a.pause, a)
			return false
		case unix.EBADF, unix.EINVAL, unix.ENOTSOCK:
			return false // it listens no more
		default:
			continue // what befell one client on its way here (accept(2))
		}
		s := a.session
		if s.crowded() {
			a.busy(fd)
			continue
		}
		if w := s.server.workers[s.server.nextWorker()]; w == a.worker {
			w.serve(fd, s, a.how)
		} else if !w.Post(func() { w.serve(fd, s, a.how) }) {
			unix.Close(fd)
		}
	}
	return true
}

// turnAway answers a client although there is no descriptor for it, by giving up the spare one for the moment. It
// reports false if another took that in between.
func (a *acceptor) turnAway() bool {
	if a.spare < 0 {
		if a.spare = openSpare(); a.spare < 0 {
			return false
		}
	}
	unix.Close(a.spare)
	fd, err := acceptSocket(a.fd)
	if err == nil {
		a.busy(fd)
	}
	a.spare = openSpare()
	return err == nil
}

// busy tells a client that there is no room, if it can be told, and closes.
func (a *acceptor) busy(fd int) {
	s := a.session
	if a.how != nil { // it knows of no proxy
		s.report(&report{rules: s.rules(), protocol: protocolTCP, outcome: failed, reason: reasonCapacity, rule: matcher.NoRule,
			decision: refusal.NewDecisionID(), began: a.worker.Now(), now: a.worker.Now()})
		reset(fd)
		return
	}
	no := s.refusal(statusBusy, reasonCapacity, endpoint{}, texts[reasonCapacity])
	s.report(&report{rules: s.rules(), protocol: protocolConnect, outcome: failed, reason: reasonCapacity,
		rule: matcher.NoRule, decision: no.Decision, began: a.worker.Now(), now: a.worker.Now()})
	s.server.config.Personality.shape(no)
	_, _ = writeSocket(fd, no.AppendResponse(nil))
	shutWrite(fd)
	// Reading what is there keeps closing from being a reset that takes the answer away.
	_, _ = readSocket(fd, a.worker.scratch)
	closeSocket(fd)
}

func (a *acceptor) close() {
	a.pause.Stop()
	a.worker.Detach(a.token, a.fd) // others may have the socket too
	unix.Close(a.fd)
	if a.spare >= 0 {
		unix.Close(a.spare)
	}
}
