package forward

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// errUpgrade is a 101 that does not switch to what was asked for.
var errUpgrade = errors.New("not an upgrade to websocket")

// upgrade sends a WebSocket upgrade (RFC 6455 section 4), and reports whether the upstream agreed; the connections
// have then been relayed to their end. goproxy takes part only if the upstream did not agree: it ends both directions
// with the first, and leaves the client's connection open.
func (x *exchange) upgrade(out *http.Request) bool {
	out.Header.Set("Connection", "Upgrade")
	out.Header.Set("Upgrade", "websocket")
	resp, err := x.send(out)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		x.answer = x.clean(resp)
		return false
	}
	if err == nil && !slices.Equal(upgrades(resp.Header), []string{"websocket"}) {
		_ = resp.Body.Close()
		err = errUpgrade
	}
	if err != nil {
		x.answer = x.failed(out, err)
		return false
	}
	_, buffered, err := http.NewResponseController(x.writer).Hijack()
	if err != nil || buffered.Reader.Buffered() > 0 {
		panic(http.ErrAbortHandler) // the guard shows nothing behind a request
	}
	g := x.client.guard
	early := g.takeOver()
	defer g.Close()

	removeHopFields(resp.Header)
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n")
	_ = resp.Header.Write(&head) // to memory
	head.WriteString("\r\n")
	if _, err := g.Conn.Write(head.Bytes()); err != nil {
		return true
	}
	if _, err := x.up.conn.Write(early); err != nil {
		return true
	}
	relay(g.Conn, x.up.conn, resp.Body)
	return true
}

const (
	relayBuffer = 16 << 10
	// halfOpenTimeout is how long one direction may be silent when the other has ended.
	halfOpenTimeout = time.Minute
)

// relay passes bytes both ways until both directions have ended or either fails, and closes both connections. What
// the server sends is read from fromServer, which may hold bytes that are already here.
func relay(client, server net.Conn, fromServer io.Reader) {
	var halfOpen atomic.Bool
	pass := func(dst net.Conn, src io.Reader, srcConn net.Conn) {
		buf := make([]byte, relayBuffer)
		for {
			if halfOpen.Load() {
				_ = srcConn.SetReadDeadline(time.Now().Add(halfOpenTimeout))
			}
			n, err := src.Read(buf)
			if n > 0 {
				if _, failed := dst.Write(buf[:n]); failed != nil {
					err = failed
				}
			}
			if err == io.EOF && closeWrite(dst) == nil && halfOpen.CompareAndSwap(false, true) {
				_ = dst.SetReadDeadline(time.Now().Add(halfOpenTimeout)) // it may be waiting to read already
				return
			}
			if err != nil {
				_ = client.Close()
				_ = server.Close()
				return
			}
		}
	}
	var upward sync.WaitGroup
	upward.Go(func() { pass(server, client, client) })
	pass(client, fromServer, server)
	upward.Wait()
}

// closeWrite sends a FIN on c, if c can.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
