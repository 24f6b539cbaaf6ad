package proxy

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/matcher"
	"sluice/proxy/poll"
)

// sockets makes sockets that connect without another descriptor.
func sockets(t *testing.T, n int) (all []int) {
	t.Helper()
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		all = append(all, fd)
	}
	return all
}

// ask connects and sends a request.
func ask(t *testing.T, fd int, proxy, request string) {
	t.Helper()
	to := netip.MustParseAddrPort(proxy)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte(request)); err != nil {
		t.Fatal(err)
	}
}

// answer reads the status of an answer, without a descriptor more.
func answer(t *testing.T, fd int) string {
	t.Helper()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := unix.Read(fd, b)
	for err == unix.EINTR { // signals of the runtime end reads with a time limit (signal(7))
		n, err = unix.Read(fd, b)
	}
	if err != nil || n < 12 {
		t.Fatalf("answer %q, %v", b[:max(n, 0)], err)
	}
	return string(b[9:12])
}

// useUp lets the process have no descriptor more until the function that it returns is called.
func useUp(t *testing.T) (free func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	free = func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(free)
	// The lowest free descriptor is the limit; those above it stay open.
	lowest, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(lowest)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(lowest), Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	return free
}

// Case L-34: whoever cannot be served is told, whatever it is that there is none of.
func TestNoDescriptorLeft(t *testing.T) {
	const request = "CONNECT evil.test:1 HTTP/1.1\r\n\r\n"
	r := start(t, allow("127.0.0.1"), Config{Workers: 1})
	clients := sockets(t, 5)
	free := useUp(t)
	for range 2 { // the spare descriptor can be given up again and again
		ask(t, clients[0], r.address, request)
		if status := answer(t, clients[0]); status != "503" {
			t.Errorf("%s, want 503", status)
		}
		clients = clients[1:]
	}
	// Another thread may take the spare one at the wrong moment. Then clients wait until there is one.
	acceptor := r.acceptor()
	if err := r.server.workers[0].Do(t.Context(), func() {
		unix.Close(acceptor.spare)
		acceptor.spare = -1
	}); err != nil {
		t.Fatal(err)
	}
	taken, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(taken)
	for _, c := range clients {
		ask(t, c, r.address, request)
	}
	if err := r.server.workers[0].Do(t.Context(), func() {}); err != nil {
		t.Fatal(err)
	}
	free()
	for _, c := range clients {
		if status := answer(t, c); status != "403" {
			t.Errorf("%s, want 403", status)
		}
	}
}

// acceptor is that of the only listener.
func (r *rig) acceptor() (a *acceptor) {
	r.Helper()
	for _, w := range r.server.workers {
		if err := w.Do(r.Context(), func() {
			w.Each(func(h poll.Handler) {
				if one, ok := h.(*acceptor); ok {
					a = one
				}
			})
		}); err != nil {
			r.Fatal(err)
		}
	}
	return a
}

// wantNothingKept wants every buffer and pipe given back.
func (r *rig) wantNothingKept() {
	r.Helper()
	for i, w := range r.server.workers {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			var kept, used int64
			if err := w.Do(r.Context(), func() {
				w.reap()
				kept, used = w.kept, int64(w.pipes.live-len(w.pipes.idle))
			}); err != nil {
				r.Fatal(err)
			}
			if kept == 0 && used == 0 {
				break
			}
			if time.Now().After(deadline) {
				r.Errorf("event loop %d: %d bytes and %d pipes are in use", i, kept, used)
				break
			}
		}
	}
}

// Clients that make the proxy keep much are turned away before it dies for want of memory, and nobody else is.
func TestMemory(t *testing.T) {
	const clients = 50
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1"), Config{Workers: 1, Memory: 8 * 300 << 10})
	open, _ := r.connect("127.0.0.1:"+port, "")
	wantEcho(t, open, "\x00")
	long := "CONNECT " + strings.Repeat("a", 30<<10)
	var heads []client
	for range clients {
		c := r.open()
		if _, err := io.WriteString(c.TCPConn, long); err != nil {
			t.Fatal(err)
		}
		heads = append(heads, c)
	}
	busy := 0
	for _, c := range heads {
		_ = c.CloseWrite()
		if response, err := http.ReadResponse(c.Reader, nil); err == nil {
			wantRefused(t, response, http.StatusServiceUnavailable, reasonCapacity)
			busy++
		}
	}
	if busy == 0 || busy == clients {
		t.Errorf("%d of %d clients were turned away", busy, clients)
	}
	r.wantConnections(1)
	r.wantNothingKept()

	for range clients {
		r.connect("127.0.0.1:"+port, "\x16\x03\x01\x3f\x00\x01\x00\x3e\xfc"+strings.Repeat("\x03", 15<<10))
	}
	cut := &r.session.tally.connections
	for deadline := time.Now().Add(10 * time.Second); cut.at(connectionKey{0, protocolConnect, refused, reasonCapacity}).Load() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no tunnel was cut")
		}
		time.Sleep(time.Millisecond)
	}
	if r.session.flows.Load() < 2 {
		t.Error("all tunnels were cut")
	}
	wantEcho(t, open, "still there")
}

// What the proxy itself lacks is told apart from what is wrong with an upstream: it is worth another try.
func TestDialFailures(t *testing.T) {
	for _, row := range []struct {
		err    error
		status int
		reason matcher.Reason
	}{
		{unix.EMFILE, statusBusy, reasonCapacity},
		{unix.ENOMEM, statusBusy, reasonCapacity},
		{unix.EADDRNOTAVAIL, statusBusy, reasonCapacity},
		{unix.EADDRINUSE, statusBusy, reasonCapacity},
		{unix.ECONNREFUSED, statusGateway, reasonDialRefused},
		{unix.ETIMEDOUT, statusTimeout, reasonDialTimeout},
		{unix.ENETUNREACH, statusGateway, reasonUnreachable},
	} {
		if status, reason := dialFailure(&net.OpError{Op: "dial", Err: row.err}); status != row.status || reason != row.reason {
			t.Errorf("%v: %d %s, want %d %s", row.err, status, reason, row.status, row.reason)
		}
	}
}

// A refused client that goes on sending is cut off, so that it costs nobody else anything for long.
func TestRefusedClientThatGoesOn(t *testing.T) {
	r := start(t, allow("127.0.0.1"), Config{})
	c, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "CONNECT evil.test:443 HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	const most = 32 << 20 // more than all buffers of both sockets
	junk := make([]byte, 64<<10)
	for sent := 0; sent < most; sent += len(junk) {
		if _, err := c.Write(junk); err != nil {
			return
		}
	}
	t.Errorf("%d bytes were taken after the refusal", most)
}
