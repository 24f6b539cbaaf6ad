package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/control"
	"sluice/matcher"
	"sluice/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names are what the tests' resolver knows. All of it is loopback, which a test's policy names when it is to be reached.
type names map[string][]string

func (n names) hosts(name string) (addrs []netip.Addr) {
	for _, a := range n[name] {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return addrs
}

// rig is a proxy with one session and one listener.
type rig struct {
	*testing.T
	server  *Server
	session *Session
	address string
}

// start makes a proxy under a policy, written as in a file. The floor is off, so that loopback can stand for anything.
func start(t *testing.T, rules string, config Config) *rig {
	t.Helper()
	config.Matcher.NoFloor = true
	config.Matcher.WildcardPrivate = true
	return startWithFloor(t, rules, config)
}

// startWithFloor is start without anything loosened.
func startWithFloor(t *testing.T, rules string, config Config) *rig {
	t.Helper()
	if config.Workers == 0 {
		config.Workers = 2
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	session, err := s.Open("test")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, server: s, session: session}
	r.apply(rules)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.address = l.Addr().String()
	if err := session.ServeTCP(l.(*net.TCPListener)); err != nil {
		t.Fatal(err)
	}
	return r
}

// apply switches to a policy.
func (r *rig) apply(rules string) control.Receipt {
	r.Helper()
	p, err := policy.ParsePolicy([]byte(rules))
	if err != nil {
		r.Fatal(err)
	}
	receipt, err := r.session.Apply(context.Background(), Change{Policies: &policy.Phases{p, p, p}})
	if err != nil {
		r.Fatal(err)
	}
	return receipt
}

func allow(targets ...string) string { return listed("allowlist", "allowed_hosts", targets) }
func deny(targets ...string) string  { return listed("denylist", "denied_hosts", targets) }

func listed(mode, field string, targets []string) string {
	return fmt.Sprintf(`{"network_mode":%q,%q:["%s"]}`, mode, field, strings.Join(targets, `","`))
}

// dial connects to the proxy; the connection is closed at the end of the test, and gives up after a while.
func (r *rig) dial() *net.TCPConn {
	r.Helper()
	c, err := net.Dial("tcp", r.address)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	// For a test that hangs; megabytes under the race detector on a busy machine take a while.
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		r.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// client is a connection with what was read ahead from it.
type client struct {
	*net.TCPConn
	*bufio.Reader
}

func (c client) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// send writes raw bytes on a new connection and reads the head of the answer.
func (r *rig) send(raw string) (client, *http.Response) {
	r.Helper()
	c := r.dial()
	if _, err := io.WriteString(c, raw); err != nil {
		r.Fatal(err)
	}
	b := bufio.NewReader(c)
	response, err := http.ReadResponse(b, &http.Request{Method: http.MethodConnect})
	if err != nil {
		r.Fatalf("answer to %.60q: %v", raw, err)
	}
	return client{c, b}, response
}

// connect asks for a tunnel and returns it with the status of the answer.
func (r *rig) connect(authority, early string) (client, *http.Response) {
	r.Helper()
	return r.send(fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n%s", authority, early))
}

// listen runs an upstream on loopback for the time of the test.
func listen(t *testing.T, serve func(net.Conn)) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, serve)
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// serveOn serves what comes to l for the time of the test.
func serveOn(t *testing.T, l net.Listener, serve func(net.Conn)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

// echo copies by hand: io.Copy between sockets would hold pipes that the tests count.
func echo(c net.Conn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }

// wantEcho sends text and wants it back.
func wantEcho(t *testing.T, c io.ReadWriter, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatalf("sending %q: %v", text, err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("got %q, %v; want %q back", got, err, text)
	}
}

// wantReset wants the connection to end by a reset, and no byte before it.
func wantReset(t *testing.T, c io.Reader) {
	t.Helper()
	n, err := c.Read(make([]byte, 1))
	if n != 0 || err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("got %d bytes, %v; want a reset", n, err)
	}
}

// wantRefused wants an answer of that status with a reason and a decision id.
func wantRefused(t *testing.T, response *http.Response, status int, reason matcher.Reason) {
	t.Helper()
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != status || !strings.Contains(string(body), string(reason)) ||
		response.Header.Get("Sluice-Decision") == "" {
		t.Errorf("got %s, decision %q, %q; want %d, a decision and %q", response.Status,
			response.Header.Get("Sluice-Decision"), body, status, reason)
	}
}
