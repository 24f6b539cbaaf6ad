package proxy

import (
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"sluice/proxy/dnstest"
	"sluice/proxy/poll"
)

// busyListener is a TCP listener on loopback whose queue is full, so that a connect to it stays under way until the
// function that it returns is called. Then it serves.
func busyListener(t *testing.T, serve func(net.Conn)) (port string, free func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port = strconv.Itoa(address.(*unix.SockaddrInet4).Port)
	filler, err := net.Dial("tcp", "127.0.0.1:"+port) // the queue's one place
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { filler.Close() })
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		serving.Wait()
		unix.Close(fd)
	})
	free = func() {
		serving.Go(func() {
			for range 2 {
				c, from, err := unix.Accept(fd)
				if err != nil {
					return
				}
				conn, err := socketConn(c)
				if err != nil {
					return
				}
				if from.(*unix.SockaddrInet4).Port != filler.LocalAddr().(*net.TCPAddr).Port {
					serve(conn)
				}
				conn.Close()
			}
		})
	}
	return port, free
}

// all returns the worker's connections, one with two sockets twice. It is called on the worker.
func (w *worker) all() (all []*conn) {
	w.Each(func(h poll.Handler) {
		if c, ok := h.(*conn); ok {
			all = append(all, c)
		}
	})
	return all
}

// waitFor waits until a connection of the only worker is in a state.
func (r *rig) waitFor(in state) {
	r.Helper()
	r.waitUntil(func(c *conn) bool { return c.state == in })
}

// waitUntil waits for a connection of the only worker.
func (r *rig) waitUntil(is func(*conn) bool) {
	r.Helper()
	w := r.server.workers[0]
	deadline := time.Now().Add(10 * time.Second)
	for found := false; !found; {
		if time.Now().After(deadline) {
			r.Fatal("no connection comes to where it should")
		}
		if err := w.Do(r.Context(), func() {
			for _, c := range w.all() {
				found = found || is(c)
			}
		}); err != nil {
			r.Fatal(err)
		}
	}
}

// A switch that comes while an upstream is being dialled is the one by which the tunnel is judged.
func TestSwitchWhileDialling(t *testing.T) {
	known := names{"ok.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}}
	for name, c := range map[string]struct {
		then, sni string
		passes    bool
	}{
		"same-name":    {allow("ok.test"), "ok.test", true},
		"other-name":   {allow("ok.test"), "evil.test", false},
		"denied-name":  {deny("evil.test"), "evil.test", false},
		"no-network":   {`"no-network"`, "ok.test", false},
		"public-still": {deny("192.0.2.1"), "evil.test", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(chan string, 1)
			port, free := busyListener(t, func(c net.Conn) {
				text, _ := io.ReadAll(c)
				got <- string(text)
			})
			r := start(t, `"public"`, Config{Hosts: known.hosts, Workers: 1})
			hello := clientHello(t, c.sni)
			client := r.dial()
			if _, err := io.WriteString(client, "CONNECT ok.test:"+port+" HTTP/1.1\r\n\r\n"+hello); err != nil {
				t.Fatal(err)
			}
			r.waitFor(dialling)
			r.apply(c.then)
			if c.then == `"no-network"` { // it ends at once, see TestSwitchEndsConnects
				got <- ""
			}
			free()
			_ = client.CloseWrite()
			_, _ = io.ReadAll(client)
			if text := <-got; (text == hello) != c.passes || text != "" && !c.passes {
				t.Errorf("%d bytes came out, passing is %v", len(text), c.passes)
			}
		})
	}
}

// Where a policy refuses, no connect begins after the switch to it, whatever was under way then: the container may have
// been about to say where it goes, or its name was being looked up.
func TestNoConnectAfterSwitch(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	// accepted returns how many connections came before one that it makes itself.
	accepted := func(t *testing.T) (n int) {
		mark, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer mark.Close()
		for ; ; n++ {
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			if c.RemoteAddr().String() == mark.LocalAddr().String() {
				return n
			}
		}
	}
	defer l.Close()
	for name, c := range map[string]struct {
		redirected bool
		before     string // said before the switch
		after      string
	}{
		"redirected-tls":    {true, "", clientHello(t, "a.wild.test")},
		"redirected-http":   {true, "GET / HT", "TP/1.1\r\nHost: a.wild.test:" + port + "\r\n\r\n"},
		"redirected-http-2": {true, "", "GET / HTTP/1.1\r\nHost: a.wild.test:" + port + "\r\n\r\n"},
		"connect":           {false, "CONNECT slow.wild.test:" + port + " HTTP/1.1\r\n\r\n", ""},
		"http":              {false, "GET http://slow.wild.test:" + port + "/ HTTP/1.1\r\nHost: x\r\n\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			looking, release := make(chan struct{}), make(chan struct{})
			server := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
				if q.Name == "slow.wild.test." {
					select {
					case looking <- struct{}{}:
					case <-release:
					}
					<-release
				}
				if q.Type != dns.TypeA {
					return q.Records()
				}
				return q.Records(q.Name + " 60 A 127.0.0.1")
			})
			r := start(t, allow("*.wild.test"), Config{Upstreams: []netip.AddrPort{server.Addr}, Workers: 1})
			if _, err := r.session.resolveName(t.Context(), "a.wild.test"); err != nil { // it is known to stand for the address
				t.Fatal(err)
			}
			if c.redirected {
				r.redirect("127.0.0.1:" + port)
			}
			client := r.dial()
			if _, err := io.WriteString(client, c.before); err != nil {
				t.Fatal(err)
			}
			if c.redirected {
				r.waitUntil(func(c *conn) bool { return c.state == sniffing && !c.exact })
			} else {
				<-looking
			}
			r.apply(allow("other.test"))
			close(release)
			_, _ = io.WriteString(client, c.after)
			_ = client.CloseWrite()
			_, _ = io.ReadAll(client)
			r.server.Close()
			if n := accepted(t); n > 0 {
				t.Errorf("%d connects after the switch", n)
			}
		})
	}
}
