package forward

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elazarl/goproxy"
)

// subject is a proxy in front of the servers ok.test and evil.test, which are at the same address; evil.test is
// refused if the proxy refuses anything.
type subject struct {
	t       *testing.T
	address string
	wait    time.Duration // for what may never come
	mu      sync.Mutex
	dialled []string
}

func (s *subject) client() *peer { return connect(s.t, s.address) }

// comes reports whether the text comes on c while the subject is waited for. It eats what comes.
func (s *subject) comes(c *peer, text string) bool {
	_ = c.SetReadDeadline(time.Now().Add(s.wait))
	defer c.SetDeadline(time.Now().Add(patience))
	var got []byte
	for !bytes.Contains(got, []byte(text)) {
		b, err := c.r.ReadByte()
		if err != nil {
			return false
		}
		got = append(got, b)
	}
	return true
}

func (s *subject) dials() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dialled)
}

func (s *subject) dial(ctx context.Context, target, address string) (net.Conn, error) {
	s.mu.Lock()
	s.dialled = append(s.dialled, target)
	s.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// traps are what a default goproxy does, on net/http as its examples show, and this package does not. trapped
// reports whether a proxy does it. A trap that a default goproxy no longer falls into fails the test: then the library
// has closed it, and what this package does against it can be looked at again.
var traps = []struct {
	name    string
	serve   func(t testing.TB, server *peer) // the server; nil answers ok
	trapped func(t *testing.T, s *subject) bool
}{
	{"connect-without-handler-is-accepted", nil, func(t *testing.T, s *subject) bool {
		c := s.client()
		c.send("CONNECT evil.test:80 HTTP/1.1\r\nHost: evil.test:80\r\n\r\n")
		return strings.Contains(c.head(), " 200 ")
	}},
	{"userinfo-reaches-the-dialler", nil, func(t *testing.T, s *subject) bool {
		s.client().get("GET http://ok.test:80@evil.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n")
		return s.dials() > 0
	}},
	{"non-ascii-host-reaches-the-dialler", nil, func(t *testing.T, s *subject) bool {
		s.client().get("GET http://ｅvil.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n")
		return s.dials() > 0
	}},
	{"two-dots-reach-the-dialler", nil, func(t *testing.T, s *subject) bool {
		s.client().get("GET http://evil.test../ HTTP/1.1\r\nHost: ok.test\r\n\r\n")
		return s.dials() > 0
	}},
	{"empty-port-reaches-the-dialler", nil, func(t *testing.T, s *subject) bool {
		s.client().get("GET http://evil.test:/ HTTP/1.1\r\nHost: ok.test\r\n\r\n")
		return s.dials() > 0
	}},
	{"joined-host-is-accepted", nil, func(t *testing.T, s *subject) bool {
		return s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test,evil.test\r\n\r\n").StatusCode == 200
	}},
	{"folded-host-is-accepted", nil, func(t *testing.T, s *subject) bool {
		return s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost:\r\n evil.test\r\n\r\n").StatusCode == 200
	}},
	{"length-beside-chunks-is-accepted", nil, func(t *testing.T, s *subject) bool {
		return s.client().get("POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"+
			"0\r\n\r\n").StatusCode == 200
	}},
	{"a-bare-lf-in-a-chunk-is-the-proxys-fault", nil, func(t *testing.T, s *subject) bool {
		return s.client().get("POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nX\r\n0\r\n\r\n").StatusCode == 500
	}},
	{"h2c-upgrade-passes", echoHead, func(t *testing.T, s *subject) bool {
		head := s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n" +
			"Connection: Upgrade, HTTP2-Settings\r\n\r\n").body
		return strings.Contains(head, "Upgrade: h2c") || strings.Contains(head, "Settings")
	}},
	{"unknown-upgrade-reaches-the-server", echoHead, func(t *testing.T, s *subject) bool {
		return strings.Contains(s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade\r\n"+
			"Upgrade: tunnel\r\n\r\n").body, "Upgrade: tunnel")
	}},
	{"http2-preface-gets-no-4xx", nil, func(t *testing.T, s *subject) bool {
		return s.client().get("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").StatusCode/100 != 4
	}},
	{"hop-by-hop-fields-reach-the-server", echoHead, func(t *testing.T, s *subject) bool {
		return strings.Contains(s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nKeep-Alive: 5\r\nTE: gzip\r\n"+
			"Connection: X-Secret\r\nX-Secret: 1\r\n\r\n").body, "X-Secret")
	}},
	{"hop-by-hop-fields-reach-the-client", func(t testing.TB, server *peer) {
		server.head()
		server.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nKeep-Alive: timeout=1\r\nProxy-Authenticate: Basic realm=x\r\n\r\n")
	}, func(t *testing.T, s *subject) bool {
		h := s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n").Header
		return h.Get("Keep-Alive") != "" && h.Get("Proxy-Authenticate") != ""
	}},
	{"a-user-agent-is-made-up", echoHead, func(t *testing.T, s *subject) bool {
		return strings.Contains(s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n").body, "User-Agent")
	}},
	{"a-content-type-is-made-up", nil, func(t *testing.T, s *subject) bool {
		return s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n").Header.Get("Content-Type") != ""
	}},
	{"the-clients-encodings-are-replaced", echoHead, func(t *testing.T, s *subject) bool {
		return strings.Contains(s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nAccept-Encoding: br\r\n\r\n").body, "gzip")
	}},
	{"the-path-is-rewritten", echoHead, func(t *testing.T, s *subject) bool {
		return !strings.HasPrefix(s.client().get("GET http://ok.test/a|b^%41?q={} HTTP/1.1\r\nHost: ok.test\r\n\r\n").body, "GET /a|b^%41?q={} ")
	}},
	{"a-streamed-body-is-held-back", func(t testing.TB, server *peer) {
		server.head()
		server.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntick\r\n")
		server.untilReset()
	}, func(t *testing.T, s *subject) bool {
		c := s.client()
		c.send("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n")
		return !s.comes(c, "tick")
	}},
	{"a-head-without-body-is-held-back", func(t testing.TB, server *peer) {
		server.head()
		server.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n")
		server.untilReset()
	}, func(t *testing.T, s *subject) bool {
		c := s.client()
		c.send("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n")
		return !s.comes(c, "event-stream")
	}},
	{"a-cut-off-answer-looks-whole", func(t testing.TB, server *peer) {
		server.head()
		server.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf of it")
		_ = server.Close()
	}, func(t *testing.T, s *subject) bool {
		c := s.client()
		c.send("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n")
		resp, err := http.ReadResponse(c.r, nil)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
		}
		return err == nil
	}},
	{"an-odd-status-panics", func(t testing.TB, server *peer) {
		server.head()
		server.send("HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n")
	}, func(t *testing.T, s *subject) bool {
		c := s.client()
		c.send("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nConnection: close\r\n\r\n")
		return c.rest() == ""
	}},
	{"a-body-is-sent-on-417", func(t testing.TB, server *peer) {
		server.head()
		server.send("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
	}, func(t *testing.T, s *subject) bool {
		c := s.client()
		c.send("PUT http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
		// A default goproxy asks for the body to send it behind the answer; then it comes before the answer.
		return c.answer("PUT").StatusCode == 100
	}},
	{"early-hints-are-dropped", func(t testing.TB, server *peer) {
		server.head()
		server.send("HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n" + ok)
	}, func(t *testing.T, s *subject) bool {
		return s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n").StatusCode != 103
	}},
	{"clients-share-a-connection", nil, func(t *testing.T, s *subject) bool {
		for range 2 {
			s.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n")
		}
		return s.dials() < 2
	}},
	{"a-websocket-leaves-its-client-open", func(t testing.TB, server *peer) {
		server.head()
		server.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nbye")
		_ = server.Close()
	}, func(t *testing.T, s *subject) bool {
		c := s.client()
		c.send("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		s.comes(c, "bye")
		_ = c.SetReadDeadline(time.Now().Add(s.wait))
		return !c.isClosed()
	}},
	{"a-websocket-ends-with-its-first-direction", func(t testing.TB, server *peer) {
		server.head()
		server.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		server.rest()
		server.send("and the reply")
		_ = server.Close()
	}, func(t *testing.T, s *subject) bool {
		c := s.client()
		c.send("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		s.comes(c, "101")
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		return !s.comes(c, "and the reply")
	}},
	{"a-failed-dial-is-a-500", nil, func(t *testing.T, s *subject) bool {
		return s.client().get("GET http://closed.test/ HTTP/1.1\r\nHost: closed.test\r\n\r\n").StatusCode == 500
	}},
	{"a-path-without-host-is-a-500", nil, func(t *testing.T, s *subject) bool {
		return s.client().get("GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n").StatusCode == 500
	}},
}

// echoHead answers with the head of the request.
func echoHead(t testing.TB, server *peer) {
	head := server.head()
	server.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(head), head))
}

func TestTraps(t *testing.T) {
	t.Parallel()
	for _, trap := range traps {
		t.Run(trap.name, func(t *testing.T) {
			t.Parallel()
			server := listen(t, func(c net.Conn) {
				p := newPeer(t, c)
				if trap.serve != nil {
					trap.serve(t, p)
					p.untilReset()
					return
				}
				for {
					req, err := http.ReadRequest(p.r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					p.send(ok)
				}
			})
			closed := httptest.NewServer(nil)
			closed.Close()
			if !trap.trapped(t, plainSubject(t, server, closed.Listener.Addr().String())) {
				t.Error("a default goproxy does not fall into this trap any more")
			}
			if trap.trapped(t, hardenedSubject(t, server, closed.Listener.Addr().String())) {
				t.Error("trapped")
			}
		})
	}
}

// plainSubject is goproxy as its README starts it, but for the addresses of names.
func plainSubject(t *testing.T, server, closed string) *subject {
	s := &subject{t: t, wait: 300 * time.Millisecond} // too short only lets this test pass
	p := goproxy.NewProxyHttpServer()
	p.Logger = silent{}
	p.Tr.Proxy = nil // see TestEnvironmentIsIgnored
	p.Tr.DialContext = func(ctx context.Context, _, target string) (net.Conn, error) {
		if strings.HasPrefix(target, "closed.test") {
			return s.dial(ctx, target, closed)
		}
		return s.dial(ctx, target, server)
	}
	p.ConnectDial = func(_, target string) (net.Conn, error) { return s.dial(context.Background(), target, server) }
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.Map // hijacked connections too, which Close leaves alone
	web := &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0), ConnState: func(c net.Conn, _ http.ConnState) { open.Store(c, nil) }}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = web.Serve(l)
	}()
	t.Cleanup(func() {
		_ = web.Close()
		open.Range(func(c, _ any) bool { return c.(net.Conn).Close() == nil || true })
		p.Tr.CloseIdleConnections()
		<-ended
	})
	s.address = l.Addr().String()
	return s
}

func hardenedSubject(t *testing.T, server, closed string) *subject {
	s := &subject{t: t, wait: patience}
	p := newProxy(t, "ok.test:80", server, "closed.test:80", closed)
	p.gate.dial = func(ctx context.Context, address string) (net.Conn, error) { return s.dial(ctx, address, address) }
	s.address = p.start().address
	return s
}

// TestEnvironmentIsIgnored shows that a default goproxy goes where HTTP_PROXY says, and that this package does not.
func TestEnvironmentIsIgnored(t *testing.T) {
	t.Parallel()
	asked, err := goproxy.NewProxyHttpServer().Tr.Proxy(httptest.NewRequest("GET", "http://ok.test/", nil))
	if err != nil || asked == nil || asked.Host != environmentProxy {
		t.Errorf("a default goproxy asks %v (%v): it does not fall into this trap any more", asked, err)
	}
	p := newProxy(t, "ok.test:80", site(t, "ok")).start()
	if got := p.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n"); got.StatusCode != 200 {
		t.Errorf("got %d %q", got.StatusCode, got.body)
	}
}
