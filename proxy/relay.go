package proxy

import (
	"golang.org/x/sys/unix"

	"sluice/proxy/poll"
)

// side is one of the two sockets of a tunnel, with what was read from it and not yet passed on to the other.
type side struct {
	fd    int
	token poll.Token
	// readable and writable hold from an event until a call finds otherwise: events come once (edge-triggered).
	readable, writable bool
	doubt              bool // a short read may not be the last one
	failed             bool // it may have been reset
	ended              bool // the end of stream was read
	passed             bool // and passed on to the other side
	hot                bool // the last read was full, so the next bytes are worth a splice

	held []byte // bytes read from here, in a pooled buffer, from off on
	off  int
	pipe *pipe // bytes read from here, in a pipe; nil when empty
}

// hotBytes is what a turn must bring to keep using a pipe; less is cheaper to copy.
const hotBytes = 32 << 10

// turnBytes bounds what one direction moves before other connections of the worker have their turn.
const turnBytes = 1 << 20

// note takes an event's flags over.
func (s *side) note(events uint32) {
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		s.readable = true
	}
	if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		s.writable = true
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		s.doubt = true // the end of the stream follows, of which no other event tells
	}
	if events&poll.Failed != 0 {
		s.failed = true
	}
	if events&poll.Urgent != 0 {
		// Reads end in front of urgent data, and skip it unless it is taken for what it is to all but a few
		// programs, a part of the stream (tcp(7), RFC 6093 section 6).
		s.doubt = true
		_ = option(s.fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1)
	}
}

// relay moves what can be moved both ways, and closes the tunnel when both directions have ended.
func (c *conn) relay() {
	again, ok := c.pump(&c.client, &c.up)
	if !ok {
		return
	}
	more, ok := c.pump(&c.up, &c.client)
	if !ok {
		return
	}
	if c.client.passed && c.up.passed {
		c.finish()
		return
	}
	if again || more {
		c.worker.Again(c.client.token)
	}
}

// finish closes a tunnel whose both directions have ended, once both peers have everything: what the kernel still held, or
// had sent and would send again because it was lost, would go on after a switch that refuses it.
func (c *conn) finish() {
	if undelivered(c.up.fd) || undelivered(c.client.fd) {
		if c.state != ending {
			c.state = ending
			// The peers are not to wait for the end of the stream. What has no end yet is told it now.
			shutWrite(c.up.fd)
			shutWrite(c.client.fd)
		}
		c.worker.endings.Start(&c.timer, c)
		return
	}
	if c.account(allowed, c.decision.Reason, ""); c.cutShort {
		c.linger() // unread bytes of the client would make closing a reset, and take the answer with it
	} else {
		c.close()
	}
}

// undelivered reports whether the kernel would still send something of a socket, be it once more: until the peer has
// acknowledged it all, or the connection is gone.
func undelivered(fd int) bool {
	n, err := unacknowledged(fd)
	if err != nil || n <= 0 {
		return false
	}
	// A connection that was reset still counts what it had to send.
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State != unix.BPF_TCP_CLOSE
}

// pump moves bytes from src to dst until nothing can be moved or the turn is over (again). It reports false if the
// tunnel broke and is closed.
//
// Bytes go through the worker's scratch buffer while little comes, through a pipe once a read was full. Neither is
// kept when src is quiet: an idle tunnel holds its two sockets only.
func (c *conn) pump(src, dst *side) (again, ok bool) {
	w, moved := c.worker, 0
	for {
		n, err := src.flush(dst)
		moved += n
		c.count(src, n)
		if err != nil {
			return false, c.unsent(src, err)
		}
		if src.holds() {
			return false, !c.clientLeft()
		}
		src.rest(w)
		if src.ended {
			if !src.passed {
				src.passed = true
				if !dst.passed { // else both are done and closing says it
					shutWrite(dst.fd)
				}
			}
			return false, true
		}
		if !src.readable {
			return false, true
		}
		if moved >= turnBytes {
			return true, true
		}
		if src.hot {
			if src.pipe = w.pipes.take(); src.pipe == nil {
				src.hot = false
			}
		}
		buffer := w.scratch
		if w.full() {
			buffer = buffer[:shortBytes]
		}
		if src.pipe != nil {
			n, err = src.pipe.fill(src.fd)
		} else {
			n, err = readSocket(src.fd, buffer)
		}
		switch {
		case err == unix.EAGAIN:
			src.readable = false
			src.hot = src.hot && moved >= hotBytes
			continue
		case err != nil:
			c.broken()
			return false, false
		case n == 0:
			src.ended = true
			continue
		case src.pipe != nil:
			continue
		case n == len(buffer):
			src.hot = n == len(w.scratch)
		case !src.doubt:
			// A short read means that the socket is empty; what comes later is a new event (epoll(7)).
			src.readable = false
		}
		sent, err := 0, error(nil)
		if dst.writable {
			sent, err = writeSocket(dst.fd, w.scratch[:n])
		}
		if err == unix.EAGAIN {
			err = nil
		}
		if err != nil {
			return false, c.unsent(src, err)
		}
		moved += sent
		c.count(src, sent)
		if sent < n {
			dst.writable = false
			src.held = w.keep(nil, w.scratch[sent:n])
		}
	}
}

// clientLeft ends a tunnel whose client was reset, where reading does not show it: what the client has sent waits for
// the upstream.
func (c *conn) clientLeft() bool {
	if !c.client.failed || !clientGone(c.client.fd) {
		return false
	}
	c.broken()
	return true
}

// count counts bytes of src that went to the other side, at once: the next call may end the connection.
func (c *conn) count(src *side, n int) {
	switch {
	case n == 0:
	case src == &c.client:
		c.bytesOut += uint64(n)
		c.rules.sent.Add(uint64(n))
	default:
		c.bytesIn += uint64(n)
		c.rules.received.Add(uint64(n))
	}
}

// unsent handles a failed write of what src sent, and reports whether the tunnel goes on. An upstream that stopped
// reading may have answered before it did (an early refusal of an upload): the client still gets that.
func (c *conn) unsent(src *side, err error) bool {
	if src != &c.client || c.up.ended {
		c.broken()
		return false
	}
	src.drop(c.worker)
	src.ended, src.passed, c.cutShort = true, true, true
	c.up.readable = true
	return true
}

// holds reports whether bytes of src wait to be passed on.
func (s *side) holds() bool { return s.off < len(s.held) || s.pipe != nil && s.pipe.held > 0 }

// flush passes on what s holds, as far as dst takes it.
func (s *side) flush(dst *side) (moved int, err error) {
	for dst.writable && s.holds() {
		var n int
		if s.off < len(s.held) {
			n, err = writeSocket(dst.fd, s.held[s.off:])
			s.off += n
		} else {
			n, err = s.pipe.drain(dst.fd)
		}
		moved += n
		if err == unix.EAGAIN {
			dst.writable, err = false, nil
		} else if err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// rest gives back an empty buffer and pipe.
func (s *side) rest(w *worker) {
	if s.held != nil && s.off == len(s.held) {
		w.release(s.held)
		s.held, s.off = nil, 0
	}
	if s.pipe != nil && s.pipe.held == 0 {
		w.pipes.give(s.pipe)
		s.pipe = nil
	}
}

// drop is rest for a side that ends with what it holds.
func (s *side) drop(w *worker) {
	if s.held != nil {
		w.release(s.held)
		s.held, s.off = nil, 0
	}
	if s.pipe != nil {
		w.pipes.give(s.pipe)
		s.pipe = nil
	}
}
