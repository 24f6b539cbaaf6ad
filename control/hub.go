package control

import (
	"sync"
	"sync/atomic"
)

// subscriberEvents is how many events a subscriber may fall behind before it is dropped.
const subscriberEvents = 1024

// Hub hands events to subscribers without ever waiting for one: whoever falls 1,024 events behind is dropped and
// told so. The zero Hub is ready; all methods are safe for concurrent use.
type Hub struct {
	// count mirrors len(subs), so that Publish costs one load while nobody listens.
	count atomic.Int32

	// mu guards subs and the fields of every Subscription.
	mu   sync.Mutex
	subs map[*Subscription]struct{}
}

// Subscription is one reader of a [Hub].
type Subscription struct {
	// C delivers events in order. It is closed after the last one when the subscription was dropped or ended.
	C <-chan Event

	hub     *Hub
	c       chan Event
	dropped bool
}

// Active reports whether anybody listens; a publisher may skip making an event otherwise.
func (h *Hub) Active() bool { return h.count.Load() > 0 }

// Publish gives e to every subscriber that keeps up.
func (h *Hub) Publish(e Event) {
	if !h.Active() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		select {
		case s.c <- e:
		default:
			s.dropped = true
			h.removeLocked(s)
		}
	}
}

// Subscribe starts to collect events; [Subscription.Close] ends it.
func (h *Hub) Subscribe() *Subscription {
	c := make(chan Event, subscriberEvents)
	s := &Subscription{C: c, c: c, hub: h}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = map[*Subscription]struct{}{}
	}
	h.subs[s] = struct{}{}
	h.count.Store(int32(len(h.subs)))
	return s
}

// Dropped reports whether the subscriber was too slow; final once C is closed.
func (s *Subscription) Dropped() bool {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	return s.dropped
}

// Close ends the subscription. It may be called more than once.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if _, ok := s.hub.subs[s]; ok {
		s.hub.removeLocked(s)
	}
}

func (h *Hub) removeLocked(s *Subscription) {
	delete(h.subs, s)
	h.count.Store(int32(len(h.subs)))
	close(s.c)
}
