package forward

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"sluice/proxy/refusal"
)

// A connection to a server is used again for the same client and authority, if the new flow agrees, and never else.
func TestReuse(t *testing.T) {
	t.Parallel()
	const (
		a  = "GET http://a.test/ HTTP/1.1\r\nHost: x\r\n\r\n"
		b  = "GET http://b.test/ HTTP/1.1\r\nHost: x\r\n\r\n"
		a2 = "GET http://a.test:81/ HTTP/1.1\r\nHost: x\r\n\r\n"
		po = "POST http://a.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
	)
	one, other := site(t, "one"), site(t, "other")
	tests := []struct {
		name     string
		reuse    bool
		requests []string
		dials    int
	}{
		{"same", true, []string{a, a, a}, 1},
		{"flow-cannot", false, []string{a, a, a}, 3},
		{"other-host", true, []string{a, b, a}, 3},
		{"other-port", true, []string{a, a2}, 2},
		{"post-may-not-be-repeated", true, []string{a, po, a}, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newProxy(t, "a.test:80", one, "a.test:81", one, "b.test:80", one)
			p.gate.reuse = test.reuse
			p.start()
			for round := range 2 { // a second client shares nothing with the first
				c := p.client()
				for _, request := range test.requests {
					if got := c.get(request); got.StatusCode != 200 {
						t.Errorf("got %d", got.StatusCode)
					}
				}
				if want := test.dials * (round + 1); p.gate.connections() != want {
					t.Errorf("%d connections were dialled, want %d", p.gate.connections(), want)
				}
			}
		})
	}
	t.Run("address-changed", func(t *testing.T) {
		p := newProxy(t, "a.test:80", one)
		p.gate.reuse = true
		c := p.start().client()
		c.get(a)
		p.gate.mu.Lock()
		p.gate.servers["a.test:80"] = other
		p.gate.mu.Unlock()
		if got := c.get(a); !strings.HasPrefix(got.body, "other ") {
			t.Errorf("got %q from an address that was not judged", got.body)
		}
	})
	t.Run("refused-meanwhile", func(t *testing.T) {
		p := newProxy(t, "a.test:80", one)
		p.gate.reuse = true
		c := p.start().client()
		c.get(a)
		p.gate.mu.Lock()
		delete(p.gate.servers, "a.test:80")
		p.gate.mu.Unlock()
		if got := c.get(a); got.StatusCode != 403 {
			t.Errorf("got %d", got.StatusCode)
		}
	})
}

// A server that closes a connection while it is unused, or says more than it was asked, costs nobody an answer.
func TestReuseOfSpoiltConnections(t *testing.T) {
	t.Parallel()
	const forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
	tests := []struct {
		name   string
		answer func(*peer) (goOn bool)
	}{
		{"closes", func(s *peer) bool { s.send(ok); return false }},
		{"says-more", func(s *peer) bool { s.send(ok + forged); return true }},
		{"closes-when-asked-again", func(s *peer) bool {
			s.send(ok)
			_, _ = http.ReadRequest(s.r)
			return false
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newProxy(t, "ok.test:80", listen(t, func(conn net.Conn) {
				defer conn.Close()
				s := newPeer(t, conn)
				for {
					if _, err := http.ReadRequest(s.r); err != nil || !test.answer(s) {
						return
					}
				}
			}))
			p.gate.reuse = true
			c := p.start().client()
			for range 50 {
				// Whether what a server says too early is taken for its next answer is its own affair.
				if a := c.get(get); a.StatusCode != 200 || a.body != "ok" && test.name != "says-more" {
					t.Fatalf("got %d %q", a.StatusCode, a.body)
				}
			}
		})
	}
}

// A flow gets the bytes of its own request and answer, heads included, on whatever connections they went.
func TestBytesAreCounted(t *testing.T) {
	t.Parallel()
	const sent = "GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n"
	keeping := listen(t, func(conn net.Conn) {
		s := newPeer(t, conn)
		for {
			if _, err := http.ReadRequest(s.r); err != nil {
				return
			}
			s.send(ok)
		}
	})
	closing, _ := once(t, ok)
	for _, server := range []string{keeping, closing} {
		p := newProxy(t, "ok.test:80", server).start()
		c := p.client()
		for round := range int64(3) {
			c.get(get)
			in, out := p.gate.settled()
			n := round + 1
			// A request that found its connection closed may have been sent twice.
			if in != n*int64(len(ok)) || out < n*int64(len(sent)) || server == keeping && out != n*int64(len(sent)) {
				t.Errorf("after %d requests: %d bytes in and %d out, want %d and %d", n, in, out, n*int64(len(ok)), n*int64(len(sent)))
			}
		}
	}
}

// Cutting a flow ends it at once, whatever it is doing, on both sides, and leaves nothing.
func TestCut(t *testing.T) {
	t.Parallel()
	silent := func(*peer) {}
	head := func(s *peer) { _, _ = http.ReadRequest(s.r) } // which the cut may prevent
	tests := []struct {
		name, request string
		serve         func(*peer)
		expect        string // comes to the client before the cut
	}{
		{"waiting-for-the-answer", get, head, ""},
		{"waiting-with-another-request-behind", get + get, head, ""},
		{"sending-the-body", "POST http://ok.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf", head, ""},
		{"sending-chunks", "POST http://ok.test/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf", head, ""},
		{"server-that-does-not-read", "POST http://ok.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n" + strings.Repeat("x", 1<<20), silent, ""},
		{"waiting-for-100", "POST http://ok.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n", head, ""},
		{"getting-the-answer", get, func(s *peer) { head(s); s.send("HTTP/1.1 200 OK\r\n\r\ntick") }, "tick"},
		{"upgraded", upgrade, func(s *peer) { head(s); s.send(switched + "tick") }, "tick"},
		{"half-closed", upgrade, func(s *peer) { head(s); s.send(switched + "tick"); _ = s.Conn.(*net.TCPConn).CloseWrite() }, "tick"},
	}
	for _, test := range tests {
		for _, side := range []string{"client", "server", "both"} {
			t.Run(test.name+"/"+side, func(t *testing.T) {
				ended := make(chan struct{}, 10)
				p := newProxy(t, "ok.test:80", listen(t, func(conn net.Conn) {
					s := newPeer(t, conn)
					test.serve(s)
					s.untilReset()
					ended <- struct{}{}
				}))
				var clients sync.Map
				judge := p.conn.Gate
				p.conn.Gate = spy{judge, func(c net.Conn) { clients.Store(c, nil) }}
				c := p.start().client()
				c.send(test.request)
				eventually(t, "the server is dialled", func() bool { return p.gate.connections() == 1 })
				for seen := ""; !strings.Contains(seen, test.expect); {
					seen += c.exactly(1)
				}
				if side != "server" {
					clients.Range(func(c, _ any) bool { reset(c.(net.Conn)); return true })
				}
				if side != "client" {
					p.gate.mu.Lock()
					conn := p.gate.conns[0]
					p.gate.mu.Unlock()
					reset(conn)
				}
				if side != "server" {
					if _, err := io.Copy(io.Discard, c.r); errors.Is(err, os.ErrDeadlineExceeded) {
						t.Error("the client's connection is still open")
					}
				}
				<-ended
				reset(c.Conn)
				p.gate.settled()
				if side != "server" && len(p.gate.told) > 0 {
					t.Errorf("the audit was told of %+v, and nobody was there to be refused", p.gate.told)
				}
			})
		}
	}
}

// reset closes a connection by a reset.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// spy shows the client connections that are judged.
type spy struct {
	Gate
	see func(client net.Conn)
}

// Judge implements [Gate].
func (s spy) Judge(ctx context.Context, client net.Conn, r Request) (Flow, *refusal.Refusal) {
	s.see(client)
	return s.Gate.Judge(ctx, client, r)
}

// A client that goes away ends a dial, too.
func TestClientGoesWhileDialling(t *testing.T) {
	t.Parallel()
	dialling := make(chan struct{})
	p := newProxy(t, "ok.test:80", "")
	p.gate.dial = func(ctx context.Context, _ string) (net.Conn, error) {
		close(dialling)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	c := p.start().client()
	c.send(get)
	<-dialling
	reset(c.Conn)
	p.gate.settled()
	if len(p.gate.told) > 0 {
		t.Errorf("the audit was told of %+v, and nobody was refused", p.gate.told)
	}
}

// Run's end closes everything: idle, busy and upgraded connections, and those that come later.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	server := listen(t, func(conn net.Conn) {
		s := newPeer(t, conn)
		if strings.HasPrefix(s.head(), "GET /chat") {
			s.send(switched)
		}
		s.untilReset()
	})
	p := newProxy(t, "ok.test:80", server)
	s := New(p.options)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	address := listen(t, func(c net.Conn) { s.ServeConn(c, p.conn) })
	idle, busy, upgraded := connect(t, address), connect(t, address), connect(t, address)
	busy.send(get)
	upgraded.send(upgrade)
	upgraded.head()
	eventually(t, "the server is dialled", func() bool { return p.gate.connections() == 2 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, c := range []*peer{idle, busy, upgraded, connect(t, address)} {
		c.gone()
	}
	p.gate.settled()
}

// A CONNECT that follows other requests goes to those who serve tunnels, with all that came behind it.
func TestConnectFollows(t *testing.T) {
	t.Parallel()
	p := newProxy(t, "ok.test:80", site(t, "ok"))
	p.conn.Connect = func(conn net.Conn, read []byte) {
		all := bufio.NewReader(io.MultiReader(bytes.NewReader(read), conn))
		var head strings.Builder
		for {
			line, err := all.ReadString('\n')
			if head.WriteString(line); err != nil || line == "\r\n" {
				break
			}
		}
		if head.String() != "CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test:443\r\nX: y\r\n\r\n" {
			t.Errorf("the head is %q", head.String())
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		_, _ = io.CopyN(conn, all, 1<<20)
		_ = conn.Close()
	}
	p.start()
	for _, pipelined := range []bool{true, false} {
		c := p.client()
		tunnel := "CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test:443\r\nX: y\r\n\r\n\x16\x03\x01 GET / HTTP/1.1\r\n\r\n"
		if pipelined {
			c.send(get + tunnel)
		} else {
			c.send(get)
		}
		if a := c.answer("GET"); a.body != "ok GET / " {
			t.Errorf("got %q", a.body)
		}
		if !pipelined {
			c.send(tunnel)
		}
		c.head()
		const early = "\x16\x03\x01 GET / HTTP/1.1\r\n\r\n"
		go c.send(strings.Repeat("x", 1<<20-len(early)))
		if got := c.rest(); got != early+strings.Repeat("x", 1<<20-len(early)) {
			t.Errorf("%d bytes came back, beginning %q", len(got), abridged(got))
		}
	}
	if seen := p.gate.seen(); !slices.Equal(seen, []string{"ok.test:80", "ok.test:80"}) {
		t.Errorf("judged %q", seen)
	}
}

// What clients and servers send is not logged, whatever goes wrong.
func TestLogging(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	broken, _ := once(t, "secret-7 broken\r\n\r\n")
	cut, _ := once(t, "HTTP/1.1 200 OK\r\nSecret-7: secret-7\r\nContent-Length: -1\r\n\r\nsecret-7")
	p := newProxy(t, "ok.test:80", site(t, "ok"), "broken.test:80", broken, "cut.test:80", cut)
	p.options.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p.start()
	for _, request := range []string{
		"GET http://ok.test/secret-7?secret-7 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: secret-7\r\nCookie: secret-7\r\n\r\n",
		"GET http://evil.test/secret-7 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: secret-7\r\n\r\n",
		"GET http://secret-7:secret-7@ok.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET http://ok.test/ HTTP/1.1\r\nHost: x\r\nsecret-7\r\n\r\n",
		"GET http://broken.test/ HTTP/1.1\r\nHost: x\r\nAuthorization: secret-7\r\n\r\n",
		"GET http://cut.test/?secret-7 HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST http://ok.test/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nsecret-7",
	} {
		c := p.client()
		a := c.get(request)
		if strings.Contains(a.body, "secret-7") && a.StatusCode != 200 {
			t.Errorf("%q is told %q", request, a.body)
		}
	}
	p.gate.settled()
	if got := log.String(); strings.Contains(strings.ToLower(got), "secret-7") {
		t.Errorf("the log says %s", got)
	}
	for _, told := range p.gate.told {
		if s := told.refusal.Error() + told.refusal.Text; strings.Contains(s, "secret-7") {
			t.Errorf("the audit is told %s", s)
		}
	}
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer].
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns what was written.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
