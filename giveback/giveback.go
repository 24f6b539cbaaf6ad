// Package giveback returns memory to the system after a burst of work.
//
// Many containers that are attached one after another leave garbage, and room that the collector keeps for as much again.
// Where most of them then sit idle, that is most of what the process holds.
package giveback

import (
	"runtime/debug"
	"sync"
	"time"
)

const (
	// calm is how long there must have been no work.
	calm = time.Second
	// pause is how long nothing is given back after it was: it takes a collection each time.
	pause = 10 * time.Second
)

var state struct {
	mu    sync.Mutex // guards what follows
	timer *time.Timer
	last  time.Time
}

// Soon gives memory back a second after the last of calls that follow each other, and ten seconds after the last time at
// the earliest. It does not wait for that. It may be called from any goroutine.
func Soon() {
	state.mu.Lock()
	defer state.mu.Unlock()
	wait := max(calm, pause-time.Since(state.last))
	if state.timer == nil {
		state.timer = time.AfterFunc(wait, give)
		return
	}
	state.timer.Reset(wait)
}

func give() {
	state.mu.Lock()
	state.last = time.Now()
	state.mu.Unlock()
	debug.FreeOSMemory()
}
