package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/proxy/udpbatch"
)

// udpConn is a socket that queries come in on.
type udpConn struct {
	raw syscall.RawConn
}

var readers = sync.Pool{New: func() any { return udpbatch.NewReader() }}

// ServeUDP answers queries that come in on conn until ctx is done. It does not close conn. On a socket that is bound
// to every address, answers leave from the address that was asked.
func (s *Server) ServeUDP(ctx context.Context, conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("serving DNS on %v: %w", conn.LocalAddr(), err)
	}
	if conn.LocalAddr().(*net.UDPAddr).IP.IsUnspecified() {
		var sockErr error
		if err := raw.Control(func(fd uintptr) { sockErr = udpbatch.WantLocal(int(fd)) }); err != nil || sockErr != nil {
			return fmt.Errorf("serving DNS on %v: asking for the local addresses of packets: %w", conn.LocalAddr(), errors.Join(err, sockErr))
		}
	}
	_ = conn.SetReadBuffer(1 << 20) // as much as the system grants

	w := s.newWorker()
	defer w.release()
	release := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	udp := &udpConn{raw: raw}
	// The callback reads whenever there is something, and so saves a look at the empty socket each time.
	err = raw.Read(func(fd uintptr) bool {
		w.readable(ctx, udp, int(fd))
		return false
	})
	if !release() {
		conn.SetReadDeadline(time.Time{})
		return nil
	}
	return fmt.Errorf("serving DNS on %v: %w", conn.LocalAddr(), err)
}

// readable handles all packets that there are.
func (w *worker) readable(ctx context.Context, udp *udpConn, fd int) {
	r := readers.Get().(*udpbatch.Reader)
	defer readers.Put(r)
	for failures := 0; failures < udpbatch.Size; {
		n, err := r.Read(fd, true)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil:
			failures++ // the fate of a former packet
			continue
		}
		w.batch(udp, fd, r, n)
		if n < udpbatch.Size || ctx.Err() != nil {
			// It is empty, and what comes from now on wakes the poller again (it is edge-triggered).
			return
		}
	}
}

func (w *worker) batch(udp *udpConn, fd int, r *udpbatch.Reader, n int) {
	out := writers.Get().(*udpbatch.Writer)
	defer writers.Put(out)
	w.s.fresh()
	w.s.switching.RLock()
	defer w.s.switching.RUnlock()
	w.begin()
	for i := range n {
		if r.Truncated(i) {
			continue // no query is so long
		}
		peer := r.Peer(i)
		if reply := w.handle(out.Scratch(), r.Packet(i), udp, peer, nil); len(reply) > 0 {
			out.Add(reply, peer)
		}
	}
	w.sender.Flush()
	if !out.Empty() {
		_ = out.Flush(fd) // what is lost will be asked for again
	}
}
