// Package steadylog is a log that never makes anybody wait for its reader.
package steadylog

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	// waitingLines is how many lines may wait for who reads the log.
	waitingLines = 1024
	// lastLines is how long the last ones may take when the program ends.
	lastLines = time.Second
)

// New makes a log that never makes anybody wait for its reader: a policy that comes into force while the reader
// sleeps must not wait for it, and neither must what asks for that policy. Lines that are too many are lost, and counted
// in a line of their own. When end returns, what could be written is.
func New(w io.Writer) (log *slog.Logger, end func()) {
	q := &logQueue{sink: w, done: make(chan struct{})}
	q.changed.L = &q.mu
	go q.run()
	return slog.New(slog.NewTextHandler(q, nil)), q.end
}

// logQueue holds lines on their way to the sink.
type logQueue struct {
	sink io.Writer
	done chan struct{}

	mu      sync.Mutex // guards what follows
	changed sync.Cond
	lines   [][]byte
	lost    int
	ended   bool
}

// Write implements [io.Writer] for one line.
func (q *logQueue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.ended:
	case len(q.lines) == waitingLines:
		q.lost++
	default:
		q.lines = append(q.lines, bytes.Clone(line))
		q.changed.Signal()
	}
	return len(line), nil
}

func (q *logQueue) run() {
	defer close(q.done)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.lines) == 0 && q.lost == 0 && !q.ended {
			q.changed.Wait()
		}
		lines, lost := q.lines, q.lost
		if q.lines, q.lost = nil, 0; len(lines) == 0 && lost == 0 {
			return
		}
		q.mu.Unlock()
		for _, line := range lines {
			_, _ = q.sink.Write(line) // there is nobody to tell
		}
		if lost > 0 {
			fmt.Fprintf(q.sink, "time=%s level=WARN msg=\"lines of the log were lost: its reader is slow\" lines=%d\n",
				time.Now().UTC().Format(time.RFC3339Nano), lost)
		}
		q.mu.Lock()
	}
}

func (q *logQueue) end() {
	q.mu.Lock()
	q.ended = true
	q.changed.Signal()
	q.mu.Unlock()
	select {
	case <-q.done:
	case <-time.After(lastLines):
	}
}
