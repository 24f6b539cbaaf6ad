package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxRecords = 4096                  // that wait for the sink; some 1 MiB
	delay      = 50 * time.Millisecond // for which a record may wait, so that a busy proxy writes in batches
	retryDelay = time.Second           // between attempts at a sink that fails
	closeLimit = 2 * time.Second       // for the last records when the writer is closed
	chunkBytes = 32 << 10              // given to the sink at once, and a line more
)

// Writer writes records to a sink in batches. [Writer.Write] never blocks: when the sink is slow or fails, records
// wait until 4096 do, and further ones are lost and counted. All methods may be called at any time from any goroutine.
type Writer struct {
	lost atomic.Uint64
	path string // empty or "-" cannot be reopened
	wake chan struct{}
	quit chan struct{}
	done chan struct{}

	// mu guards what follows up to the next comment. Nothing slow happens under it.
	mu         sync.Mutex
	waiting    []Record
	unreported uint64 // lost, and not yet in a batch
	armed      bool   // the timer runs
	closed     bool
	timer      *time.Timer
	sink       *sink
	reopened   *sink // to be used from the next write on
	err        error // of the last write

	// What follows belongs to the goroutine, which is also the only one to change sink and so reads it without the lock.
	batch   []Record // taken from waiting
	next    int      // batch[:next] is in out
	gap     uint64   // records lost behind batch
	out     []byte   // whole lines
	sent    int      // out[:sent] is written
	gapLine bool     // the last line of out tells of lost records
}

// New returns a Writer on w, which only the Writer may use from then on. Closing the Writer leaves w open.
func New(w io.Writer) *Writer { return start("", &sink{Writer: w}) }

// start begins with s; without one, nothing is written.
func start(path string, s *sink) *Writer {
	w := &Writer{
		path: path,
		sink: s,
		wake: make(chan struct{}, 1),
		quit: make(chan struct{}),
		done: make(chan struct{}),
	}
	w.timer = time.AfterFunc(time.Hour, w.ring)
	w.timer.Stop()
	if s == nil {
		close(w.done)
		return w
	}
	w.mendTorn()
	go w.run()
	return w
}

// Write takes a copy of r, whose Time it sets if that is zero. The strings must not change later, so they may not
// stand in a buffer that is used again.
func (w *Writer) Write(r *Record) {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.sink == nil:
		return
	case w.closed || len(w.waiting) >= maxRecords:
		w.lost.Add(1)
		w.unreported++
		return
	}
	w.waiting = append(w.waiting, *r)
	switch {
	case len(w.waiting) == maxRecords/2:
		w.kick()
	case !w.armed:
		w.armLocked(delay)
	}
}

// Lost returns how many records have been lost since the start. The sink is told too, once it works again, by a line with
// "time" and "lost" only: so many records are missing before it.
func (w *Writer) Lost() uint64 { return w.lost.Load() }

// Err returns why the last write to the sink failed, or nil if it did not. The write is tried again every second.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close writes what waits, but tries for two seconds at most and only once if the sink fails. It returns an error
// that says how many records that lost. Records written later are lost, and closing again does nothing.
func (w *Writer) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.timer.Stop()
	w.mu.Unlock()

	before := w.Lost()
	close(w.quit)
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	select {
	case <-w.done:
	case <-limit.C:
		// The write hangs. Closing what can be polled ends it; nothing ends one to a disk or a blocking pipe.
		w.mu.Lock()
		w.sink.interrupt()
		w.mu.Unlock()
		limit.Reset(closeLimit / 2)
		select {
		case <-w.done:
		case <-limit.C:
			return fmt.Errorf("close audit log %s: the last write hangs; find out what holds up its disk or reader", w.name())
		}
	}
	if n := w.Lost() - before; n > 0 {
		return fmt.Errorf("close audit log %s: %d records lost: %w", w.name(), n, w.Err())
	}
	return nil
}

func (w *Writer) name() string {
	if w.path == "" {
		return "sink"
	}
	return w.path
}

func (w *Writer) armLocked(d time.Duration) {
	w.armed = true
	w.timer.Reset(d)
}

// ring is what the timer calls.
func (w *Writer) ring() {
	w.mu.Lock()
	w.armed = false
	w.mu.Unlock()
	w.kick()
}

// kick makes the goroutine look, now or once it is back from the sink.
func (w *Writer) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Writer) run() {
	defer close(w.done)
	for {
		select {
		case <-w.wake:
			w.flush()
		case <-w.quit:
			w.flush()
			w.finish()
			return
		}
	}
}

// flush writes all that waits, or arms the timer for the next attempt.
func (w *Writer) flush() {
	w.mu.Lock()
	reopened := w.reopened
	w.reopened = nil
	w.mu.Unlock()
	if reopened != nil {
		w.adopt(reopened)
	}
	var err error
	for err == nil && w.fillOut() {
		var n int
		n, err = w.sink.Write(w.out[w.sent:])
		w.sent += min(max(n, 0), len(w.out)-w.sent)
		if err == nil && w.sent < len(w.out) {
			err = io.ErrShortWrite
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if err != nil && !w.closed {
		w.armLocked(retryDelay)
	}
}

// fillOut reports whether there is something to write in w.out, and puts the next lines there if all were sent.
func (w *Writer) fillOut() bool {
	if w.sent < len(w.out) {
		return true
	}
	w.out, w.sent, w.gapLine = w.out[:0], 0, false
	if w.next == len(w.batch) && w.gap == 0 {
		clear(w.batch) // so that their strings can go
		w.mu.Lock()
		w.batch, w.waiting = w.waiting, w.batch[:0]
		w.gap, w.unreported = w.unreported, 0
		w.mu.Unlock()
		w.next = 0
	}
	for w.next < len(w.batch) && len(w.out) < chunkBytes {
		w.out = append(w.batch[w.next].AppendJSON(w.out), '\n')
		w.next++
	}
	if w.next == len(w.batch) && w.gap > 0 {
		w.out = append(appendLost(w.out, time.Now(), w.gap), '\n')
		w.gap, w.gapLine = 0, true
	}
	return len(w.out) > 0
}

// adopt goes on with a reopened sink. Lines that the old one did not take whole are written to the new one.
func (w *Writer) adopt(reopened *sink) {
	w.dropTorn()
	w.sink.close()
	w.mu.Lock()
	w.sink = reopened
	w.mu.Unlock()
	w.mendTorn()
}

// mendTorn keeps our first line apart from half a line of an earlier process.
func (w *Writer) mendTorn() {
	if w.sink.torn() {
		w.out = append([]byte{'\n'}, w.out[w.sent:]...)
		w.sent = 0
	}
}

// dropTorn takes back the part that was written of a line that was not.
func (w *Writer) dropTorn() {
	if torn := w.sent - (bytes.LastIndexByte(w.out[:w.sent], '\n') + 1); torn > 0 {
		w.sink.cut(int64(torn))
		w.sent -= torn
	}
}

// finish counts what could not be written and lets go of the sink.
func (w *Writer) finish() {
	w.dropTorn()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := bytes.Count(w.out[w.sent:], []byte("}\n")) + len(w.batch) - w.next + len(w.waiting)
	if w.gapLine && w.sent < len(w.out) {
		n--
	}
	w.lost.Add(uint64(n))
	w.err = errors.Join(w.err, w.sink.close())
	if w.reopened != nil {
		w.err = errors.Join(w.err, w.reopened.close())
	}
}
