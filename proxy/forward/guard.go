package forward

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"sluice/proxy/refusal"
)

// guard stands between a client and net/http. It finds where each request begins and ends, shows net/http a head only
// when it is complete and harmless, and nothing of the next request before the one before it has been answered:
// what follows a request may be something else (WebSocket frames, a CONNECT).
//
// Read, SetReadDeadline, CloseWrite and Close are for net/http; the other methods are for the handler.
type guard struct {
	net.Conn // the client's
	client   *client

	limit         int
	headerTimeout time.Duration
	idleTimeout   time.Duration
	finTimeout    time.Duration

	mu          sync.Mutex // guards what follows
	wake        sync.Cond  // something changed for a Read that waits behind a request
	state       guardState
	in          []byte // read from the client, and not passed on
	seen        int    // so many bytes of in hold no end of a head
	out         []byte // for net/http to read before anything else
	spare       []byte // what out is made of
	head        *head
	left        int64 // bytes of the body
	chunks      chunks
	failed      error // what reading the client ended with
	stopped     error // what every Read returns from now on
	interrupted bool  // net/http wants its Read back
	began       time.Time
	finTimer    *time.Timer
	finLate     bool
	taken       bool

	lingering, closing sync.Once
	ended              chan struct{} // closed when nobody uses the connection any more
}

type guardState uint8

const (
	atHead    guardState = iota // before or in a request head
	inBody                      // in a body of known length
	inChunks                    // in a chunked body
	answering                   // behind a request that has not been answered
)

// errGivenUp is what reading a request ends with that has been answered early.
var errGivenUp = errors.New("the rest of the request is not wanted")

const (
	// lingerTime is how long a client that was answered early may go on sending: closing at once would be a reset,
	// which takes the answer away (RFC 9112 section 9.6).
	lingerTime = 5 * time.Second
	// finTimeout is how long an answer is waited for after the client's FIN. A client that has said all it wants
	// cannot be told from one that is gone.
	finTimeout = 5 * time.Second

	firstRead = 4 << 10 // bytes; most heads are smaller
)

func newGuard(c net.Conn, o Options) *guard {
	g := &guard{
		Conn:          c,
		limit:         o.HeaderLimit,
		headerTimeout: o.HeaderTimeout,
		idleTimeout:   o.IdleTimeout,
		finTimeout:    o.finTimeout,
		ended:         make(chan struct{}),
	}
	g.wake.L = &g.mu
	return g
}

// Read implements [net.Conn], for one caller at a time.
func (g *guard) Read(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		if n := copy(p, g.out); n > 0 || len(p) == 0 {
			g.out = g.out[n:]
			return n, nil
		}
		if g.stopped != nil {
			return 0, g.stopped
		}
		switch g.state {
		case atHead:
			if g.nextHead() {
				continue
			}
		case inBody, inChunks:
			if len(g.in) > 0 {
				n := g.pass(p[:copy(p, g.in)])
				if g.in = g.in[n:]; n > 0 {
					return n, nil
				}
				continue
			}
		case answering:
			if g.mustWait() {
				if g.interrupted {
					return 0, os.ErrDeadlineExceeded
				}
				g.wake.Wait()
				continue
			}
		}
		switch {
		case g.failed != nil:
			return 0, g.failed
		case g.interrupted:
			return 0, os.ErrDeadlineExceeded
		case g.state == inBody || g.state == inChunks:
			if n := g.readBody(p); n > 0 {
				return n, nil
			}
		default:
			g.readAhead()
		}
	}
}

// mustWait reports whether a Read behind a request has to wait for its answer, and not for the client: because that
// has sent enough for now, or all it wants to.
func (g *guard) mustWait() bool {
	if g.failed == io.EOF && g.finTimer == nil {
		g.finTimer = time.AfterFunc(g.finTimeout, func() {
			g.mu.Lock()
			g.finLate = true
			g.mu.Unlock()
			g.wake.Broadcast()
		})
	}
	return g.failed == io.EOF && !g.finLate || g.failed == nil && len(g.in) >= g.limit
}

// nextHead makes the next head ready for net/http, if it is complete or will never be served.
func (g *guard) nextHead() bool {
	for { // blank lines before a head are skipped (RFC 9112 section 2.2)
		rest := bytes.TrimPrefix(bytes.TrimPrefix(g.in, []byte("\r\n")), []byte("\n"))
		if len(rest) == len(g.in) {
			break
		}
		g.in, g.seen = rest, 0
	}
	end := headEnd(g.in, g.seen)
	if g.seen = len(g.in); end > g.limit || end == 0 && len(g.in) > g.limit {
		g.substitute(tooLarge("The request head is larger than the limit."))
		return true
	}
	if end == 0 {
		return false
	}
	g.head, g.out = parseHead(g.in[:end], g.spare[:0])
	g.spare = g.out
	g.in = g.in[end:]
	switch {
	case g.head.bad != nil || g.head.length == 0:
		g.state = answering
	case g.head.length == chunked:
		g.state, g.chunks = inChunks, chunks{}
	default:
		g.state, g.left = inBody, g.head.length
	}
	return true
}

// substitute puts a head that is not served in the place of what the client sent.
func (g *guard) substitute(r *refusal.Refusal) {
	g.head, g.out, g.state = &head{bad: r}, []byte(substitute), answering
}

// pass returns how many bytes of b, which come next, belong to the body.
func (g *guard) pass(b []byte) (n int) {
	if g.state == inBody {
		n = int(min(g.left, int64(len(b))))
		if g.left -= int64(n); g.left == 0 {
			g.state = answering
		}
		return n
	}
	n, err := g.chunks.scan(b)
	if g.chunks.at == finished {
		g.state = answering
	}
	if err != nil && g.stopped == nil {
		g.stopped = err
	}
	return n
}

// readBody reads from the client what belongs to the body.
func (g *guard) readBody(p []byte) int {
	if g.state == inBody {
		p = p[:min(g.left, int64(len(p)))]
	}
	n := g.read(p)
	passed := g.pass(p[:n])
	if passed < n {
		g.in = bytes.Clone(p[passed:n])
	}
	return passed
}

// readAhead reads what is a head, or waits behind a request.
func (g *guard) readAhead() {
	if g.state == atHead {
		if len(g.in) == 0 {
			_ = g.Conn.SetReadDeadline(time.Now().Add(g.idleTimeout))
		} else {
			if g.began.IsZero() {
				g.began = time.Now()
			}
			_ = g.Conn.SetReadDeadline(g.began.Add(g.headerTimeout))
		}
	}
	if cap(g.in) == len(g.in) {
		// One byte more than the limit tells that it is passed.
		larger := make([]byte, len(g.in), min(max(2*len(g.in), firstRead), g.limit+1))
		copy(larger, g.in)
		g.in = larger
	}
	n := g.read(g.in[len(g.in):cap(g.in)])
	g.in = g.in[:len(g.in)+n]
}

// read reads from the client. The lock is not held meanwhile.
func (g *guard) read(p []byte) int {
	g.mu.Unlock()
	n, err := g.Conn.Read(p)
	g.mu.Lock()
	switch {
	case err == nil:
	case !errors.Is(err, os.ErrDeadlineExceeded):
		g.failed = err
	case g.interrupted || g.stopped != nil:
	case g.state != atHead:
		_ = g.Conn.SetReadDeadline(time.Time{}) // it was meant for the head
	case len(g.in) == 0:
		g.failed = io.EOF // idle for too long, which needs no answer
	default:
		g.substitute(&refusal.Refusal{Status: http.StatusRequestTimeout, Reason: SlowHead,
			Text: "The request head did not arrive in time."})
	}
	return n
}

// SetReadDeadline implements [net.Conn]. net/http calls it to get its Read back, and to allow the next one.
func (g *guard) SetReadDeadline(t time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.interrupted = !t.IsZero()
	g.wake.Broadcast()
	return g.Conn.SetReadDeadline(t)
}

// CloseWrite is called by net/http, some time before Close, if a body was not read to its end.
func (g *guard) CloseWrite() error {
	g.lingering.Do(g.linger)
	return nil
}

// Close implements [net.Conn]. net/http may call it while the handler runs.
func (g *guard) Close() (err error) {
	g.closing.Do(func() {
		g.mu.Lock()
		early := g.stopped != nil && !g.taken
		if g.finTimer != nil {
			g.finTimer.Stop()
		}
		g.mu.Unlock()
		if early {
			g.lingering.Do(g.linger)
		}
		err = g.Conn.Close()
	})
	return err
}

// linger gives a client that was answered early the time to read the answer, and closes the connection.
func (g *guard) linger() {
	if closeWrite(g.Conn) == nil && g.Conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.Copy(io.Discard, g.Conn)
	}
	_ = g.Conn.Close()
}

// current returns the head of the request that is being served.
func (g *guard) current() *head {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.head
}

// giveUp makes the client's connection end behind the answer to this request, whatever is left of the request.
func (g *guard) giveUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped == nil {
		g.stopped = errGivenUp
	}
	g.wake.Broadcast()
	_ = g.Conn.SetReadDeadline(time.Unix(1, 0)) // for a Read that is under way
}

// isMalformed reports whether the body of the request that is being served cannot be read.
func (g *guard) isMalformed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stopped == errChunk
}

// isClosed reports whether this side has closed the connection, as a cut does.
func (g *guard) isClosed() bool {
	return errors.Is(g.Conn.SetWriteDeadline(time.Time{}), net.ErrClosed)
}

// next lets the next request come, when this one has been answered. What is left of its body is given up.
func (g *guard) next() {
	g.mu.Lock()
	taken, unread := g.taken, g.state != answering
	if !unread {
		g.state, g.seen, g.began = atHead, 0, time.Time{}
	}
	g.mu.Unlock()
	switch {
	case taken:
		close(g.ended) // net/http does not look after the connection any more
	case unread:
		g.giveUp()
	}
}

// takeOver ends the guard's part: the connection has been hijacked. It returns what the client has sent behind the
// request; what it sends from now on is to be read from Conn.
func (g *guard) takeOver() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped, g.taken = errGivenUp, true
	return g.in
}

// resets makes closing the connection a reset, if it can be: a client that takes the end of the connection for that
// of the answer shall not take a part of it for the whole.
func (g *guard) resets() {
	if c, ok := g.Conn.(interface{ SetLinger(int) error }); ok {
		_ = c.SetLinger(0)
	}
}
