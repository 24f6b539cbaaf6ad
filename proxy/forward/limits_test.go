package forward

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A head up to the limit is served; one byte more gets a 431, at once and whatever it is made of.
func TestHeaderLimit(t *testing.T) {
	t.Parallel()
	const limit = 8 << 10
	head := func(n int) string {
		const start, end = "GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nX: ", "\r\n\r\n"
		return start + strings.Repeat("x", n-len(start)-len(end)) + end
	}
	tests := []struct {
		name, request string
		status        int
	}{
		{"at-the-limit", head(limit), 200},
		{"one-more", head(limit + 1), 431},
		{"without-end", head(limit + 1)[:limit+1], 431},
		{"much-more", head(100 * limit), 431},
		{"request-line", "GET http://ok.test/" + strings.Repeat("x", 2*limit), 431},
		{"many-fields", "GET http://ok.test/ HTTP/1.1\r\n" + strings.Repeat("a:\n", 1100) + "\r\n", 431},
	}
	server := listenEcho(t)
	p := newProxy(t, "ok.test:80", server)
	p.options.HeaderLimit = limit
	p.start()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := p.client()
			if a := c.get(test.request); a.StatusCode != test.status || a.Close != (test.status == 431) {
				t.Fatalf("got %d, close %v", a.StatusCode, a.Close)
			}
			if test.status == 431 {
				if told := p.gate.refused(); told.refusal.Reason != HeaderSize {
					t.Errorf("the audit has %+v", told)
				}
				c.gone()
			}
		})
	}
	t.Run("default", func(t *testing.T) {
		p := newProxy(t, "ok.test:80", server).start()
		if a := p.client().get(head(64 << 10)); a.StatusCode != 200 {
			t.Errorf("64 KiB got %d", a.StatusCode)
		}
		if a := p.client().get(head(64<<10 + 1)); a.StatusCode != 431 {
			t.Errorf("one byte more got %d", a.StatusCode)
		}
	})
}

// Time limits hold for heads and between requests, and for nothing else.
func TestTimeLimits(t *testing.T) {
	t.Parallel()
	const short = 50 * time.Millisecond
	slow := listen(t, func(conn net.Conn) {
		s := newPeer(t, conn)
		req, err := http.ReadRequest(s.r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		time.Sleep(3 * short)
		s.send(ok)
		_ = conn.Close()
	})
	tests := []struct {
		name   string
		first  string // sent, and answered
		then   string // sent, and never completed
		status int    // 0: closed without a word
	}{
		{"half-a-head", "", "GET http://ok.test/ HTTP/1.1\r\nHo", 408},
		{"one-byte", "", "G", 408},
		{"half-of-the-second-head", get, "GET http://ok.test/ HTT", 408},
		{"pipelined-half", get + "GET http://ok.test/ HTT", "", 408},
		{"nothing", "", "", 0},
		{"blank-lines", "", "\r\n\r\n", 0},
		{"nothing-behind-an-answer", get, "", 0},
	}
	p := newProxy(t, "ok.test:80", slow)
	p.options.HeaderTimeout, p.options.IdleTimeout = short, short
	p.start()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := p.client()
			if test.first != "" {
				if a := c.get(test.first); a.StatusCode != 200 {
					t.Fatalf("got %d", a.StatusCode)
				}
			}
			c.send(test.then)
			if test.status != 0 {
				if a := c.answer("GET"); a.StatusCode != test.status || a.Header.Get("Sluice-Decision") == "" {
					t.Errorf("got %d", a.StatusCode)
				}
			}
			c.gone()
		})
	}
	t.Run("slow-body-and-slow-answer", func(t *testing.T) {
		t.Parallel()
		c := p.client()
		c.send("POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 2\r\n\r\na")
		time.Sleep(3 * short)
		c.send("b")
		if a := c.answer("POST"); a.StatusCode != 200 {
			t.Errorf("got %d", a.StatusCode)
		}
	})
}

// Case L-02: a client that has sent its FIN behind its requests gets the answers to all of them.
func TestClientHalfClose(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	p := newProxy(t, "ok.test:80", listen(t, func(conn net.Conn) {
		s := newPeer(t, conn)
		s.head()
		<-closed
		s.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 1000000))
		_ = conn.Close()
	})).start()
	c := p.client()
	c.send(get + get)
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	close(closed)
	for range 2 {
		if a := c.answer("GET"); len(a.body) != 1000000 {
			t.Errorf("got %d bytes", len(a.body))
		}
	}
	c.gone()
}

// A client that sent its FIN and hears nothing is given up after a while, as one that is gone.
func TestClientHalfCloseEnds(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	p := newProxy(t, "ok.test:80", listen(t, func(conn net.Conn) {
		newPeer(t, conn).untilReset()
		close(gone)
	}))
	p.options.finTimeout = 20 * time.Millisecond
	c := p.start().client()
	c.send(get)
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.gone()
	<-gone
	p.gate.settled()
}
