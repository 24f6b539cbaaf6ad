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

// pop returns a key that is due, or how long to wait for one, 0 if that is not known.
func (q *queue) pop() (key string, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for k, due := range q.waiting {
		switch left := due.Sub(now); {
		case q.busy[k]:
		case left <= 0:
			delete(q.waiting, k)
			q.busy[k] = true
			return k, 0
		case wait == 0 || left < wait:
			wait = left
		}
	}
	return "", wait
}

func (q *queue) done(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.busy, key)
	q.wake()
}
