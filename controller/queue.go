package controller

import (
	"context"
	"sync"
	"time"
)

// queue holds keys of work to do. A key waits only once, and is worked on by one worker at a time.
type queue struct {
	ready chan struct{} // has room for one; sent to when there may be work

	mu      sync.Mutex // guards all below
	waiting map[string]time.Time
	busy    map[string]bool
}

func newQueue() *queue {
	return &queue{ready: make(chan struct{}, 1), waiting: map[string]time.Time{}, busy: map[string]bool{}}
}

// add puts a key into the queue, to be worked on after some time, or as soon as one that is there already is to be.
func (q *queue) add(key string, after time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	due := time.Now().Add(after)
	if other, ok := q.waiting[key]; !ok || due.Before(other) {
		q.waiting[key] = due
	}
	q.wake()
}

func (q *queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// next waits for a key to work on. The worker calls done with it in the end. It returns false when ctx is done.
func (q *queue) next(ctx context.Context) (string, bool) {
	for {
		key, wait := q.pop()
		if key != "" {
			q.wake() // there may be more, for another worker
			return key, ctx.Err() == nil
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return "", false
		case <-q.ready:
		case <-timer:
		}
	}
}

// pop returns the key that has been due for longest, so that none waits for ever while others come again and again; or
// how long to wait for one, 0 if that is not known.
func (q *queue) pop() (key string, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var first time.Time
	for k, due := range q.waiting {
		if !q.busy[k] && (key == "" || due.Before(first)) {
			key, first = k, due
		}
	}
	if left := time.Until(first); key == "" || left > 0 {
		return "", max(0, left)
	}
	delete(q.waiting, key)
	q.busy[key] = true
	return key, 0
}

func (q *queue) done(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, key)
	q.wake()
}
