package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pipelined bounds the queries of one connection that are not answered yet; more are not read (RFC 7766 section
	// 6.2.1.1).
	pipelined = 64
	// longestTCP is the longest query that is read from a connection, in bytes. What can be served is shorter.
	longestTCP = 4096
	// writeTime is how long a client may let an answer wait.
	writeTime = 10 * time.Second
)

// tcpConns are the open connections.
type tcpConns struct {
	mu      sync.Mutex // guards what follows
	open    map[*tcpConn]struct{}
	clients map[netip.Addr]int // how many are open
}

type tcpConn struct {
	s       *Server
	conn    *net.TCPConn
	client  netip.AddrPort
	answers chan []byte   // with their length in front; there is always room, because of places
	places  chan struct{} // holds one for each query whose answer is not written
	done    chan struct{} // closed when nothing is to be written any more
	used    atomic.Int64  // when the last query came or answer went, by Server.now
}

// ServeTCP answers queries on connections accepted from l until ctx is done, then closes them. It does not close l.
func (s *Server) ServeTCP(ctx context.Context, l *net.TCPListener) error {
	release := context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pause := time.Millisecond
	for {
		conn, err := l.AcceptTCP()
		switch {
		case err == nil:
			pause = time.Millisecond
			wg.Go(func() { s.ServeConn(ctx, conn) })
		case ctx.Err() != nil:
			if !release() {
				l.SetDeadline(time.Time{})
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accepting DNS connections on %v: %w", l.Addr(), err)
		default:
			// No descriptors or memory: they come back.
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
			pause = min(2*pause, time.Second)
		}
	}
}

// ServeConn answers queries on one accepted connection until the client closes it, it has been idle for too long, its
// place is needed or ctx is done. It closes conn.
func (s *Server) ServeConn(ctx context.Context, conn *net.TCPConn) {
	defer conn.Close()
	t := &tcpConn{
		s:       s,
		conn:    conn,
		client:  unmapped(conn.RemoteAddr().(*net.TCPAddr).AddrPort()),
		answers: make(chan []byte, pipelined),
		places:  make(chan struct{}, pipelined),
		done:    make(chan struct{}),
	}
	t.touch()
	if !s.tcp.add(t, s.opts.MaxTCP, s.opts.MaxTCPPerClient) {
		return
	}
	defer s.tcp.remove(t)
	release := context.AfterFunc(ctx, func() { conn.Close() })
	defer release()

	var writing sync.WaitGroup
	writing.Go(t.write)
	t.read()
	// What was asked is answered even if the client has closed its half. When all places can be had, all is written.
	for i := 0; i < pipelined && ctx.Err() == nil; i++ {
		select {
		case t.places <- struct{}{}:
		case <-ctx.Done():
		}
	}
	close(t.done)
	writing.Wait()
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func (t *tcpConn) touch() { t.used.Store(int64(t.s.now())) }

// read handles queries until the connection ends or has been idle for too long.
func (t *tcpConn) read() {
	w := t.s.newWorker()
	defer w.release()
	var pkt [longestTCP]byte
	for {
		_ = t.conn.SetReadDeadline(time.Now().Add(t.s.opts.IdleTCP)) // fails only on a closed connection
		if _, err := io.ReadFull(t.conn, pkt[:2]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(pkt[:]))
		if n > len(pkt) {
			return
		}
		if _, err := io.ReadFull(t.conn, pkt[:n]); err != nil {
			return
		}
		t.touch()
		t.places <- struct{}{}
		if !t.handle(w, pkt[:n]) {
			return
		}
	}
}

// handle reports whether the message was a query.
func (t *tcpConn) handle(w *worker, pkt []byte) bool {
	t.s.fresh()
	t.s.switching.RLock()
	defer t.s.switching.RUnlock()
	w.begin()
	q := w.q
	reply := w.handle(nil, pkt, nil, nil, t)
	w.sender.Flush()
	switch {
	case len(reply) > 0:
		t.answer(reply)
	case w.q == q: // neither answered nor sent on
		<-t.places
		return false
	}
	return true
}

// answer gives the writer a copy of an answer.
func (t *tcpConn) answer(msg []byte) {
	framed := make([]byte, 0, 2+len(msg))
	framed = binary.BigEndian.AppendUint16(framed, uint16(len(msg)))
	t.answers <- append(framed, msg...)
}

// write writes answers until there will be no more.
func (t *tcpConn) write() {
	failed := false
	for {
		select {
		case <-t.done:
			return
		case msg := <-t.answers:
			if !failed {
				_ = t.conn.SetWriteDeadline(time.Now().Add(writeTime)) // fails only on a closed connection
				if _, err := t.conn.Write(msg); err != nil {
					failed = true
					t.conn.Close() // ends read too
				}
				t.touch()
			}
			<-t.places
		}
	}
}

// add takes t in if there is room for it, or for that one without work that was used the longest ago can be closed.
func (c *tcpConns) add(t *tcpConn, most, mostPerClient int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := t.client.Addr()
	switch {
	case c.clients[client] >= mostPerClient:
		if !c.evictLocked(func(o *tcpConn) bool { return o.client.Addr() == client }) {
			return false
		}
	case len(c.open) >= most:
		if !c.evictLocked(func(*tcpConn) bool { return true }) {
			return false
		}
	}
	if c.open == nil {
		c.open, c.clients = make(map[*tcpConn]struct{}), make(map[netip.Addr]int)
	}
	c.open[t] = struct{}{}
	c.clients[client]++
	return true
}

func (c *tcpConns) evictLocked(may func(*tcpConn) bool) bool {
	var idlest *tcpConn
	for o := range c.open {
		if may(o) && len(o.places) == 0 && (idlest == nil || o.used.Load() < idlest.used.Load()) {
			idlest = o
		}
	}
	if idlest == nil {
		return false
	}
	idlest.conn.Close()
	c.removeLocked(idlest)
	return true
}

func (c *tcpConns) remove(t *tcpConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(t)
}

func (c *tcpConns) removeLocked(t *tcpConn) {
	if _, ok := c.open[t]; !ok {
		return
	}
	delete(c.open, t)
	client := t.client.Addr()
	if c.clients[client]--; c.clients[client] == 0 {
		delete(c.clients, client)
	}
}

func (c *tcpConns) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.open {
		t.conn.Close()
	}
}
