package proxy

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// resetter is an upstream that reads one byte and is reset when it is told to.
type resetter struct {
	port           string
	got, now, gone chan struct{}
}

func newResetter(t *testing.T, fin bool) *resetter {
	u := &resetter{got: make(chan struct{}), now: make(chan struct{}), gone: make(chan struct{})}
	u.port = listen(t, func(c net.Conn) {
		tcp := c.(*net.TCPConn)
		if fin {
			_ = tcp.CloseWrite()
		}
		_, _ = io.ReadFull(c, make([]byte, 1))
		u.got <- struct{}{}
		<-u.now
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
		u.gone <- struct{}{}
	})
	return u
}

// stop keeps the worker from seeing any event until the function that it returns is called.
func (w *worker) stop(t *testing.T) (goOn func()) {
	t.Helper()
	stopped, gate := make(chan struct{}), make(chan struct{})
	w.Post(func() { close(stopped); <-gate })
	<-stopped
	return func() { close(gate) }
}

// What a connection that broke leaves behind must not reach the next one, which is served by the same memory.
func TestNextConnectionStartsClean(t *testing.T) {
	u, echoPort := newResetter(t, true), listen(t, echo)
	r := start(t, allow("127.0.0.1"), Config{Workers: 1})
	c, _ := r.connect("127.0.0.1:"+u.port, "")
	if _, err := io.ReadAll(c); err != nil { // the end of the upstream's stream has passed
		t.Fatal(err)
	}
	// A word that may become HTTP is passed on in pieces; the second one meets an upstream that is gone.
	_, _ = io.WriteString(c.TCPConn, "P")
	<-u.got
	u.now <- struct{}{}
	<-u.gone
	_, _ = io.WriteString(c.TCPConn, "I")
	r.wantFlows(0)
	next, _ := r.connect("127.0.0.1:"+echoPort, "\x00")
	got := make([]byte, 1)
	if _, err := io.ReadFull(next, got); err != nil || got[0] != 0 {
		t.Errorf("got %q, %v; want the first byte back", got, err)
	}
}

// A tunnel ends when its upstream does, also while it is not known what the client says.
func TestUpstreamGoneBeforeClientIsKnown(t *testing.T) {
	hello := clientHello(t, "ok.test")
	for name, c := range map[string]struct{ first, second string }{
		"first-line":   {"P", "I"},
		"second-hello": {hello, "\x14\x03\x03\x00\x01\x01"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newResetter(t, false)
			r := start(t, allow("127.0.0.1"), Config{Workers: 1})
			tunnel, _ := r.connect("127.0.0.1:"+u.port, c.first)
			<-u.got
			// The proxy is to write to the upstream before it sees that it was reset.
			goOn := r.server.workers[0].stop(t)
			_, _ = io.WriteString(tunnel.TCPConn, c.second)
			u.now <- struct{}{}
			<-u.gone
			goOn()
			_, _ = io.ReadAll(tunnel)
			r.wantFlows(0)
		})
	}
}

// A client that is gone takes its tunnel with it, also when the upstream does not read what it has sent.
func TestClientGoneBeforeUpstreamReads(t *testing.T) {
	for name, first := range map[string]string{"relayed": "\x00", "watched": clientHello(t, "ok.test") + "\x14\x03\x03\x00\x01\x01"} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			port := listen(t, func(net.Conn) { <-gone })
			defer close(gone)
			r := start(t, allow("127.0.0.1"), Config{Workers: 1})
			c, _ := r.connect("127.0.0.1:"+port, first)
			if name == "watched" {
				first = "\x15\x03\x03\x40\x00" + strings.Repeat("x", 1<<14) // alerts, which no hello follows, and still may
			}
			go func() { // until nothing more is taken
				for {
					if _, err := io.WriteString(c.TCPConn, strings.Repeat(first, 1+(1<<20)/len(first))); err != nil {
						return
					}
				}
			}()
			w := r.server.workers[0]
			for waiting := false; !waiting; {
				if err := w.Do(t.Context(), func() {
					for _, h := range w.all() {
						waiting = waiting || h.client.holds()
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
			_ = c.SetLinger(0)
			c.Close()
			r.wantFlows(0)
		})
	}
}

// What both sides have said before a switch does not go on behind its receipt: not even what only the kernel holds.
func TestSwitchStopsWhatTheKernelHolds(t *testing.T) {
	const bulk = 20 << 10
	read := make(chan struct{})
	got := make(chan int64, 1)
	small := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
	}}
	l, err := small.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	serveOn(t, l, func(c net.Conn) {
		_ = c.(*net.TCPConn).CloseWrite()
		<-read
		n, _ := io.Copy(io.Discard, c)
		got <- n
	})
	r := start(t, allow("127.0.0.1"), Config{Workers: 1})
	c, _ := r.connect("127.0.0.1:"+port, "\x00")
	if _, err := c.ReadByte(); err != io.EOF {
		t.Fatal(err)
	}
	if _, err := c.TCPConn.Write(make([]byte, bulk)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	r.waitFor(ending)
	if receipt := r.apply(`"no-network"`); receipt.FlowsCut != 1 {
		t.Errorf("receipt %+v; want one cut", receipt)
	}
	close(read)
	if n := <-got; n > bulk/2 {
		t.Errorf("%d of %d bytes arrived", n, bulk)
	}
	r.wantConnections(0)
}
