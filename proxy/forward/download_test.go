package forward

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sluice/proxy/refusal"
)

const get = "GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n"

// Case L-06, and the same for other bodies: what the server sends reaches the client before it sends more.
func TestDownloadIsStreamed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, head string
		part       func(string) string
	}{
		{"event-stream", "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked", func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }},
		{"chunked", "Transfer-Encoding: chunked", func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }},
		{"length", "Content-Length: 100", func(s string) string { return s }},
		{"to-the-end", "X: y", func(s string) string { return s }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			arrived := make(chan struct{})
			p := newProxy(t, "ok.test:80", listen(t, func(conn net.Conn) {
				s := newPeer(t, conn)
				s.head()
				s.send("HTTP/1.1 200 OK\r\n" + test.head + "\r\n\r\n")
				for i := range 5 {
					<-arrived // what was sent before
					s.send(test.part(fmt.Sprintf("data: %d\n\n", i)))
				}
			})).start()
			c := p.client()
			c.send(get)
			resp, err := http.ReadResponse(c.r, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				arrived <- struct{}{}
				want := fmt.Sprintf("data: %d\n\n", i)
				b := make([]byte, len(want))
				if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != want {
					t.Fatalf("got %q, %v, want %q", b, err, want)
				}
			}
		})
	}
}

// Case L-10.
func TestTrailers(t *testing.T) {
	t.Parallel()
	const late = "2\r\nok\r\n0\r\nGrpc-Status: 0\r\nGrpc-Message: fine\r\n\r\n"
	tests := []struct{ name, announced string }{
		{"announced", "Trailer: Grpc-Status, Grpc-Message\r\n"},
		{"partly-announced", "Trailer: Grpc-Status\r\n"},
		{"late", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address, _ := once(t, "HTTP/1.1 200 OK\r\n"+test.announced+"Transfer-Encoding: chunked\r\n\r\n"+late)
			a := newProxy(t, "ok.test:80", address).start().client().get(get)
			if a.Trailer.Get("Grpc-Status") != "0" || a.Trailer.Get("Grpc-Message") != "fine" || a.body != "ok" {
				t.Errorf("got %q and %v", a.body, a.Trailer)
			}
		})
	}
}

// What may end an answer, ends it for the client too, and the next request goes well.
func TestFraming(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, method, response, body string
		status                       int
	}{
		{"length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", 200},
		{"chunked", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc", 200},
		{"end-of-connection", "GET", "HTTP/1.1 200 OK\r\n\r\nabc", "abc", 200},
		{"http10", "GET", "HTTP/1.0 200 OK\r\n\r\nabc", "abc", 200},
		{"head", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "", 200},
		{"head-chunked", "HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "", 200},
		{"204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", "", 204},
		{"304", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", "", 304},
		{"empty", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", 200},
		{"status-without-text", "GET", "HTTP/1.1 299\r\nContent-Length: 0\r\n\r\n", "", 299},
		{"status-999", "GET", "HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n", "", 999},
		{"large", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 1000000), strings.Repeat("x", 1000000), 200},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address, _ := once(t, test.response)
			c := newProxy(t, "ok.test:80", address).start().client()
			for range 2 {
				c.send(test.method + " http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n")
				a := c.answer(test.method)
				if a.StatusCode != test.status || a.body != test.body || a.Close {
					t.Fatalf("got %d %q, close %v", a.StatusCode, abridged(a.body), a.Close)
				}
				if test.name == "head" && a.Header.Get("Content-Length") != "3" {
					t.Error("the length of what a GET would get is lost")
				}
				// Date is added where it is missing (RFC 9110 section 6.6.1), and nothing else.
				if a.Header.Get("Date") == "" || a.Header.Get("Content-Type") != "" || a.Header.Get("Via") != "" {
					t.Errorf("the client got %v", a.Header)
				}
			}
		})
	}
}

// HTTP/1.0 clients get no chunks, and their connection stays open exactly if they asked for it and the end is known.
func TestHTTP10Client(t *testing.T) {
	t.Parallel()
	length, _ := once(t, ok)
	began := make(chan struct{})
	chunkedBody := listen(t, func(conn net.Conn) {
		s := newPeer(t, conn)
		s.head()
		s.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
		<-began // else its length may be known before its head is sent
		s.send("0\r\n\r\n")
	})
	p := newProxy(t, "ok.test:80", length, "chunked.test:80", chunkedBody).start()
	t.Run("closes", func(t *testing.T) {
		c := p.client()
		c.send("GET http://ok.test/ HTTP/1.0\r\n\r\n")
		if got := c.rest(); !strings.HasSuffix(got, "\r\n\r\nok") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("keep-alive", func(t *testing.T) {
		c := p.client()
		for range 2 {
			if a := c.get("GET http://ok.test/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"); a.body != "ok" || a.Header.Get("Connection") == "close" {
				t.Errorf("got %q, %v", a.body, a.Header)
			}
		}
	})
	t.Run("no-chunks", func(t *testing.T) {
		c := p.client()
		c.send("GET http://chunked.test/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
		head := c.head()
		if got := c.exactly(len("ok")); got != "ok" || strings.Contains(head, "Transfer-Encoding") {
			t.Errorf("got %q, %q", head, got)
		}
		close(began)
		if got := c.rest(); got != "" {
			t.Errorf("behind the answer: %q", got)
		}
	})
}

// A part of an answer is never passed off as the whole.
func TestCutOffAnswer(t *testing.T) {
	t.Parallel()
	cut := func(head string) string {
		return listen(t, func(conn net.Conn) {
			s := newPeer(t, conn)
			s.head()
			s.send("HTTP/1.1 200 OK\r\n" + head + "\r\n\r\n64\r\nhalf of it")
			_ = conn.Close()
		})
	}
	p := newProxy(t, "ok.test:80", cut("Transfer-Encoding: chunked"), "length.test:80", cut("Content-Length: 100")).start()
	for _, host := range []string{"ok.test", "length.test"} {
		for _, version := range []string{"1.0", "1.1"} {
			c := p.client()
			c.send("GET http://" + host + "/ HTTP/" + version + "\r\nHost: x\r\n\r\n")
			resp, err := http.ReadResponse(c.r, nil)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
			}
			if err == nil || version == "1.0" && host == "ok.test" && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s to an HTTP/%s client: the answer looks whole, or its end is in order: %v", host, version, err)
			}
		}
	}
}

// An answer that is none becomes a 502 that says so, under the id that the audit has.
func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, response string
		kind           refusal.Kind
	}{
		{"nothing", "", refusal.Terminated},
		{"half-a-head", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", refusal.Terminated},
		{"http09", "<html>hello</html>\r\n", refusal.ProtocolError},
		{"other-protocol", "SSH-2.0-OpenSSH_9.9\r\n\r\n", refusal.ProtocolError},
		{"binary", "\x16\x03\x01\x00\x05\x00\r\n\r\n", refusal.ProtocolError},
		{"no-status", "HTTP/1.1 OK\r\n\r\n", refusal.ProtocolError},
		{"status-099", "HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n", refusal.ProtocolError},
		{"negative-status", "HTTP/1.1 -12 X\r\nContent-Length: 0\r\n\r\n", refusal.ProtocolError},
		{"switch-nobody-asked-for", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", refusal.ProtocolError},
		{"two-lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", refusal.ProtocolError},
		{"no-colon", "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", refusal.ProtocolError},
		{"endless-head", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10), refusal.ResponseHeaderLimit},
		{"endless-hints", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 20) + ok, refusal.ProtocolError},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address, _ := once(t, test.response)
			p := newProxy(t, "ok.test:80", address).start()
			c := p.client()
			c.send(get)
			a := c.answer("GET")
			for a.StatusCode == 103 {
				a = c.answer("GET")
			}
			told := p.gate.refused()
			if a.StatusCode != 502 || told.refusal.Reason != Broken || told.refusal.Kind != test.kind ||
				told.refusal.Target != "ok.test:80" || a.Header.Get("Sluice-Decision") != told.refusal.Decision {
				t.Errorf("got %d %v %q, and the audit %+v", a.StatusCode, a.Header, a.body, told)
			}
			if b := c.get(strings.ReplaceAll(get, "ok.test", "evil.test")); b.StatusCode != 403 {
				t.Errorf("then got %d", b.StatusCode)
			}
		})
	}
}

// A server cannot pass for the proxy.
func TestDecisionsAreOurs(t *testing.T) {
	t.Parallel()
	address, _ := once(t, "HTTP/1.1 403 Forbidden\r\nSluice-Decision: forged\r\nContent-Length: 0\r\n\r\n")
	if a := newProxy(t, "ok.test:80", address).start().client().get(get); a.StatusCode != 403 || a.Header.Get("Sluice-Decision") != "" {
		t.Errorf("got %d %v", a.StatusCode, a.Header)
	}
}

// Fields and encodings pass as they are, repeated ones and their order included.
func TestFieldsPass(t *testing.T) {
	t.Parallel()
	address, heads := once(t, "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b")
	a := newProxy(t, "ok.test:80", address).start().client().get("GET http://ok.test/ HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\n" +
		"Cookie: a\r\nCookie: b\r\nAuthorization: Basic x\r\nVia: 1.1 other\r\n\r\n")
	if a.body != "\x1f\x8b" || a.Header.Get("Content-Encoding") != "gzip" || !slices.Equal(a.Header["Set-Cookie"], []string{"a=1", "b=2"}) {
		t.Errorf("got %q %v", a.body, a.Header)
	}
	want := "GET / HTTP/1.1\nHost: ok.test\nAccept-Encoding: br\nAuthorization: Basic x\nCookie: a\nCookie: b\nVia: 1.1 other\n"
	if head := <-heads; head != want {
		t.Errorf("the server saw %q, want %q", head, want)
	}
}

// Case L-11: a client that talks to the origin, as far as it knows, is told when the origin's connection ends. One
// that talks to a proxy keeps its connection to that.
func TestServerCloses(t *testing.T) {
	t.Parallel()
	address, _ := once(t, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
	p := newProxy(t, "ok.test:80", address).start()
	c := p.client()
	for range 2 {
		if a := c.get(get); a.body != "ok" || a.Close {
			t.Errorf("got %q, close %v", a.body, a.Close)
		}
	}
	p = newProxy(t, "ok.test:80", address)
	p.conn.Mode = Tunnel
	c = p.start().client()
	if a := c.get("GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n"); a.body != "ok" || !a.Close {
		t.Errorf("got %q, close %v", a.body, a.Close)
	}
	c.gone()
}

// Hints pass on to clients that know them.
func TestEarlyHints(t *testing.T) {
	t.Parallel()
	address, _ := once(t, "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: X\r\nX: 1\r\n\r\n"+ok)
	p := newProxy(t, "ok.test:80", address).start()
	c := p.client()
	c.send(get)
	for _, want := range []int{102, 103, 200} {
		a := c.answer("GET")
		if a.StatusCode != want || (a.Header.Get("Link") != "") != (want == 103) || a.Header.Get("X") != "" {
			t.Errorf("got %d %v, want %d", a.StatusCode, a.Header, want)
		}
	}
	if a := p.client().get("GET http://ok.test/ HTTP/1.0\r\n\r\n"); a.StatusCode != 200 {
		t.Errorf("an HTTP/1.0 client got %d", a.StatusCode)
	}
}
