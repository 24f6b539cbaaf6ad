package proxy

import (
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	w := r.server.workers[0]
	deadline := time.Now().Add(10 * time.Second)
	for found := false; !found; {
		if time.Now().After(deadline) {
			r.Fatalf("no connection is in state %d", in)
		}
		if err := w.Do(r.Context(), func() {
			for _, c := range w.all() {
				found = found || c.state == in
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
			free()
			_ = client.CloseWrite()
			_, _ = io.ReadAll(client)
			if text := <-got; (text == hello) != c.passes || text != "" && !c.passes {
				t.Errorf("%d bytes came out, passing is %v", len(text), c.passes)
			}
		})
	}
}
