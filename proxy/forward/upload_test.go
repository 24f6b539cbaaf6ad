package forward

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// Case I-31: chunks that two readers could cut differently end the request with a 400, and the connection.
func TestMalformedChunks(t *testing.T) {
	t.Parallel()
	const head = "POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n"
	const smuggled = "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"
	tests := []struct{ name, body string }{
		{"lf-behind-extension", "1;a\nX\r\n0\r\n\r\n"},
		{"lf-behind-size", "1\nX\r\n0\r\n\r\n"},
		{"lf-behind-data", "1\r\nX\n0\r\n\r\n"},
		{"lf-behind-last-chunk", "0\n\n"},
		{"cr-in-extension", "1;a\rb\r\nX\r\n0\r\n\r\n"},
		{"space-behind-size", "1 \r\nX\r\n0\r\n\r\n"},
		{"space-before-size", " 1\r\nX\r\n0\r\n\r\n"},
		{"no-size", "\r\nX\r\n0\r\n\r\n"},
		{"no-size-but-extension", ";a\r\nX\r\n0\r\n\r\n"},
		{"hexadecimal-prefix", "0x1\r\nX\r\n0\r\n\r\n"},
		{"negative", "-1\r\nX\r\n0\r\n\r\n"},
		{"size-of-16-digits", "0000000000000001\r\nX\r\n0\r\n\r\n"},
		{"data-longer-than-size", "1\r\nXX\r\n0\r\n\r\n"},
		{"long-extension", "1;" + strings.Repeat("a", 2000) + "\r\nX\r\n0\r\n\r\n"},
		{"long-trailer", "0\r\nX: " + strings.Repeat("a", 5000) + "\r\n\r\n"},
		{"control-in-trailer", "0\r\nX: \x00\r\n\r\n"},
		{"folded-trailer", "0\r\n X: 1\r\n\r\n"},
		{"extensions-without-end", strings.Repeat("1;"+strings.Repeat("a", 900)+"\r\nX\r\n", 50) + "0\r\n\r\n"},
	}
	p := newProxy(t, "ok.test:80", site(t, "ok")).start()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := p.client()
			c.send(head + test.body + smuggled)
			if a := c.answer("POST"); a.StatusCode != 400 || !a.Close {
				t.Errorf("got %d %q", a.StatusCode, a.body)
			}
			if told := p.gate.refused(); told.refusal.Reason != Malformed {
				t.Errorf("the audit has %+v", told)
			}
			c.gone()
		})
	}
	for _, target := range p.gate.seen() {
		if target != "ok.test:80" {
			t.Errorf("judged %q", target)
		}
	}
}

// The body of a request that may not be expected to have one ends the server's connection behind it: it is not to be
// taken for another request there.
func TestUnexpectedBody(t *testing.T) {
	t.Parallel()
	p := newProxy(t, "ok.test:80", listenEcho(t)).start()
	const smuggled = "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"
	for method, closes := range map[string]bool{"GET": true, "DELETE": true, "OPTIONS": true, "FETCH": true,
		"POST": false, "PUT": false, "PATCH": false} {
		t.Run(method, func(t *testing.T) {
			c := p.client()
			c.send(fmt.Sprintf("%s http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: %d\r\n\r\n%s", method, len(smuggled), smuggled))
			if a := c.answer(method); strings.Contains(strings.ToLower(a.body), "connection: close") != closes {
				t.Errorf("the server got %q", a.body)
			}
		})
	}
}

// What chunks may look like, the server sees as one body; trailers of requests end here.
func TestChunksArePassedOn(t *testing.T) {
	t.Parallel()
	p := newProxy(t, "ok.test:80", site(t, "ok")).start()
	c := p.client()
	for _, body := range []string{"", "1;a=b;c=\"d\"\r\nX\r\n", "1\r\nX\r\n00000000000000A\r\n0123456789\r\n", strings.Repeat("1\r\nX\r\n", 10_000)} {
		for _, trailer := range []string{"", "X-Late: 1\r\nHost: evil.test\r\n"} {
			c.send("POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nTrailer: X-Late\r\nTransfer-Encoding: chunked\r\n\r\n" + body + "0\r\n" + trailer + "\r\n")
			want := strings.Count(body, "X") + 10*strings.Count(body, "0123456789")
			if a := c.answer("POST"); a.StatusCode != 200 || len(a.body) != len("ok POST / ")+want {
				t.Errorf("got %d %q for %q", a.StatusCode, abridged(a.body), abridged(body))
			}
		}
	}
}

// Case L-08: what a server makes of Expect: 100-continue reaches the client, and the body only goes where it is wanted.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	respond := func(status string) func(*peer) {
		return func(s *peer) {
			s.send("HTTP/1.1 " + status + "\r\nContent-Length: 2\r\n\r\nno")
			if n, _ := io.Copy(io.Discard, s.r); n > 0 {
				s.t.Errorf("%d bytes of the body came", n)
			}
		}
	}
	upload := func(s *peer) {
		if n, err := io.CopyN(io.Discard, s.r, size); err != nil {
			s.t.Errorf("got %d bytes: %v", n, err)
		}
		s.send(ok)
	}
	tests := []struct {
		name   string
		serve  func(*peer)
		asked  bool // the client gets a 100
		status int
	}{
		{"417", respond("417 Expectation Failed"), false, 417},
		{"413", respond("413 Content Too Large"), false, 413},
		{"100", func(s *peer) { s.send("HTTP/1.1 100 Continue\r\n\r\n"); upload(s) }, true, 200},
		{"nothing", upload, true, 200},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t, "ok.test:80", listen(t, func(conn net.Conn) {
				s := newPeer(t, conn)
				if head := s.head(); !strings.Contains(head, "Expect: 100-continue\n") {
					t.Errorf("the server saw %q", head)
				}
				test.serve(s)
			})).start()
			c := p.client()
			c.send(fmt.Sprintf("PUT http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", size))
			if test.asked {
				if a := c.answer("PUT"); a.StatusCode != 100 {
					t.Fatalf("got %d before the body", a.StatusCode)
				}
				for range 64 {
					c.send(strings.Repeat("x", size/64))
				}
			}
			a := c.answer("PUT")
			if a.StatusCode != test.status {
				t.Errorf("got %d %q", a.StatusCode, a.body)
			}
			if !test.asked {
				if !a.Close {
					t.Error("the client is not told that the connection ends")
				}
				c.gone()
			}
		})
	}
	t.Run("http10-and-no-body", func(t *testing.T) {
		p := newProxy(t, "ok.test:80", listenEcho(t)).start()
		for _, request := range []string{
			"GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nExpect: 100-continue\r\n\r\n",
			"POST http://ok.test/ HTTP/1.0\r\nHost: ok.test\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\nx",
		} {
			if a := p.client().get(request); a.StatusCode != 200 || strings.Contains(a.body, "Expect") {
				t.Errorf("got %d %q", a.StatusCode, a.body)
			}
		}
	})
	t.Run("refused", func(t *testing.T) {
		c := newProxy(t).start().client()
		c.send("PUT http://evil.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
		if a := c.answer("PUT"); a.StatusCode != 403 {
			t.Errorf("got %d %q", a.StatusCode, a.body)
		}
		c.gone()
	})
}

// Case L-09: an answer that comes, with a reset behind it, while the client is still sending reaches the client.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	early := func(keep bool) string {
		return listen(t, func(conn net.Conn) {
			s := newPeer(t, conn)
			s.head()
			s.exactly(1024)
			s.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo large")
			if !keep {
				_ = conn.Close() // unread bytes make this a reset
			} else {
				s.untilReset()
			}
		})
	}
	p := newProxy(t, "ok.test:80", early(false), "kept.test:80", early(true)).start()
	for round := range 8 {
		for _, host := range []string{"ok.test", "kept.test"} {
			c := p.client()
			head := fmt.Sprintf("PUT http://%s/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: %d\r\n\r\n", host, 8<<20)
			if round%2 == 0 {
				head = fmt.Sprintf("PUT http://%s/ HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", host, 8<<20)
			}
			c.send(head)
			// A client that does not look at the answer before it has sent everything.
			for range 8 {
				c.send(strings.Repeat("x", 1<<20))
			}
			if a := c.answer("PUT"); a.StatusCode != 413 || a.body != "too large" {
				t.Errorf("got %d %q", a.StatusCode, a.body)
			}
			_ = c.Close()
		}
	}
	t.Run("client-that-waits", func(t *testing.T) {
		c := p.client()
		c.send(fmt.Sprintf("PUT http://kept.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: %d\r\n\r\n%s", 8<<20, strings.Repeat("x", 2048)))
		if a := c.answer("PUT"); a.StatusCode != 413 || a.body != "too large" {
			t.Errorf("got %d %q", a.StatusCode, a.body)
		}
		c.gone()
	})
	p.gate.settled()
}

// A request's body is passed on as it comes, and its answer may come meanwhile.
func TestUploadIsStreamed(t *testing.T) {
	t.Parallel()
	for _, framing := range []string{"Transfer-Encoding: chunked", "Content-Length: 8"} {
		t.Run(strings.Fields(framing)[1], func(t *testing.T) {
			p := newProxy(t, "ok.test:80", listen(t, func(conn net.Conn) {
				s := newPeer(t, conn)
				req, err := http.ReadRequest(s.r)
				if err != nil {
					t.Error(err)
					return
				}
				s.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				for range 2 {
					b := make([]byte, 4)
					if _, err := io.ReadFull(req.Body, b); err != nil {
						t.Error(err)
					}
					s.send("4\r\n" + string(b) + "\r\n")
				}
				s.send("0\r\n\r\n")
			})).start()
			c := p.client()
			c.send("POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n" + framing + "\r\n\r\n")
			resp, err := http.ReadResponse(c.r, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range []string{"ping", "pong"} {
				if strings.HasPrefix(framing, "Transfer") {
					c.send("4\r\n" + part + "\r\n")
				} else {
					c.send(part)
				}
				b := make([]byte, 4)
				if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != part {
					t.Fatalf("got %q, %v", b, err)
				}
			}
			if strings.HasPrefix(framing, "Transfer") {
				c.send("0\r\n\r\n")
			}
			if b, err := io.ReadAll(resp.Body); err != nil || len(b) > 0 {
				t.Errorf("got %q, %v", b, err)
			}
		})
	}
}

// A client that goes away in the middle of its request leaves nothing behind, and the server sees that it was cut off.
func TestAbandonedUpload(t *testing.T) {
	t.Parallel()
	cut := make(chan error, 1)
	p := newProxy(t, "ok.test:80", listen(t, func(conn net.Conn) {
		s := newPeer(t, conn)
		req, err := http.ReadRequest(s.r)
		if err == nil {
			_, err = io.Copy(io.Discard, req.Body)
		}
		cut <- err
	})).start()
	for _, request := range []string{"Content-Length: 8\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n8\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"} {
		c := p.client()
		c.send("POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n" + request)
		eventually(t, "the server is dialled", func() bool { return p.gate.connections() > 0 })
		_ = c.Close()
		if err := <-cut; err == nil {
			t.Error("the server took a part for the whole")
		}
	}
	p.gate.settled()
}
