package proxy

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connecting returns how many connects to a port of 127.0.0.1 are under way (proc_net_tcp(5)): the kernel sends each
// again until it is answered.
func connecting(t *testing.T, port string) (n int) {
	t.Helper()
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("/proc/thread-self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(table), fmt.Sprintf(" 0100007F:%04X 02 ", number))
}

func (r *rig) await(not string, done func() bool) {
	r.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatal(not)
		}
	}
}

// awaitLeft waits until all clients' requests have let go of their upstreams.
func (r *rig) awaitLeft() {
	r.Helper()
	r.await("the engine keeps the upstream", func() bool {
		return !slices.ContainsFunc(r.session.web.all(), func(u *webUpstream) bool {
			u.mu.Lock()
			defer u.mu.Unlock()
			return !u.closed
		})
	})
}

// A connect that is under way to what a switch refuses ends with it, for the kernel would go on to send it.
func TestSwitchEndsConnects(t *testing.T) {
	known := names{"ok.test": {"127.0.0.1"}}
	hello := clientHello(t, "ok.test")
	for name, c := range map[string]struct {
		redirected bool
		says       string // PORT is the upstream's
		before     string
	}{
		"connect":         {false, "CONNECT ok.test:PORT HTTP/1.1\r\n\r\n", allow("ok.test")},
		"http":            {false, "GET http://ok.test:PORT/ HTTP/1.1\r\nHost: x\r\n\r\n", allow("ok.test")},
		"redirected":      {true, "", `"public"`},
		"redirected-tls":  {true, hello, allow("ok.test")},
		"redirected-http": {true, "GET / HTTP/1.1\r\nHost: ok.test:PORT\r\n\r\n", allow("ok.test")},
	} {
		t.Run(name, func(t *testing.T) {
			port, _ := busyListener(t, func(net.Conn) {})
			r := start(t, c.before, Config{Hosts: known.hosts, Workers: 1})
			if c.redirected {
				r.redirect("127.0.0.1:" + port)
			}
			client := r.dial()
			if _, err := io.WriteString(client, strings.ReplaceAll(c.says, "PORT", port)); err != nil {
				t.Fatal(err)
			}
			r.await("no connect begins", func() bool { return connecting(t, port) > 0 })
			r.apply(allow("other.test"))
			if n := connecting(t, port); n > 0 {
				t.Errorf("%d connects are under way after the switch", n)
			}
			_ = client.CloseWrite()
			_, _ = io.ReadAll(client)
			r.wantConnections(0)
		})
	}
}

// A connect that the switch allows goes on.
func TestSwitchLeavesConnects(t *testing.T) {
	known := names{"ok.test": {"127.0.0.1"}}
	for name, says := range map[string]string{
		"connect": "CONNECT ok.test:PORT HTTP/1.1\r\n\r\n",
		"http":    "GET http://ok.test:PORT/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			port, free := busyListener(t, func(c net.Conn) {
				_, _ = c.Read(make([]byte, 1024)) // an answer before the request is none
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			})
			r := start(t, `"public"`, Config{Hosts: known.hosts, Workers: 1})
			client := r.dial()
			if _, err := io.WriteString(client, strings.ReplaceAll(says, "PORT", port)); err != nil {
				t.Fatal(err)
			}
			r.await("no connect begins", func() bool { return connecting(t, port) > 0 })
			r.apply(allow("ok.test"))
			if n := connecting(t, port); n != 1 {
				t.Errorf("%d connects are under way after the switch, want 1", n)
			}
			free()
			_ = client.CloseWrite()
			if text, _ := io.ReadAll(client); !strings.HasPrefix(string(text), "HTTP/1.1 200 ") {
				t.Errorf("the answer is %q", text)
			}
		})
	}
}

// What an HTTP client that has gone had said does not go on behind a receipt either.
func TestSwitchStopsWhatAnUploadLeft(t *testing.T) {
	const bulk = 64 << 10
	for name, c := range map[string]struct{ head, rest string }{
		"to-proxy":  {"POST http://127.0.0.1:PORT/ HTTP/1.1\r\nHost: x\r\nContent-Length: " + strconv.Itoa(2*bulk) + "\r\n\r\n", ""},
		"in-tunnel": {"CONNECT 127.0.0.1:PORT HTTP/1.1\r\n\r\n", "POST / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: " + strconv.Itoa(2*bulk) + "\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			read := make(chan struct{})
			got := make(chan int64, 1)
			small := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
				return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
			}}
			l, err := small.Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_, port, _ := net.SplitHostPort(l.Addr().String())
			serveOn(t, l, func(c net.Conn) {
				<-read
				n, _ := io.Copy(io.Discard, c)
				got <- n
			})
			r := start(t, allow("127.0.0.1"), Config{Workers: 1})
			client := r.dial()
			if _, err := io.WriteString(client, strings.ReplaceAll(c.head, "PORT", port)); err != nil {
				t.Fatal(err)
			}
			if c.rest != "" {
				if _, err := io.ReadFull(client, make([]byte, len(established))); err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(client, strings.ReplaceAll(c.rest, "PORT", port))
			}
			if _, err := client.Write(make([]byte, bulk)); err != nil {
				t.Fatal(err)
			}
			r.await("the upload is not passed on", func() bool {
				n := uint64(0)
				for _, u := range r.session.web.all() {
					n += u.moved.Load()
				}
				return n >= bulk
			})
			_ = client.SetLinger(0)
			client.Close()
			r.awaitLeft()
			r.apply(`"no-network"`)
			close(read)
			if n := <-got; n > bulk/2 {
				t.Errorf("%d of %d bytes arrived", n, bulk)
			}
			r.wantConnections(0)
		})
	}
}
