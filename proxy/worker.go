package proxy

import (
	"time"

	"sluice/proxy/poll"
)

const (
	// scratchBytes is what one read takes at most: a full read tells that more is waiting.
	scratchBytes = 64 << 10
	// bufferBytes is the size of pooled buffers, which hold what could not be passed on at once.
	bufferBytes = 16 << 10
	// smallBytes is what is kept in a buffer of just its size: most of what is kept is little, and perhaps for long.
	smallBytes = 1 << 10
	// shortBytes is what one read takes while there is little memory, for fear that it has to be kept.
	shortBytes = 2 << 10
	// keptBuffers and keptConns bound what a worker keeps for later.
	keptBuffers = 64
	keptConns   = 1024
)

// worker is one event loop with what its connections share. Only its own goroutine touches it.
type worker struct {
	*poll.Loop
	server *Server
	index  int

	scratch []byte
	pipes   pipes
	buffers [][]byte
	kept    int64 // bytes of buffers that are in use
	room    int64 // so many may be
	conns   []*conn
	ended   []*conn // of which conns are made, see reap
	dials   []*race // of which races are made
	racing  []*race // those under way

	heads    *poll.Queue // a request head must be complete in time
	limits   *poll.Queue // a look-up and dial must be done in time
	staggers *poll.Queue // the next address is tried beside the one before
	lingers  *poll.Queue // a refused client has time to read why
	silences *poll.Queue // a redirected client must say something
	settles  *poll.Queue // a tunnel that lasts gets keep-alive probes
	pauses   *poll.Queue // clients wait that could not be accepted
	endings  *poll.Queue // the kernel may still send what a tunnel ended with
	sweeps   *poll.Queue // idle flows are looked for

	nextSweep poll.Timer
}

func newWorker(s *Server, index int) (*worker, error) {
	loop, err := poll.New()
	if err != nil {
		return nil, err
	}
	w := &worker{Loop: loop, server: s, index: index, scratch: make([]byte, scratchBytes),
		room: s.config.Memory / bufferShare / int64(s.config.Workers)}
	w.pipes.most = int(max(1, min(maxPipes, s.config.Memory/bufferShare/int64(s.config.Workers)/pipeBytes)))
	w.heads = w.NewQueue(s.config.HeaderTimeout, func(o any) { o.(*conn).headLate() })
	w.limits = w.NewQueue(s.config.DialTimeout, func(o any) { o.(*conn).dialLate() })
	w.staggers = w.NewQueue(attemptDelay, func(o any) { o.(*conn).nextAttempt() })
	w.lingers = w.NewQueue(lingerTime, func(o any) { o.(*conn).close() })
	w.silences = w.NewQueue(silentTime, func(o any) { o.(*conn).silent() })
	w.settles = w.NewQueue(settleTime, func(o any) { o.(*conn).settled() })
	w.endings = w.NewQueue(endingTime, func(o any) { o.(*conn).finish() })
	w.pauses = w.NewQueue(pauseTime, func(o any) { o.(*acceptor).Ready(0, 0) })
	w.sweeps = w.NewQueue(sweepTime(s.config.IdleTimeout), func(o any) { o.(*worker).sweep() })
	if s.config.IdleTimeout > 0 {
		w.sweeps.Start(&w.nextSweep, w)
	}
	return w, nil
}

const (
	// attemptDelay is the Connection Attempt Delay of RFC 8305 section 5.
	attemptDelay = 250 * time.Millisecond
	// lingerTime is how long a refused client may take to read the answer.
	lingerTime = 2 * time.Second
	// settleTime is the age at which a tunnel's upstream gets keep-alive probes; most tunnels never reach it.
	settleTime = 30 * time.Second
	// endingTime is how often it is looked whether the peers have what a tunnel ended with. Nothing tells of that.
	endingTime = 20 * time.Millisecond
	// pauseTime is how long clients wait when there was neither a descriptor nor memory to accept them with. The queue
	// tells of new clients only, so it must be looked at again.
	pauseTime = 20 * time.Millisecond
)

// buffer returns an empty buffer of bufferBytes, for [worker.release].
func (w *worker) buffer() []byte {
	w.kept += bufferBytes
	if n := len(w.buffers); n > 0 {
		b := w.buffers[n-1]
		w.buffers = w.buffers[:n-1]
		return b[:0]
	}
	return make([]byte, 0, bufferBytes)
}

// keep appends more to b, a buffer or nil, and returns the buffer that holds both; b is not to be used any more.
func (w *worker) keep(b, more []byte) []byte {
	need, former := len(b)+len(more), b
	switch {
	case need <= cap(b):
		return append(b, more...)
	case need <= smallBytes:
		b = make([]byte, 0, need)
		w.kept += int64(cap(b))
	case need <= bufferBytes:
		b = w.buffer()
	default:
		b = make([]byte, 0, max(need, 2*cap(former)))
		w.kept += int64(cap(b))
	}
	b = append(append(b, former...), more...)
	w.release(former)
	return b
}

// full reports whether clients make the worker keep more than it should. Those that want more are turned away then.
func (w *worker) full() bool { return w.kept > w.room }

// release gives back what buffer or keep has returned, or nil.
func (w *worker) release(b []byte) {
	w.kept -= int64(cap(b))
	if cap(b) == bufferBytes && len(w.buffers) < keptBuffers {
		w.buffers = append(w.buffers, b)
	}
}
