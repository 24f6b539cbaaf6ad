package proxy

import (
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice/matcher"
	"sluice/proxy/poll"
	"sluice/proxy/sniff"
)

// state is where a connection stands. It goes down this list, and may leave for refusing or closed at any point.
type state uint8

const (
	reading   state = iota // the request head is not complete
	looking                // its policy or its name is being looked up
	dialling               // its addresses are being tried
	sniffing               // the tunnel is open; what the client says in it is not known yet
	asking                 // the name that the client shows in it is being looked up
	watching               // both sides speak; the client may have to send a second ClientHello
	relaying               // bytes pass both ways
	ending                 // both sides have said all; a peer may not have it all
	refusing               // an answer is being written, then the connection ends
	lingering              // the answer is written; the client has time to read it
	closed
)

// Tags of a connection's two sockets in its event loop.
const (
	clientTag uint8 = iota
	upTag
)

// conn is one client connection, from accept to close, on one worker.
type conn struct {
	worker  *worker
	session *Session
	rules   *rules // judged under these
	state   state
	epoch   uint32 // grows when the conn is used for another client: what comes late for the one before is dropped

	client, up side
	in         []byte // what the client sent and nobody has judged yet
	timer      poll.Timer
	dial       *race
	sniffer    *sniff.Sniffer // only while first bytes come piecemeal
	streams    *streams       // of a client that speaks HTTP/2 without TLS
	watch      *helloWatch    // until the client is past a second ClientHello
	forgotten  int            // bytes that came after a refusal
	passed     int            // how many of the first bytes went to the upstream before they were classified
	opaque     bool           // what the client says cannot be judged by name
	cutShort   bool           // the upstream stopped reading before the client stopped sending

	direct     bool // came by redirection: the target is its original destination, the client knows of no proxy
	classified bool // what a redirected client said is TLS, HTTP or unknown, and not SSH
	exact      bool // the exact names of the policy are being looked up for it
	judged     bool // the first bytes, in in, were judged before there was an upstream

	target   endpoint
	decision matcher.Decision
	chain    []string   // CNAME names behind the target
	address  netip.Addr // dialled
	single   [1]netip.Addr
	shown    string // the name that the client showed inside the tunnel, if it is not the target's
	proven   bool   // it was seen to stand for address
	nameless bool   // the client speaks TLS on port 443 and shows no name
	protocol protocol

	opened   time.Time
	bytesIn  uint64 // from the upstream
	bytesOut uint64 // to the upstream
	idle     idleness
	flow     flowLink
}

// serve takes an accepted socket over, of which first was read already. If it may have been redirected, how tells
// from where.
func (w *worker) serve(fd int, s *Session, how *redirection, first ...byte) {
	w.reap()
	var c *conn
	if n := len(w.conns); n > 0 {
		c = w.conns[n-1]
		w.conns = w.conns[:n-1]
	} else {
		c = new(conn)
	}
	c.worker, c.session, c.state, c.opened = w, s, reading, w.Now()
	c.client.fd, c.up.fd = fd, -1
	c.decision.Rule = matcher.NoRule
	var err error
	if c.client.token, err = w.Add(fd, c, clientTag, poll.Both); err != nil {
		unix.Close(fd)
		return
	}
	s.count(1)
	if how == nil {
		w.heads.Start(&c.timer, c)
	}
	if len(first) > 0 {
		c.keep(first)
		c.readOn(c.in, 0)
		return
	}
	// The first event tells whether anything has come; most clients write right after they connected.
	c.client.readable = true
	if how != nil {
		c.redirected(how)
		return
	}
	c.readHead()
}

// Ready implements [poll.Handler].
func (c *conn) Ready(tag uint8, events uint32) {
	c.worker.reap()
	if tag == clientTag {
		c.client.note(events)
	} else {
		c.up.note(events)
	}
	c.step()
}

// step does what the state and the sockets allow.
func (c *conn) step() {
	switch c.state {
	case reading:
		c.readHead()
	case looking, dialling, asking:
		// A half-closed client still waits for its answer; one that is gone does not.
		if c.client.readable && clientGone(c.client.fd) {
			c.account(failed, reasonClientGone, "")
			c.abort()
		}
	case sniffing:
		c.sniff()
	case watching:
		c.watchOn()
	case relaying:
		c.relay()
	case ending:
		c.finish()
	case refusing:
		c.flushRefusal()
	case lingering:
		c.drain()
	}
}

// clientGone reports whether the peer of fd has reset the connection.
func clientGone(fd int) bool {
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	return err != nil || errno != 0
}

// broken ends a tunnel of which one side failed: the other side sees a reset too.
func (c *conn) broken() {
	c.account(allowed, c.decision.Reason, "")
	c.abort()
}

// cut ends a tunnel that the rules in force no longer allow.
func (c *conn) cut(r *rules, d matcher.Decision) {
	c.rules, c.decision = r, d
	c.account(cutOff, d.Reason, "")
	c.abort()
}

// abort resets both sides and forgets the connection.
func (c *conn) abort() {
	c.end(reset)
}

// close closes both sides in order and forgets the connection.
func (c *conn) close() {
	c.end(closeSocket)
}

func (c *conn) end(release func(int)) {
	if c.state == closed {
		return
	}
	w := c.worker
	c.state = closed
	c.timer.Stop()
	c.stopDialling()
	c.unlist()
	for _, s := range []*side{&c.client, &c.up} {
		s.drop(w)
		if s.fd >= 0 {
			w.Remove(s.token)
			release(s.fd)
		}
	}
	c.session.count(-1)
	w.ended = append(w.ended, c)
}

// reap makes ended connections ready for other clients. It is called where no method of a conn is under way: one that
// ended its conn still touches it on the way out. What was started for the old client compares epochs.
func (w *worker) reap() {
	for i, c := range w.ended {
		w.release(c.in)
		c.dropStreams()
		c.timer.Stop()
		*c = conn{epoch: c.epoch + 1, state: closed, worker: w}
		if len(w.conns) < keptConns {
			w.conns = append(w.conns, c)
		}
		w.ended[i] = nil
	}
	w.ended = w.ended[:0]
}

// later runs f on c's worker, if c is in one of those states then, and not refused or ended. It may be called from any
// goroutine; take it on the worker.
func (c *conn) later(in ...state) func(f func()) {
	w, epoch := c.worker, c.epoch
	return func(f func()) {
		w.Post(func() {
			if c.epoch == epoch && slices.Contains(in, c.state) {
				f()
			}
		})
	}
}

// settled sets up keep-alive probes for a tunnel that lasts; the client's side has them from the listener.
func (c *conn) settled() {
	if c.up.fd >= 0 {
		_ = probeIdle(c.up.fd)
	}
}

// resolver of the session.
func (c *conn) resolver() *lookups { return c.session.resolver() }
