// Package upstream asks name servers: it sends a question to one after the other until one answers, and believes
// only answers that belong to a question (RFC 5452).
//
// Questions leave from several sockets, whose ports the kernel draws at random (RFC 6056) and which are replaced
// after a while, under random ids. An answer counts if it comes to the right socket from the server that was asked,
// with the id and the question that were sent; all others are ignored. A truncated answer is asked for again over
// TCP.
package upstream

import (
	"context"
	crand "crypto/rand"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"sluice/proxy/dnswire"
	"sluice/proxy/outgoing"
)

// Why a question got no answer, for errors.Is.
var (
	ErrTimeout     = errors.New("no name server answered in time")
	ErrUnreachable = errors.New("no name server could be reached")
	ErrBusy        = errors.New("too many DNS questions under way")
	ErrNoServer    = errors.New("no name server is configured")
	ErrCancelled   = errors.New("DNS question is not to be asked any more")
	ErrClosed      = errors.New("DNS client is closed")
)

// What [Options] leaves open.
const (
	// DefaultOutstanding bounds the questions under way.
	DefaultOutstanding = 1024
	// DefaultTimeout is how long a server has for an answer. With attempts it gives 4.8 s, a little less than the
	// 5 s after which resolvers ask again (resolv.conf(5)).
	DefaultTimeout = 1200 * time.Millisecond

	attempts = 4
)

const (
	socketsPerServer = 4
	// A socket is replaced after so many questions or so long, so that its port is worth little to who learns it.
	socketQueries = 4096
	socketAge     = time.Minute
	// socketIdle is after how long without a question a socket is closed.
	socketIdle = 10 * time.Second
	// deadAfter timeouts in a row make a server the last choice for deadTime.
	deadAfter = 3
	deadTime  = 10 * time.Second
	// maxTCP bounds the connections that are open because of truncated answers.
	maxTCP = 32
)

// A Query is one question under way. From [Sender.Add] on it belongs to the client, until the [Sink] is given it
// back.
type Query struct {
	// Msg is the message to send: a header and one question whose name is in lower case; what follows the question
	// is sent too. The client writes its id.
	Msg []byte
	// Question is Msg's question; its End is at most len(Msg).
	Question dnswire.Question
	// Owner is for the caller.
	Owner any
	// Client is who asks, if the query is to leave room for others: one client has at most as many under way as are free.
	Client netip.Addr

	id       uint16
	attempt  uint8
	server   int
	socket   *socket // nil while it is not in a socket's table
	deadline time.Duration
	prev     *Query // neighbours in Client.oldest
	next     *Query
}

// A Sink takes what becomes of queries. Each goroutine of the client has one of its own and calls it for one query
// after the other; for every query either Answer or Fail is called, once. Neither may block.
type Sink interface {
	// Answer gives an answer to q. msg may be changed and is valid until Flush returns.
	Answer(q *Query, msg []byte)
	// Fail reports that q got no answer.
	Fail(q *Query, err error)
	// Flush is called after one or more of the others.
	Flush()
}

// Options of a [Client].
type Options struct {
	Servers []netip.AddrPort // in the order in which they are to be tried
	// MaxOutstanding bounds the queries under way; 0 is [DefaultOutstanding], and more than 16384 are that many.
	MaxOutstanding int
	// Timeout is how long a server has for an answer; 0 is [DefaultTimeout].
	Timeout time.Duration
	// NewSink makes a sink for a goroutine.
	NewSink func() Sink
	// Again, if set, is asked before a query is sent once more, to another server, after a timeout or over TCP. If it
	// says no, the query fails with [ErrCancelled].
	Again func(*Query) bool
	// Gate, if set, is held while Again is asked and the query sent, and while a sink is called.
	Gate sync.Locker
	// Outgoing opens the sockets; nil opens them as anybody does.
	Outgoing *outgoing.Sockets
	// Logger takes rare notes on servers; nil discards them.
	Logger *slog.Logger
}

type noGate struct{}

func (noGate) Lock()   {}
func (noGate) Unlock() {}

type server struct {
	addr    netip.AddrPort
	sockets [socketsPerServer]*socket
	// failures counts timeouts in a row.
	failures  int
	deadUntil time.Duration
}

// A Client is safe for concurrent use.
type Client struct {
	opts  Options
	start time.Time
	table int // places in a socket's table, a power of two, more than the queries under way
	wg    sync.WaitGroup
	ctx   context.Context // ends with the client
	end   context.CancelFunc
	lost  chan *socket // could not send, for the sweeper

	mu          sync.Mutex // guards what follows, and all of servers, sockets and queries under way
	servers     []server
	retired     []*socket // replaced, until their last query is done
	random      *rand.ChaCha8
	outstanding int
	oldest      *Query // by deadline
	newest      *Query
	sweeping    bool // the sweeper's goroutine runs
	tcp         int  // connections open
	closed      bool
}

// New makes a client. It opens sockets as they are needed, and closes them when they are not.
func New(o Options) *Client {
	if o.MaxOutstanding <= 0 {
		o.MaxOutstanding = DefaultOutstanding
	}
	o.MaxOutstanding = min(o.MaxOutstanding, 1<<14)
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Again == nil {
		o.Again = func(*Query) bool { return true }
	}
	if o.Gate == nil {
		o.Gate = noGate{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{opts: o, start: time.Now(), table: 2, lost: make(chan *socket, 16)}
	c.ctx, c.end = context.WithCancel(context.Background())
	for c.table < 2*o.MaxOutstanding {
		c.table *= 2
	}
	for _, addr := range o.Servers {
		c.servers = append(c.servers, server{addr: addr})
	}
	var seed [32]byte
	crand.Read(seed[:])
	c.random = rand.NewChaCha8(seed)
	return c
}

// Outstanding returns how many queries are under way.
func (c *Client) Outstanding() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outstanding
}

// Send sends one query; see [Sender.Add].
func (c *Client) Send(q *Query) error {
	s := c.NewSender()
	if err := s.Add(q); err != nil {
		return err
	}
	s.Flush()
	return nil
}

// Close fails what is under way with [ErrClosed] and returns when every goroutine of the client has ended.
func (c *Client) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.wg.Wait()
		return
	}
	c.closed = true
	c.end()
	var failed []*Query
	for c.oldest != nil {
		q := c.oldest
		c.dropLocked(q)
		failed = append(failed, q)
	}
	sockets := c.retired
	c.retired = nil
	for i := range c.servers {
		for j, s := range c.servers[i].sockets {
			if s != nil {
				sockets = append(sockets, s)
				c.servers[i].sockets[j] = nil
			}
		}
	}
	c.mu.Unlock()

	for _, s := range sockets {
		s.close()
	}
	c.opts.Gate.Lock()
	c.failGated(failed, ErrClosed)
	c.opts.Gate.Unlock()
	c.wg.Wait()
}

// Cancel fails with [ErrCancelled] the queries under way that f picks. It must be called without the gate, and f must
// not call the client.
func (c *Client) Cancel(f func(*Query) bool) {
	var picked []*Query
	c.mu.Lock()
	for q := c.oldest; q != nil; {
		next := q.next
		if f(q) {
			c.dropLocked(q)
			picked = append(picked, q)
		}
		q = next
	}
	c.mu.Unlock()
	c.opts.Gate.Lock()
	defer c.opts.Gate.Unlock()
	c.failGated(picked, ErrCancelled)
}

// failGated is to be called with the gate held.
func (c *Client) failGated(queries []*Query, err error) {
	if len(queries) == 0 {
		return
	}
	sink := c.opts.NewSink()
	for _, q := range queries {
		sink.Fail(q, err)
	}
	sink.Flush()
}

// now is the time on the client's own clock.
func (c *Client) now() time.Duration { return time.Since(c.start) }

// busyLocked reports whether there is no room for q. Below half of the places there is, for everybody.
func (c *Client) busyLocked(q *Query) bool {
	free := c.opts.MaxOutstanding - c.outstanding
	if free <= 0 {
		return true
	}
	if c.outstanding < free || !q.Client.IsValid() {
		return false
	}
	for o := c.oldest; o != nil; o = o.next {
		if o.Client == q.Client {
			free--
		}
	}
	return free <= 0
}

// chooseLocked returns the server for the next attempt of q: the first one behind the last that was asked which is
// not known to be dead, or else simply the next.
func (c *Client) chooseLocked(q *Query, now time.Duration) int {
	n := len(c.servers)
	first := 0
	if q.attempt > 0 {
		first = (q.server + 1) % n
	}
	for i := range n {
		if k := (first + i) % n; c.servers[k].deadUntil <= now {
			return k
		}
	}
	return first
}

// enterLocked gives q a place in s's table, with an id that nobody can foresee, and a deadline.
func (c *Client) enterLocked(q *Query, s *socket, now time.Duration) {
	id := uint16(c.random.Uint64())
	mask := c.table - 1
	for s.queries[int(id)&mask] != nil { // fewer than half of the places are taken
		id = uint16(c.random.Uint64())
	}
	q.id, q.socket = id, s
	s.queries[int(id)&mask] = q
	s.outstanding++
	s.sent++
	s.used = now
	q.Msg[0], q.Msg[1] = byte(id>>8), byte(id)
	// Every attempt has the same time, so that the newest deadline is the last.
	q.deadline = now + c.opts.Timeout
	q.prev, q.next = c.newest, nil
	if c.newest != nil {
		c.newest.next = q
	} else {
		c.oldest = q
	}
	c.newest = q
	if !c.sweeping {
		c.sweeping = true
		c.wg.Add(1)
		go c.sweep()
	}
}

// leaveLocked takes q out of its socket's table and out of the list: the attempt is over.
func (c *Client) leaveLocked(q *Query) {
	s := q.socket
	s.queries[int(q.id)&(c.table-1)] = nil
	s.outstanding--
	q.socket = nil
	if q.prev != nil {
		q.prev.next = q.next
	} else {
		c.oldest = q.next
	}
	if q.next != nil {
		q.next.prev = q.prev
	} else {
		c.newest = q.prev
	}
	q.prev, q.next = nil, nil
}

// dropLocked is leaveLocked for a query that is done.
func (c *Client) dropLocked(q *Query) {
	c.leaveLocked(q)
	c.outstanding--
}

// sweep ends attempts whose time is over and closes sockets that are not needed. It runs while there is something
// to look after.
func (c *Client) sweep() {
	defer c.wg.Done()
	period := min(max(c.opts.Timeout/8, time.Millisecond), 200*time.Millisecond)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case s := <-c.lost:
			c.refused(s)
		case <-tick.C:
		}
		if !c.sweepOnce() {
			return
		}
	}
}

func (c *Client) sweepOnce() bool {
	var late []*Query
	var silent []netip.AddrPort
	now := c.now()
	c.mu.Lock()
	for q := c.oldest; q != nil && q.deadline <= now; q = c.oldest {
		c.leaveLocked(q)
		if c.missedLocked(q.server, now) {
			silent = append(silent, c.servers[q.server].addr)
		}
		late = append(late, q)
	}
	idle := c.takeIdleLocked(now)
	c.mu.Unlock()
	for _, addr := range silent {
		c.opts.Logger.Warn("name server does not answer", "upstream", addr)
	}
	for _, s := range idle {
		s.close()
	}
	c.again(late, ErrTimeout)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweeping = c.outstanding > 0 || c.openLocked()
	return c.sweeping
}

// missedLocked notes that a server did not answer, and reports whether it counts as dead from now on.
func (c *Client) missedLocked(i int, now time.Duration) bool {
	srv := &c.servers[i]
	srv.failures++
	if srv.failures >= deadAfter {
		srv.deadUntil = now + deadTime
	}
	return srv.failures == deadAfter
}

// takeIdleLocked takes away and returns the sockets that may be closed.
func (c *Client) takeIdleLocked(now time.Duration) []*socket {
	var idle []*socket
	kept := c.retired[:0]
	for _, s := range c.retired {
		if s.outstanding == 0 {
			idle = append(idle, s)
		} else {
			kept = append(kept, s)
		}
	}
	clear(c.retired[len(kept):])
	c.retired = kept
	for i := range c.servers {
		for j, s := range c.servers[i].sockets {
			if s != nil && s.outstanding == 0 && now-s.used > socketIdle {
				c.servers[i].sockets[j] = nil
				idle = append(idle, s)
			}
		}
	}
	return idle
}

func (c *Client) openLocked() bool {
	for i := range c.servers {
		for _, s := range c.servers[i].sockets {
			if s != nil {
				return true
			}
		}
	}
	return len(c.retired) > 0
}

// again makes the next attempt of queries whose last one is over, or fails those that had the last one with err. It
// must be called without the gate.
func (c *Client) again(queries []*Query, err error) {
	if len(queries) == 0 {
		return
	}
	c.opts.Gate.Lock()
	defer c.opts.Gate.Unlock()
	var failed, cancelled []*Query
	s := c.NewSender()
	for _, q := range queries {
		q.attempt++
		switch {
		case int(q.attempt) >= max(attempts, len(c.servers)):
			failed = append(failed, q)
		case !c.opts.Again(q):
			cancelled = append(cancelled, q)
		case s.resend(q) != nil:
			failed = append(failed, q)
		}
	}
	s.Flush()
	c.mu.Lock()
	c.outstanding -= len(failed) + len(cancelled)
	if c.closed {
		err = ErrClosed
	}
	c.mu.Unlock()
	c.failGated(failed, err)
	c.failGated(cancelled, ErrCancelled)
}
