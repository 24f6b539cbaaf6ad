package upstream

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/proxy/dnswire"
	"sluice/proxy/udpbatch"
)

// A socket is connected to one server, so that the kernel keeps packets of others away and reports it if nothing
// listens there. The client's mutex guards what is not set once.
type socket struct {
	c      *Client
	server int
	conn   *net.UDPConn
	raw    syscall.RawConn
	born   time.Duration
	// release is called when conn has been closed.
	release func() error

	queries     []*Query // by the low bits of the id
	outstanding int
	sent        int
	used        time.Duration
}

var readers = sync.Pool{New: func() any { return udpbatch.NewReader() }}

// socketLocked returns one of a server's sockets, at random, opened if need be. (Neither step blocks.)
func (c *Client) socketLocked(server int, now time.Duration) (*socket, error) {
	place := &c.servers[server].sockets[c.random.Uint64()%socketsPerServer]
	if s := *place; s != nil {
		if s.sent < socketQueries && now-s.born < socketAge {
			return s, nil
		}
		c.retired = append(c.retired, s)
		*place = nil
	}
	addr := c.servers[server].addr
	conn, release, err := c.opts.Outgoing.DialUDP(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, errors.Join(err, release()))
	}
	_ = conn.SetReadBuffer(1 << 20) // as much as the system grants
	s := &socket{c: c, server: server, conn: conn, release: release, raw: raw, born: now, queries: make([]*Query, c.table)}
	*place = s
	c.wg.Add(1)
	go s.run()
	return s, nil
}

// close ends the socket, and run.
func (s *socket) close() {
	s.conn.Close()
	if err := s.release(); err != nil {
		s.c.opts.Logger.Warn("socket for a name server was closed, but is known still", "err", err)
	}
}

func (s *socket) run() {
	defer s.c.wg.Done()
	sink := s.c.opts.NewSink()
	// The callback reads whenever there is something, and so saves a look at the empty socket each time. The end
	// of the connection ends it.
	_ = s.raw.Read(func(fd uintptr) bool {
		s.readable(int(fd), sink)
		return false
	})
}

// readable reads all there is.
func (s *socket) readable(fd int, sink Sink) {
	r := readers.Get().(*udpbatch.Reader)
	defer readers.Put(r)
	for failures := 0; failures < udpbatch.Size; {
		n, err := r.Read(fd, false)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil:
			// An ICMP message told of the fate of a packet.
			failures++
			s.c.refused(s)
			continue
		}
		s.c.answered(s, r, n, sink)
		if n < udpbatch.Size || s.c.ctx.Err() != nil {
			// It is empty, and what comes from now on wakes the poller again (it is edge-triggered).
			return
		}
	}
}

// answered handles n packets that were read from s.
func (c *Client) answered(s *socket, r *udpbatch.Reader, n int, sink Sink) {
	var again []*Query // must be sent without the gate
	used := false
	c.opts.Gate.Lock()
	for i := range n {
		msg := r.Packet(i)
		c.mu.Lock()
		q := s.ofLocked(msg)
		if q == nil {
			c.mu.Unlock()
			continue
		}
		c.leaveLocked(q)
		srv := &c.servers[s.server]
		srv.failures, srv.deadUntil = 0, 0
		if int(q.attempt)+1 < len(c.servers) && failed(msg) {
			c.mu.Unlock()
			again = append(again, q)
			continue
		}
		truncated := msg[2]&dnswire.FlagTruncated != 0 || r.Truncated(i)
		if truncated && c.tcp < maxTCP && !c.closed {
			c.tcp++
			c.wg.Add(1)
			c.mu.Unlock()
			go c.overTCP(q, srv.addr, append([]byte(nil), msg...))
			continue
		}
		c.outstanding--
		c.mu.Unlock()
		if truncated {
			msg[2] |= dnswire.FlagTruncated
		}
		sink.Answer(q, msg)
		used = true
	}
	if used {
		sink.Flush()
	}
	c.opts.Gate.Unlock()
	c.again(again, ErrUnreachable)
}

// failed reports whether msg says that its server has no answer, so that another one is worth a question.
func failed(msg []byte) bool {
	switch msg[3] & dnswire.RcodeMask {
	case dnswire.RcodeServFail, dnswire.RcodeNotImp, dnswire.RcodeRefused:
		return true
	}
	return false
}

// ofLocked returns the query that msg answers, or nil.
func (s *socket) ofLocked(msg []byte) *Query {
	if len(msg) < dnswire.HeaderLen {
		return nil
	}
	id := uint16(msg[0])<<8 | uint16(msg[1])
	q := s.queries[int(id)&(len(s.queries)-1)]
	if q == nil || !q.answeredBy(msg) {
		return nil
	}
	return q
}

// answeredBy reports whether msg, which holds a header, is an answer to q.
func (q *Query) answeredBy(msg []byte) bool {
	end := q.Question.End
	return msg[0] == byte(q.id>>8) && msg[1] == byte(q.id) &&
		msg[2]&(dnswire.FlagResponse|dnswire.OpcodeMask) == dnswire.FlagResponse &&
		dnswire.Count(msg, 0) == 1 && len(msg) >= end &&
		dnswire.SameQuestion(msg[dnswire.HeaderLen:end], q.Msg[dnswire.HeaderLen:end])
}

// refused ends the present attempt of all queries of s: its server cannot be reached.
func (c *Client) refused(s *socket) {
	var queries []*Query
	silent := false
	c.mu.Lock()
	if s.outstanding > 0 {
		for _, q := range s.queries {
			if q != nil {
				c.leaveLocked(q)
				queries = append(queries, q)
			}
		}
		silent = c.missedLocked(s.server, c.now())
	}
	addr := c.servers[s.server].addr
	c.mu.Unlock()
	if silent {
		c.opts.Logger.Warn("name server cannot be reached", "upstream", addr)
	}
	c.again(queries, ErrUnreachable)
}
