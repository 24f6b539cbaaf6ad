package forward

import (
	"net"
	"sync"
)

// handover is a listener whose connections come from [Server.ServeConn].
type handover struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// give hands c to the accepting side, or reports that there is none any more.
func (h *handover) give(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.closed:
		return false
	}
}

// Accept implements [net.Listener].
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (h *handover) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements [net.Listener].
func (h *handover) Addr() net.Addr { return &net.TCPAddr{} }
