package forward

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/matcher"
	"sluice/proxy/refusal"
)

// FuzzServeConn sends anything to the proxy. Whatever it is, a server is only reached for requests that were judged,
// sees the authority that was judged and no other, and gets one request for each that was allowed.
func FuzzServeConn(f *testing.F) {
	for _, seed := range []string{
		get,
		get + strings.ReplaceAll(get, "ok.test", "evil.test"), // the second one is another host's
		"POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 4\r\n\r\nbody" + get,
		"POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n4;x\r\nbody\r\n0\r\nA: b\r\n\r\n" + get,
		"POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
		"PUT http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nbody",
		upgrade + "\x81\x05hello",
		"GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost:\r\n ok.test\r\n\r\n",
		"GET http://ok.test:80@evil.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n",
		"GET http://[2001:db8::1]:81/ HTTP/1.0\n\n",
		"OPTIONS * HTTP/1.1\r\nHost: ok.test:8080\r\n\r\n",
		"CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test:443\r\n\r\n\x16\x03\x01",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"\r\n\r\nGET http://OK.test.//x?y HTTP/1.1\nHost: ok.test\nConnection: Host, X\nX: y\n\n",
	} {
		f.Add([]byte(seed))
	}
	s := New(Options{HeaderLimit: 4 << 10, HeaderTimeout: 5 * time.Second, IdleTimeout: 5 * time.Second, finTimeout: time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	f.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, input []byte) {
		for _, mode := range []Mode{Explicit, Tunnel} {
			g := &fuzzGate{t: t, mode: mode}
			client, conn := net.Pipe()
			var talk sync.WaitGroup
			talk.Go(func() {
				_, _ = client.Write(input)
				_ = client.Close()
			})
			s.ServeConn(conn, Conn{Gate: g, Mode: mode, Host: "tunnel.test", Port: 8080, Connect: func(c net.Conn, read []byte) {
				if mode != Explicit || !bytes.HasPrefix(read, []byte("CONNECT ")) {
					t.Errorf("a tunnel is handed over with %q", read)
				}
				_ = c.Close()
			}})
			talk.Wait()
			g.servers.Wait()
			if g.open != 0 {
				t.Errorf("%d flows are still open", g.open)
			}
		}
	})
}

// fuzzGate allows what is not evil, and is the server that is dialled then.
type fuzzGate struct {
	t       *testing.T
	mode    Mode
	servers sync.WaitGroup
	mu      sync.Mutex
	open    int
}

type fuzzFlow struct {
	gate    *fuzzGate
	request Request
	dialled bool
}

// Judge implements [Gate].
func (g *fuzzGate) Judge(_ context.Context, _ net.Conn, r Request) (Flow, *refusal.Refusal) {
	if a, err := parseAuthority(r.Target()); err != nil || a.host != r.Host || a.port != r.Port {
		g.t.Errorf("%+v was judged, which is no authority in normal form: %v", r, err)
	}
	if strings.Contains(r.Host, "evil") {
		return nil, &refusal.Refusal{Status: 403, Reason: matcher.NotListed}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open++
	return &fuzzFlow{gate: g, request: r}, nil
}

// Dial implements [Flow].
func (f *fuzzFlow) Dial(context.Context) (net.Conn, error) {
	if f.dialled {
		f.gate.t.Error("dialled twice")
	}
	f.dialled = true
	conn, server := net.Pipe()
	f.gate.servers.Go(func() {
		defer server.Close()
		r := bufio.NewReader(server)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		want := f.request.Target()
		if short := strings.TrimSuffix(want, ":80"); req.Host != want && req.Host != short && (f.gate.mode == Explicit || req.Host != strings.TrimSuffix(want, ":8080")) {
			f.gate.t.Errorf("the server saw Host %q, and %q was judged", req.Host, want)
		}
		if req.Method != f.request.Method {
			f.gate.t.Errorf("the server saw method %q, and %q was judged", req.Method, f.request.Method)
		}
		for name := range req.Header {
			if strings.HasPrefix(name, "Proxy-") {
				f.gate.t.Errorf("the server saw %q", name)
			}
		}
		_, _ = io.Copy(io.Discard, req.Body)
		_, _ = io.WriteString(server, ok)
		if req.Header.Get("Upgrade") == "" {
			if more, err := http.ReadRequest(r); err == nil {
				f.gate.t.Errorf("the server saw a second request, %s %s", more.Method, more.RequestURI)
			}
		}
	})
	return conn, nil
}

// Close implements [Flow].
func (f *fuzzFlow) Close(int64, int64) {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	f.gate.open--
}

// FuzzChunks compares where a chunked body ends here and in net/http, which reads the same bytes: if both accept it,
// they agree.
func FuzzChunks(f *testing.F) {
	for _, seed := range []string{"0\r\n\r\n", "4\r\nbody\r\n0\r\nA: b\r\n\r\nrest", "a;x=y\r\n0123456789\r\n00\r\n\r\n", "1;a\nX\r\n0\r\n\r\n", "1\r\nX\n0\r\n\r\n"} {
		f.Add([]byte(seed))
	}
	const head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	f.Fuzz(func(t *testing.T, b []byte) {
		var whole chunks
		n, err := whole.scan(b)
		var piecewise chunks
		for i := range n {
			if m, err := piecewise.scan(b[i : i+1]); m != 1 || err != nil {
				t.Fatalf("byte %d is not accepted by itself: %v", i, err)
			}
		}
		if whole != piecewise && err == nil {
			t.Fatalf("at once %+v, bytewise %+v", whole, piecewise)
		}
		source := strings.NewReader(head + string(b))
		r := bufio.NewReader(source)
		req, errRead := http.ReadRequest(r)
		if errRead != nil {
			t.Fatal(errRead)
		}
		if _, errRead = io.Copy(io.Discard, req.Body); errRead != nil {
			return // it accepts less
		}
		consumed := len(b) - source.Len() - r.Buffered()
		switch {
		case errors.Is(err, errChunk) && n < consumed: // stricter
		case whole.at != finished || n != consumed:
			t.Errorf("net/http sees a body of %d bytes, this package %d (%+v, %v)", consumed, n, whole, err)
		}
	})
}

// FuzzGuard reads the same bytes in one piece and in small ones: what net/http gets to see is the same.
func FuzzGuard(f *testing.F) {
	f.Add([]byte(get+get), uint8(1))
	f.Add([]byte("POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"+get), uint8(3))
	f.Add([]byte("POST / HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc\r\n\nGET / HTTP/1.0\n\n"), uint8(7))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		whole, pieces := guardOutput(t, b, len(b)+1), guardOutput(t, b, int(piece)+1)
		if whole != pieces {
			t.Errorf("in one piece %q\nin pieces of %d %q", whole, int(piece)+1, pieces)
		}
	})
}

// guardOutput returns what a guard shows of b, which comes in pieces of n bytes, if every request is answered at once.
func guardOutput(t *testing.T, b []byte, n int) string {
	g := newGuard(&pieces{b: b, n: n}, Options{HeaderLimit: 1000, HeaderTimeout: time.Minute, IdleTimeout: time.Minute, finTimeout: time.Minute})
	var out strings.Builder
	p := make([]byte, 100)
	for range 10 * (len(b) + 10) {
		k, err := g.Read(p)
		out.Write(p[:k])
		if err != nil {
			return out.String()
		}
		if k == 0 {
			t.Fatal("a Read without bytes or an error")
		}
		if g.state == answering && len(g.out) == 0 {
			if g.head.bad != nil {
				return out.String() + g.head.bad.Text
			}
			out.WriteString("|" + g.head.target + "|" + g.head.host + "|")
			g.next()
		}
	}
	t.Fatal("there is no end")
	return ""
}

// pieces is a connection on which bytes come in pieces.
type pieces struct {
	net.Conn
	b []byte
	n int
}

// Read implements [net.Conn].
func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.n)], p.b)
	p.b = p.b[n:]
	return n, nil
}

// SetReadDeadline implements [net.Conn].
func (p *pieces) SetReadDeadline(time.Time) error { return nil }
