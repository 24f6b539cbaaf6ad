package proxy

import (
	"context"
	"net"
	"slices"
	"time"

	"sluice/control"
)

// listening is one socket that a session serves.
type listening struct {
	set   uint64
	about string
	// stop ends the service. What was accepted or received is served to its end, and so are those who wait in the queue
	// if drain is set; else they are left to others who have the socket.
	stop func(drain bool)
}

// Set begins another set of listeners: those that the session is given from now on belong to it. Numbers grow; a session
// begins with 0.
func (s *Session) Set(number uint64) {
	s.switching.Lock()
	defer s.switching.Unlock()
	s.set = number
}

// addLocked remembers a listener.
func (s *Session) addLocked(kind string, at net.Addr, stop func(drain bool)) {
	s.listeners = append(s.listeners, listening{s.set, kind + " " + at.String(), stop})
}

// dropListeners ends the service of all listeners but those of one set.
func (s *Session) dropListeners(keep func(set uint64) bool) {
	s.switching.Lock()
	defer s.switching.Unlock()
	s.listeners = slices.DeleteFunc(s.listeners, func(l listening) bool {
		if keep(l.set) {
			return false
		}
		l.stop(true)
		return true
	})
}

// DropListeners implements [control.Backend].
func (s *Server) DropListeners(_ context.Context, id string, keep uint64) error {
	session, err := s.find(id)
	if err != nil {
		return err
	}
	session.dropListeners(func(set uint64) bool { return set == keep && keep != 0 })
	return nil
}

var _ control.Backend = (*Server)(nil)

// queueTurns bounds how many clients are taken from the queue of a listener that is closed: as many as the largest queue
// holds.
const queueTurns = 1 << 16 / acceptTurn

// stop closes the listener. Closing its last descriptor resets those who wait in the queue: with drain they are taken
// before.
func (a *acceptor) stop(drain bool) {
	for range queueTurns {
		if !drain || !a.take() {
			break
		}
	}
	a.close()
}

// answerTime is how long answers to DNS queries may take to come, a little more than the attempts of package upstream
// take together.
const answerTime = 6 * time.Second
