package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// redirect makes a listener of which every connection was meant for to, as a redirect in the kernel would; "" is the
// listener itself.
func (r *rig) redirect(to string) {
	r.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	defer l.Close()
	fd, err := duplicate(l.(*net.TCPListener))
	if err != nil {
		r.Fatal(err)
	}
	if err := prepareListener(fd); err != nil {
		r.Fatal(err)
	}
	own := netip.MustParseAddrPort(l.Addr().String())
	destination := own
	if to != "" {
		destination = netip.MustParseAddrPort(to)
	}
	how := &redirection{own: own, original: func(int) (netip.AddrPort, error) { return destination, nil }}
	if err := r.session.listen(fd, l.Addr(), how); err != nil {
		r.Fatal(err)
	}
	r.address = own.String()
}

func TestRedirectedTLS(t *testing.T) {
	hello := make(chan string, 1)
	port := listen(t, func(c net.Conn) {
		config := &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			hello <- h.ServerName
			return nil, io.EOF
		}}
		_ = tls.Server(c, config).Handshake()
	})
	known := names{"ok.test": {"127.0.0.1"}, "a.wild.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}, "far.test": {"127.0.0.9"}}
	for name, c := range map[string]struct {
		policy, sni string
		passes      bool
	}{
		"allowed":            {allow("ok.test"), "ok.test", true},
		"allowed-wildcard":   {allow("*.wild.test"), "a.wild.test", true},
		"not-listed":         {allow("ok.test"), "evil.test", false},
		"other-address":      {allow("far.test"), "far.test", false}, // its own address is dialled, where nobody listens
		"other-port":         {allow("ok.test:1"), "ok.test", false},
		"none-under-a-name":  {allow("ok.test"), "", true}, // not 443, and the address belongs to an exact name
		"none-under-another": {allow("far.test"), "", false},
		"address":            {allow("127.0.0.1"), "evil.test", true},
		"denied":             {deny("evil.test"), "evil.test", false},
		"not-denied":         {deny("evil.test"), "ok.test", true},
		"public":             {`"public"`, "evil.test", true},
		"no-network":         {`"no-network"`, "ok.test", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.policy, Config{Hosts: known.hosts})
			r.redirect("127.0.0.1:" + port)
			conn, err := net.Dial("tcp", r.address)
			if err == nil {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				err = tls.Client(conn, &tls.Config{ServerName: c.sni, InsecureSkipVerify: true}).Handshake()
			}
			if !c.passes {
				if err == nil || !strings.Contains(err.Error(), "reset") && !strings.Contains(err.Error(), "broken pipe") {
					t.Errorf("handshake: %v; want a reset", err)
				}
				select {
				case got := <-hello:
					t.Errorf("the upstream got a ClientHello for %q", got)
				default:
				}
				return
			}
			if got := <-hello; got != c.sni {
				t.Errorf("the upstream got a ClientHello for %q, want %q", got, c.sni)
			}
		})
	}
}

func TestRedirectedHTTP(t *testing.T) {
	port := origin(t)
	known := names{"ok.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}, "hidden.test": {"127.0.0.3"}}
	for name, c := range map[string]struct {
		policy, host string
		status       int
	}{
		"allowed":    {allow("ok.test"), "ok.test", 200},
		"not-listed": {allow("ok.test"), "evil.test", 403},
		"bare":       {allow("ok.test"), "127.0.0.1", 403},
		"address":    {allow("127.0.0.1"), "evil.test", 200},
		"denied":     {deny("hidden.test"), "hidden.test", 403},
		"not-denied": {deny("hidden.test"), "ok.test", 200},
		"public":     {`"public"`, "evil.test", 200},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.policy, Config{Hosts: known.hosts})
			r.redirect("127.0.0.1:" + port)
			client := r.open()
			for range 2 {
				status, body := client.ask(t, "GET / HTTP/1.1\r\nHost: "+c.host+":"+port+"\r\n\r\n")
				if status != c.status {
					t.Fatalf("%d %q, want %d", status, body, c.status)
				}
			}
		})
	}
}

func TestRedirectedServerFirst(t *testing.T) {
	port := listen(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "220 hello\r\n")
		echo(c)
	})
	known := names{"ok.test": {"127.0.0.1"}, "far.test": {"127.0.0.9"}}
	for name, c := range map[string]struct {
		policy  string
		learned []string
		passes  bool
	}{
		"exact-name":      {allow("ok.test"), nil, true},
		"learned":         {allow("*.wild.test"), []string{"x.wild.test"}, true},
		"not-learned":     {allow("*.wild.test"), nil, false},
		"learned-another": {allow("far.test"), []string{"evil.test"}, false},
		"address":         {allow("127.0.0.1"), nil, true},
		"denied":          {deny("evil.test"), []string{"ok.test", "evil.test"}, false},
		"not-denied":      {deny("evil.test"), []string{"ok.test"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.policy, Config{Hosts: known.hosts})
			for _, name := range c.learned {
				r.session.learned.add(name, []netip.Addr{netip.MustParseAddr("127.0.0.1")})
			}
			r.redirect("127.0.0.1:" + port)
			conn := r.dial()
			if !c.passes {
				wantReset(t, conn)
				return
			}
			b := client{conn, bufio.NewReader(conn)}
			if line, err := b.ReadString('\n'); err != nil || line != "220 hello\r\n" {
				t.Fatalf("got %q, %v", line, err)
			}
			wantEcho(t, b, "EHLO x\r\n")
			wantEcho(t, b, "word")
		})
	}
}

// A name that the client claims under public must stand for the address when a later phase goes by it.
func TestRedirectedFlowAtSwitch(t *testing.T) {
	port := listen(t, echo)
	known := names{"ok.test": {"127.0.0.1"}, "far.test": {"127.0.0.9"}}
	for _, c := range []struct {
		name    string
		learned bool
		passes  bool
	}{{"ok.test", true, true}, {"far.test", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, `"public"`, Config{Hosts: known.hosts})
			if c.learned {
				r.session.learned.add(c.name, []netip.Addr{netip.MustParseAddr("127.0.0.1")})
			}
			r.redirect("127.0.0.1:" + port)
			conn := r.dial()
			hello := clientHello(t, c.name)
			wantEcho(t, conn, hello)
			receipt := r.apply(allow("ok.test", "far.test"))
			if !c.passes {
				if receipt.FlowsCut != 1 {
					t.Errorf("receipt %+v; want one cut", receipt)
				}
				wantReset(t, conn)
				return
			}
			wantEcho(t, conn, "goes on")
		})
	}
}

// clientHello returns the first record of a TLS client.
func clientHello(t *testing.T, name string) string {
	t.Helper()
	ours, theirs := net.Pipe()
	go func() {
		_ = tls.Client(theirs, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		theirs.Close()
	}()
	defer ours.Close()
	b := make([]byte, 16<<10)
	n, err := ours.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// The listener's own address is the explicit proxy.
func TestRedirectListenerItself(t *testing.T) {
	port := origin(t)
	r := start(t, allow("127.0.0.1"), Config{})
	r.redirect("")
	status, _ := r.open().ask(t, "GET http://127.0.0.1:"+port+"/ HTTP/1.1\r\nHost: 127.0.0.1:"+port+"\r\n\r\n")
	if status != http.StatusOK {
		t.Errorf("%d, want 200", status)
	}
}

// A redirected client that has begun to speak may take as long over it as one of a tunnel.
func TestRedirectedSlowRequest(t *testing.T) {
	port := origin(t)
	r := start(t, allow("*.wild.test"), Config{Hosts: names{"a.wild.test": {"127.0.0.1"}}.hosts})
	r.redirect("127.0.0.1:" + port)
	c := r.open()
	if _, err := io.WriteString(c.TCPConn, "GET / HT"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(silentTime + 100*time.Millisecond) // longer than one may that says nothing
	status, body := c.ask(t, "TP/1.1\r\nHost: a.wild.test:"+port+"\r\n\r\n")
	if status != http.StatusOK {
		t.Errorf("%d %q, want 200", status, body)
	}
}
