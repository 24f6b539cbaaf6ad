package poll

import "time"

// Queue holds the running timers of one duration. Since all of a queue last equally long, they end in the order in
// which they were started, so starting and stopping one costs a few pointer writes and no heap.
type Queue struct {
	loop  *Loop
	after time.Duration
	fire  func(owner any)
	head  Timer // of a ring
}

// Timer is one wait, part of the object that waits. Its zero value is a stopped timer.
type Timer struct {
	next, prev *Timer
	owner      any
	at         time.Time
}

// NewQueue makes a queue whose timers call fire on the loop's goroutine after the given time, at the earliest.
func (l *Loop) NewQueue(after time.Duration, fire func(owner any)) *Queue {
	q := &Queue{loop: l, after: after, fire: fire}
	q.head.next, q.head.prev = &q.head, &q.head
	l.queues = append(l.queues, q)
	return q
}

// Start starts t, or starts it anew, also if it was running in another queue of the loop.
func (q *Queue) Start(t *Timer, owner any) {
	t.Stop()
	t.owner, t.at = owner, q.loop.now.Add(q.after)
	t.prev, t.next = q.head.prev, &q.head
	t.prev.next, q.head.prev = t, t
}

// Stop stops t; it may be stopped already.
func (t *Timer) Stop() {
	if t.next != nil {
		t.prev.next, t.next.prev = t.next, t.prev
		t.next, t.prev, t.owner = nil, nil, nil
	}
}

// expire fires what is due and returns when the next timer is, or the zero time.
func (l *Loop) expire() (next time.Time) {
	for _, q := range l.queues {
		for t := q.head.next; t != &q.head; t = q.head.next {
			if t.at.After(l.now) {
				if next.IsZero() || t.at.Before(next) {
					next = t.at
				}
				break
			}
			owner := t.owner
			t.Stop()
			q.fire(owner)
		}
	}
	return next
}
