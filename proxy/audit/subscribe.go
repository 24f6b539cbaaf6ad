package audit

import (
	"slices"
	"sync/atomic"
)

// Subscription receives a copy of every record that is written while it lasts.
type Subscription struct {
	// C is closed when the Writer is.
	C    <-chan Record
	c    chan Record
	lost atomic.Uint64
	from *Writer
}

// Subscribe begins a subscription that holds up to n records for its reader; what does not fit is lost to it, and to
// nobody else. It must be closed.
func (w *Writer) Subscribe(n int) *Subscription {
	c := make(chan Record, n)
	s := &Subscription{C: c, c: c, from: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		close(c)
	} else {
		w.subscriptions = append(w.subscriptions, s)
	}
	return s
}

// offer is called with the Writer's lock held.
func (s *Subscription) offer(r *Record) {
	select {
	case s.c <- *r:
	default:
		s.lost.Add(1)
	}
}

// Lost returns how many records did not fit so far.
func (s *Subscription) Lost() uint64 { return s.lost.Load() }

// Close ends the subscription. C is not closed by it, and what it holds can still be read.
func (s *Subscription) Close() {
	s.from.mu.Lock()
	defer s.from.mu.Unlock()
	s.from.subscriptions = slices.DeleteFunc(s.from.subscriptions, func(other *Subscription) bool { return other == s })
}
