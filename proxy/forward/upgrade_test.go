package forward

import (
	"io"
	"net"
	"strings"
	"testing"

	"sluice/proxy/refusal"
)

const (
	upgrade  = "GET http://ok.test/chat?token=x HTTP/1.1\r\nHost: ok.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: key\r\n\r\n"
	switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Accept: accept\r\nKeep-Alive: 5\r\n\r\n"
)

// wsServer agrees to the upgrade, then calls talk.
func wsServer(t *testing.T, first string, talk func(*peer)) string {
	return listen(t, func(conn net.Conn) {
		s := newPeer(t, conn)
		if head := s.head(); !strings.Contains(head, "Connection: Upgrade\n") || !strings.Contains(head, "Upgrade: websocket\n") ||
			!strings.HasPrefix(head, "GET /chat?token=x HTTP/1.1\nHost: ok.test\n") {
			t.Errorf("the server saw %q", head)
		}
		s.send(switched + first)
		talk(s)
		_ = conn.Close()
	})
}

// Bytes pass both ways: those that come right behind either head, and all that follow.
func TestWebSocket(t *testing.T) {
	t.Parallel()
	const large = 1 << 20
	p := newProxy(t, "ok.test:80", wsServer(t, "hello", func(s *peer) {
		if got := s.exactly(len("early")); got != "early" {
			t.Errorf("the server got %q", got)
		}
		s.send("got it")
		if _, err := io.CopyN(s, s.r, large); err != nil { // an echo
			t.Error(err)
		}
	})).start()
	c := p.client()
	c.send(upgrade + "early")
	head := c.head()
	if !strings.HasPrefix(head, "HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: websocket\n") ||
		!strings.Contains(head, "Sec-Websocket-Accept: accept\n") || strings.Contains(head, "Keep-Alive") {
		t.Errorf("the client got %q", head)
	}
	if got := c.exactly(len("hellogot it")); got != "hellogot it" {
		t.Errorf("the client got %q", got)
	}
	go c.send(strings.Repeat("x", large))
	if got := c.exactly(large); got != strings.Repeat("x", large) {
		t.Error("the echo is another one")
	}
	c.gone()
	_ = c.Close()
	in, out := p.gate.settled()
	if in < large || out < large || p.gate.judged[0].Protocol != "ws" {
		t.Errorf("%d bytes in and %d out, of %+v", in, out, p.gate.judged[0])
	}
}

// Frames that come before the answer wait for it, in any number.
func TestWebSocketFramesBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	const size = 3 << 20 // more than is read ahead
	sent := make(chan struct{})
	p := newProxy(t, "ok.test:80", listen(t, func(conn net.Conn) {
		s := newPeer(t, conn)
		s.head()
		<-sent
		s.send(switched)
		if n, err := io.CopyN(io.Discard, s.r, size); err != nil {
			t.Errorf("the server got %d bytes: %v", n, err)
		}
		s.send("all of it")
		_ = conn.Close()
	})).start()
	c := p.client()
	c.send(upgrade + "GET / HTTP/1.1\r\n\r\n" + strings.Repeat("\n", 1000))
	close(sent)
	c.send(strings.Repeat("x", size-1018))
	c.head()
	if got := c.rest(); got != "all of it" {
		t.Errorf("got %q", got)
	}
}

// Either side may close its half first, and still gets what the other has to say.
func TestWebSocketHalfClose(t *testing.T) {
	t.Parallel()
	t.Run("client-first", func(t *testing.T) {
		p := newProxy(t, "ok.test:80", wsServer(t, "", func(s *peer) {
			got := s.rest()
			s.send(got + " " + strings.Repeat("x", 1<<20))
		})).start()
		c := p.client()
		c.send(upgrade)
		c.head()
		c.send("the end")
		if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got := c.rest(); len(got) != 8+1<<20 || !strings.HasPrefix(got, "the end ") {
			t.Errorf("got %d bytes", len(got))
		}
	})
	t.Run("server-first", func(t *testing.T) {
		served := make(chan struct{})
		p := newProxy(t, "ok.test:80", wsServer(t, "", func(s *peer) {
			defer close(served)
			s.send("bye")
			if err := s.Conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Error(err)
			}
			if got := s.rest(); got != "bye too" {
				t.Errorf("the server got %q", got)
			}
		})).start()
		c := p.client()
		c.send(upgrade)
		c.head()
		if got := c.rest(); got != "bye" {
			t.Errorf("got %q", got)
		}
		c.send("bye too")
		_ = c.Close()
		<-served // it may read that later than the proxy has sent it
		p.gate.settled()
	})
}

// A server that does not upgrade is heard like any other, and the connection goes on.
func TestWebSocketDeclined(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, response string
		status         int
		kind           refusal.Kind
	}{
		{"403", "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", 403, ""},
		{"200-that-looks-like-one", "HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nno", 200, ""},
		{"other-protocol", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tunnel\r\n\r\n", 502, refusal.UpgradeFailed},
		{"two-protocols", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket, tunnel\r\n\r\n", 502, refusal.UpgradeFailed},
		{"no-protocol", "HTTP/1.1 101 Switching Protocols\r\n\r\n", 502, refusal.UpgradeFailed},
		{"nothing", "", 502, refusal.Terminated},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address, _ := once(t, test.response)
			p := newProxy(t, "ok.test:80", address).start()
			c := p.client()
			a := c.get(upgrade)
			if a.StatusCode != test.status || a.StatusCode != 502 && a.body != "no" {
				t.Errorf("got %d %q", a.StatusCode, a.body)
			}
			if test.kind != "" && p.gate.refused().refusal.Kind != test.kind {
				t.Errorf("the audit has %+v", p.gate.refused())
			}
			if a := c.get(strings.ReplaceAll(get, "ok.test", "evil.test")); a.StatusCode != 403 {
				t.Errorf("then got %d", a.StatusCode)
			}
		})
	}
	t.Run("denied-host", func(t *testing.T) {
		p := newProxy(t).start()
		if a := p.client().get(upgrade); a.StatusCode != 403 || a.Header.Get("Sluice-Decision") != "fromgate" {
			t.Errorf("got %d %v", a.StatusCode, a.Header)
		}
	})
	t.Run("ws-url", func(t *testing.T) {
		p := newProxy(t, "ok.test:80", wsServer(t, "hi", func(*peer) {})).start()
		c := p.client()
		c.send(strings.Replace(upgrade, "http://", "ws://", 1))
		c.head()
		if got := c.rest(); got != "hi" {
			t.Errorf("got %q", got)
		}
	})
}
