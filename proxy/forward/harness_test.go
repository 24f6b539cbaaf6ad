package forward

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/matcher"
	"sluice/proxy/refusal"
)

// patience is how long a test waits for what must come, before it fails.
const patience = 10 * time.Second

// environmentProxy is what the environment names as a proxy: nothing listens there.
const environmentProxy = "127.0.0.1:9"

func TestMain(m *testing.M) {
	// Before anything reads it: net/http looks once.
	for _, name := range []string{"HTTP_PROXY", "http_proxy"} {
		if err := os.Setenv(name, "http://"+environmentProxy); err != nil {
			panic(err)
		}
	}
	// net/http prints what servers say unasked.
	log.SetOutput(io.Discard)
	goleak.VerifyTestMain(m)
}

// peer is one end of a connection that a test reads and writes by hand.
type peer struct {
	net.Conn
	r *bufio.Reader
	t testing.TB
}

func newPeer(t testing.TB, c net.Conn) *peer {
	p := &peer{Conn: c, r: bufio.NewReader(c), t: t}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil && !p.over(err) {
		t.Error(err)
	}
	return p
}

// over reports whether err is that the test has ended, and with it the connection (see [testing.TB.Context]).
func (p *peer) over(err error) bool {
	return errors.Is(err, net.ErrClosed) && p.t.Context().Err() != nil
}

// send writes the text, or fails the test.
func (p *peer) send(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.Conn, text); err != nil && !p.over(err) {
		p.t.Errorf("sending %q: %v", abridged(text), err)
	}
}

// head reads lines up to an empty one. Its lines end in LF here.
func (p *peer) head() string {
	p.t.Helper()
	var b strings.Builder
	for {
		line, err := p.r.ReadString('\n')
		if err != nil {
			p.t.Errorf("reading a head: %v, after %q", err, abridged(b.String()))
			return b.String()
		}
		if line == "\r\n" {
			return b.String()
		}
		b.WriteString(strings.Replace(line, "\r\n", "\n", 1))
	}
}

// exactly reads n bytes.
func (p *peer) exactly(n int) string {
	p.t.Helper()
	b := make([]byte, n)
	if got, err := io.ReadFull(p.r, b); err != nil {
		p.t.Errorf("reading %d bytes: %v, after %q", n, err, abridged(string(b[:got])))
	}
	return string(b)
}

// rest reads to the end of the connection.
func (p *peer) rest() string {
	p.t.Helper()
	b, err := io.ReadAll(p.r)
	if err != nil {
		p.t.Errorf("reading to the end: %v, after %q", err, abridged(string(b)))
	}
	return string(b)
}

// answer is a response that has been read whole.
type answer struct {
	*http.Response
	body string
}

// answer reads the response to a request with the method.
func (p *peer) answer(method string) answer {
	p.t.Helper()
	resp, err := http.ReadResponse(p.r, &http.Request{Method: method})
	if err != nil {
		p.t.Fatalf("reading the response: %v", err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatalf("reading the body of a %d: %v", resp.StatusCode, err)
	}
	return answer{resp, string(body)}
}

// get sends the text of a GET and reads the answer.
func (p *peer) get(text string) answer {
	p.t.Helper()
	p.send(text)
	return p.answer(http.MethodGet)
}

// isClosed reports whether the connection ends here, in order or by a reset.
func (p *peer) isClosed() bool {
	_, err := p.r.ReadByte()
	timeout, ok := err.(net.Error)
	return err != nil && !(ok && timeout.Timeout())
}

// untilReset reads and drops what comes until the connection ends.
func (p *peer) untilReset() { _, _ = io.Copy(io.Discard, p.r) }

// gone fails the test unless the connection has ended.
func (p *peer) gone() {
	p.t.Helper()
	if !p.isClosed() {
		p.t.Error("the connection is still open")
	}
}

func abridged(s string) string {
	if len(s) > 300 {
		return s[:300] + "…"
	}
	return s
}

// listen calls serve for each connection on a new address, which it returns. What serve leaves open is closed when
// the test ends.
func listen(t testing.TB, serve func(c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			running.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return l.Addr().String()
}

// connect opens a connection to an address.
func connect(t testing.TB, address string) *peer {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return newPeer(t, c)
}

// gate is a Gate that allows the requests for which it has an address.
type gate struct {
	t     testing.TB
	reuse bool
	dial  func(ctx context.Context, address string) (net.Conn, error) // in place of net.Dial

	mu      sync.Mutex
	servers map[string]string // host:port to address
	judged  []Request
	dialled []string // host:port
	conns   []net.Conn
	flows   map[*flow]struct{} // open
	in, out int64
	told    []told
}

// told is what Conn.Refused was told.
type told struct {
	request Request
	refusal refusal.Refusal
}

type flow struct {
	gate    *gate
	target  string
	address string
}

// Judge implements [Gate].
func (g *gate) Judge(_ context.Context, _ net.Conn, r Request) (Flow, *refusal.Refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.judged = append(g.judged, r)
	address, ok := g.servers[r.Target()]
	if !ok {
		return nil, &refusal.Refusal{Status: 403, Reason: matcher.NotListed, Target: r.Target(), Decision: "fromgate",
			Text: "Add it to the policy."}
	}
	f := &flow{g, r.Target(), address}
	g.flows[f] = struct{}{}
	if g.reuse {
		return reusingFlow{f}, nil
	}
	return f, nil
}

// Dial implements [Flow].
func (f *flow) Dial(ctx context.Context) (net.Conn, error) {
	dial := f.gate.dial
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	c, err := dial(ctx, f.address)
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	f.gate.dialled = append(f.gate.dialled, f.target)
	f.gate.conns = append(f.gate.conns, c)
	return c, err
}

// Close implements [Flow].
func (f *flow) Close(in, out int64) {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	if _, ok := f.gate.flows[f]; !ok {
		f.gate.t.Error("a flow was closed twice")
	}
	delete(f.gate.flows, f)
	f.gate.in += in
	f.gate.out += out
}

type reusingFlow struct{ *flow }

// Reuse implements [Reuser].
func (f reusingFlow) Reuse(c net.Conn) bool { return c.RemoteAddr().String() == f.address }

// seen returns the targets that were judged, in order.
func (g *gate) seen() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var targets []string
	for _, r := range g.judged {
		targets = append(targets, r.Target())
	}
	return targets
}

// connections returns how many were dialled.
func (g *gate) connections() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.dialled)
}

// refused returns what Conn.Refused was told last.
func (g *gate) refused() told {
	g.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.told) == 0 {
		g.t.Fatal("nothing was told of a refusal")
	}
	return g.told[len(g.told)-1]
}

// settled waits until no flow is open, and returns the bytes of all.
func (g *gate) settled() (in, out int64) {
	g.t.Helper()
	eventually(g.t, "all flows are closed", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.flows) == 0
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.in, g.out
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still waiting until %s", what)
		}
	}
}

// proxy is a server under test. Set its fields before start.
type proxy struct {
	t       testing.TB
	gate    *gate
	conn    Conn
	options Options
	address string
}

// newProxy returns a proxy whose gate allows the given servers: host:port, address, and so on.
func newProxy(t testing.TB, servers ...string) *proxy {
	t.Helper()
	g := &gate{t: t, reuse: true, servers: make(map[string]string), flows: make(map[*flow]struct{})}
	for pair := range slices.Chunk(servers, 2) {
		g.servers[pair[0]] = pair[1]
	}
	p := &proxy{t: t, gate: g}
	p.conn = Conn{Gate: g, Realm: "test", Refused: func(r Request, no *refusal.Refusal) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.told = append(g.told, told{r, *no})
	}}
	return p
}

// start serves until the test ends.
func (p *proxy) start() *proxy {
	p.t.Helper()
	s := New(p.options)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	p.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			p.t.Errorf("Run: %v", err)
		}
		p.gate.mu.Lock()
		defer p.gate.mu.Unlock()
		if n := len(p.gate.flows); n > 0 {
			p.t.Errorf("%d flows are still open", n)
		}
	})
	p.address = listen(p.t, func(c net.Conn) { s.ServeConn(c, p.conn) })
	return p
}

// client connects to the proxy.
func (p *proxy) client() *peer {
	p.t.Helper()
	return connect(p.t, p.address)
}

// once starts a server that answers each connection's first request, and keeps what it was sent.
func once(t testing.TB, response string) (address string, heads <-chan string) {
	c := make(chan string, 100)
	return listen(t, func(conn net.Conn) {
		p := newPeer(t, conn)
		c <- p.head()
		p.send(response)
		_ = conn.Close()
	}), c
}

// ok is a response of which nothing is to be said.
const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// site starts a server with keep-alive that answers every request with its name and request target.
func site(t testing.TB, name string) string {
	return listen(t, func(conn net.Conn) {
		r := bufio.NewReader(conn)
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			text := fmt.Sprintf("%s %s %s %s", name, req.Method, req.RequestURI, body)
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		}
	})
}

// listenEcho starts a server that answers with the head of the request.
func listenEcho(t testing.TB) string {
	return listen(t, func(c net.Conn) {
		p := newPeer(t, c)
		echoHead(t, p)
		_ = c.Close()
	})
}
