package control

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
)

// pair is a connected pair of "unixpacket" connections.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

func pipeEnds(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestPassListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	a, b := pair(t)
	explicit := netip.MustParseAddrPort("[::1]:9047")
	if err := SendListener(a, Descriptor{Session: "s1", Kind: KindTCP, Set: 1 << 63, Explicit: explicit, File: f}); err != nil {
		t.Fatal(err)
	}
	l.Close()
	f.Close() // from here on the receiver holds the only descriptor
	got, err := ReceiveListener(b)
	if err != nil {
		t.Fatal(err)
	}
	if got.Session != "s1" || got.Kind != KindTCP || got.Set != 1<<63 || got.Explicit != explicit {
		t.Errorf("got %+v", got)
	}
	if flags, err := fcntl(got.File, syscall.F_GETFD); err != nil || flags&syscall.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v: want close-on-exec", flags, err)
	}
	passed, err := net.FileListener(got.File)
	got.File.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close()
	accepted := make(chan error, 1)
	go func() {
		c, err := passed.Accept()
		if err == nil {
			c.Close()
		}
		accepted <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
}

// The sender may be the one that still accepts on the socket: its mode must stay as it was.
func TestSendKeepsNonBlocking(t *testing.T) {
	r, _ := pipeEnds(t)
	a, _ := pair(t)
	if err := SendListener(a, Descriptor{Session: "s1", Kind: KindTCP, File: r}); err != nil {
		t.Fatal(err)
	}
	raw, err := r.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var flags uintptr
	raw.Control(func(fd uintptr) { flags, _, _ = syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL, 0) })
	if flags&syscall.O_NONBLOCK == 0 {
		t.Error("the descriptor has become blocking")
	}
}

func fcntl(f *os.File, command uintptr) (uintptr, error) {
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), command, 0)
	if errno != 0 {
		return 0, errno
	}
	return flags, nil
}

func TestManyInOrder(t *testing.T) {
	a, b := pair(t)
	r, _ := pipeEnds(t)
	for _, s := range []string{"s1", "s2", "s3"} {
		if err := SendListener(a, Descriptor{Session: s, Kind: KindUDP, File: r}); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	for _, want := range []string{"s1", "s2", "s3"} {
		got, err := ReceiveListener(b)
		if err != nil || got.Session != want {
			t.Fatalf("got %q, %v, want %q", got.Session, err, want)
		}
		got.File.Close()
	}
	if _, err := ReceiveListener(b); err != io.EOF {
		t.Errorf("got %v, want io.EOF", err)
	}
}

// What is not exactly one descriptor with one well-formed text is refused, and no descriptor stays behind.
func TestBadMessages(t *testing.T) {
	const fine = `{"session":"s1","kind":"tcp"}`
	for _, row := range []struct {
		name, text string
		fds        int
		want       string
	}{
		{"none", fine, 0, "0 descriptors"},
		{"two", fine, 2, "2 descriptors"},
		{"full", fine, maxMessageFDs, "16 descriptors"},
		{"more-than-fit", fine, maxMessageFDs + 5, "more than 16"},
		{"long", `{"session":"` + strings.Repeat("x", maxMessageBytes) + `","kind":"tcp"}`, 1, "longer than"},
		{"no-kind", `{"session":"s1"}`, 1, "no kind"},
		{"unknown", `{"session":"s1","kind":"tcp","x":1}`, 1, "unknown field"},
		{"repeated", `{"kind":"tcp","kind":"udp"}`, 1, "repeated"},
		{"not-json", `tcp`, 1, "not JSON"},
		{"two-objects", fine + fine, 1, "bytes after"},
	} {
		t.Run(row.name, func(t *testing.T) {
			a, b := pair(t)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var rights []byte
			if row.fds > 0 {
				fds := make([]int, row.fds)
				for i := range fds {
					fds[i] = int(w.Fd())
				}
				rights = syscall.UnixRights(fds...)
			}
			if _, _, err := a.WriteMsgUnix([]byte(row.text), rights, nil); err != nil {
				t.Fatal(err)
			}
			w.Close()
			got, err := ReceiveListener(b)
			if err == nil || !strings.Contains(err.Error(), row.want) || got.File != nil {
				t.Errorf("got %v, %v, want an error with %q and no file", got, err, row.want)
			}
			// The pipe ends when nobody holds its writing end any more.
			if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("a descriptor is still open: %v", err)
			}
		})
	}
}

func TestSendErrors(t *testing.T) {
	a, b := pair(t)
	r, _ := pipeEnds(t)
	if err := SendListener(a, Descriptor{Session: strings.Repeat("x", maxMessageBytes), Kind: KindTCP, File: r}); err == nil {
		t.Error("a message that the receiver would refuse was sent")
	}
	b.Close()
	if err := SendListener(a, Descriptor{Session: "s1", Kind: KindTCP, File: r}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("got %v, want EPIPE", err)
	}
	r.Close()
	if err := SendListener(a, Descriptor{Session: "s1", Kind: KindTCP, File: r}); err == nil {
		t.Error("a closed file was sent")
	}
}

func TestAcknowledgements(t *testing.T) {
	a, b := pair(t)
	if err := errors.Join(Acknowledge(b, nil), Acknowledge(b, errors.New("no TCP")), Acknowledge(b, errors.New(strings.Repeat("x", maxMessageBytes)))); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if err := ReadAcknowledgement(a); err != nil {
		t.Errorf("got %v, want none", err)
	}
	if err := ReadAcknowledgement(a); !errors.Is(err, ErrNotTaken) || !strings.Contains(err.Error(), "no TCP") {
		t.Errorf("got %v, want a refusal that says why", err)
	}
	if err := ReadAcknowledgement(a); !errors.Is(err, ErrNotTaken) {
		t.Errorf("got %v, want a refusal", err)
	}
	if err := ReadAcknowledgement(a); err != io.EOF {
		t.Errorf("got %v, want io.EOF", err)
	}
}
