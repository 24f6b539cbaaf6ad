package upstream

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice/proxy/udpbatch"
)

// A Sender sends queries many at a time. It is for one goroutine.
type Sender struct {
	c      *Client
	socket *socket          // where what w holds goes; nil if there is nothing to send
	w      *udpbatch.Writer // nil if there is nothing to send
	now    time.Duration
	lost   error
	flush  func(fd uintptr) bool // made once, as a closure is memory
}

var writers = sync.Pool{New: func() any { return new(udpbatch.Writer) }}

// NewSender makes a sender. While nothing waits in it, it takes little memory.
func (c *Client) NewSender() *Sender {
	s := &Sender{c: c}
	s.flush = func(fd uintptr) bool {
		s.lost = s.w.Flush(int(fd))
		return true
	}
	return s
}

// Add takes q to be sent with the next [Sender.Flush], which must follow soon. An error means that q will not be
// sent and stays with the caller; it is one of the errors of this package or wraps one.
func (s *Sender) Add(q *Query) error {
	c := s.c
	c.mu.Lock()
	var err error
	switch {
	case c.closed:
		err = ErrClosed
	case len(c.servers) == 0:
		err = ErrNoServer
	case c.busyLocked(q):
		err = ErrBusy
	}
	if err != nil {
		c.mu.Unlock()
		return err
	}
	q.attempt = 0
	c.outstanding++
	if err = s.add(q); err != nil {
		c.mu.Lock()
		c.outstanding--
		c.mu.Unlock()
	}
	return err
}

// resend is Add for a query that is under way already.
func (s *Sender) resend(q *Query) error {
	s.c.mu.Lock()
	if s.c.closed {
		s.c.mu.Unlock()
		return ErrClosed
	}
	return s.add(q)
}

// add unlocks the client's mutex.
func (s *Sender) add(q *Query) error {
	c := s.c
	if s.socket == nil {
		s.now = c.now()
	}
	q.server = c.chooseLocked(q, s.now)
	if s.socket != nil && (s.socket.server != q.server || s.w.Full()) {
		c.mu.Unlock()
		s.Flush()
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return ErrClosed
		}
		s.now = c.now()
	}
	if s.socket == nil {
		socket, err := c.socketLocked(q.server, s.now)
		if err != nil {
			c.mu.Unlock()
			return err
		}
		s.socket = socket
		s.w = writers.Get().(*udpbatch.Writer)
	}
	c.enterLocked(q, s.socket, s.now)
	s.w.Add(q.Msg, nil) // once the mutex is unlocked, q may be answered (by who guesses well) and be gone
	c.mu.Unlock()
	return nil
}

// Flush sends what was added.
func (s *Sender) Flush() {
	if s.socket == nil {
		return
	}
	socket := s.socket
	s.socket, s.lost = nil, nil
	if socket.raw.Write(s.flush) != nil {
		s.w.Reset() // closed meanwhile, with the client
	}
	writers.Put(s.w)
	s.w = nil
	if s.lost != nil && !errors.Is(s.lost, unix.EAGAIN) {
		select {
		case s.c.lost <- socket:
		default: // its queries will time out
		}
	}
}
