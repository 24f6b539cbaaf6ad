package outgoing

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder notes what it is told, and fails where it is to.
type recorder struct {
	calls        []string
	from         uint16
	open, opened error
}

func (r *recorder) Open(_ netip.AddrPort, from uint16) error {
	r.calls, r.from = append(r.calls, "open"), from
	return r.open
}

func (r *recorder) Opened(_ netip.AddrPort, from uint16) error {
	r.calls = append(r.calls, "opened")
	if from != r.from {
		r.calls = append(r.calls, "of another port")
	}
	return r.opened
}

func (r *recorder) want(t *testing.T, calls ...string) {
	t.Helper()
	if len(r.calls) != len(calls) {
		t.Fatalf("got %v, want %v", r.calls, calls)
	}
	for i := range calls {
		if r.calls[i] != calls[i] {
			t.Fatalf("got %v, want %v", r.calls, calls)
		}
	}
}

var families = map[string]string{"ipv4": "127.0.0.1:0", "ipv6": "[::1]:0"}

func TestConnect(t *testing.T) {
	broken := errors.New("broken")
	for name, at := range families {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		there := netip.MustParseAddrPort(l.Addr().String())
		for _, tt := range []struct {
			name         string
			open, opened error
			want         error
			calls        []string
		}{
			{"works", nil, nil, nil, []string{"open", "opened"}},
			{"cannot_open", broken, nil, broken, []string{"open"}},
			{"cannot_take_back", nil, broken, broken, []string{"open", "opened"}},
		} {
			t.Run(name+"_"+tt.name, func(t *testing.T) {
				r := &recorder{open: tt.open, opened: tt.opened}
				s := &Sockets{Announcer: r}
				fd := socket(t, there)
				if err := s.Connect(fd, there); !errors.Is(err, tt.want) {
					t.Errorf("error %v, want %v", err, tt.want)
				}
				r.want(t, tt.calls...)

				r = &recorder{open: tt.open, opened: tt.opened}
				s.Announcer = r
				c, err := s.DialTCP(t.Context(), there)
				if !errors.Is(err, tt.want) || (c == nil) != (tt.want != nil) {
					t.Errorf("DialTCP: error %v, want %v", err, tt.want)
				}
				if c != nil {
					if got := netip.MustParseAddrPort(c.LocalAddr().String()).Port(); got != r.from {
						t.Errorf("from port %d, announced %d", got, r.from)
					}
					c.Close()
				}
				r.want(t, tt.calls...)
			})
		}
	}
}

func socket(t *testing.T, to netip.AddrPort) int {
	t.Helper()
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// Where nobody listens, the error is connect's, and nothing is left announced.
func TestConnectRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := netip.MustParseAddrPort(l.Addr().String())
	l.Close()
	r := new(recorder)
	s := &Sockets{Announcer: r}
	fd := socket(t, nobody)
	if err := s.Connect(fd, nobody); err != unix.ECONNREFUSED {
		t.Errorf("error %v, want connect's", err)
	}
	r.want(t, "open", "opened")
	if _, err := s.DialTCP(t.Context(), nobody); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("DialTCP: error %v, want connect's", err)
	}
	r.want(t, "open", "opened", "open", "opened")
}

// A socket of UDP is announced for as long as it is open.
func TestDialUDP(t *testing.T) {
	for name, at := range families {
		t.Run(name, func(t *testing.T) {
			server, err := net.ListenPacket("udp", at)
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			r := new(recorder)
			s := &Sockets{Announcer: r}
			c, release, err := s.DialUDP(netip.MustParseAddrPort(server.LocalAddr().String()))
			if err != nil {
				t.Fatal(err)
			}
			if got := c.LocalAddr().(*net.UDPAddr).AddrPort().Port(); got != r.from {
				t.Errorf("from port %d, announced %d", got, r.from)
			}
			r.want(t, "open")
			c.Close()
			if err := release(); err != nil {
				t.Error(err)
			}
			r.want(t, "open", "opened")
		})
	}
}

// Sockets have the mark before they send. Without the right to set it there is no connection.
func TestMark(t *testing.T) {
	const mark = 0xfeedface
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there := netip.MustParseAddrPort(l.Addr().String())
	fd := socket(t, there)
	may := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1)
	r := new(recorder)
	err = (&Sockets{Announcer: r, Mark: mark}).Connect(fd, there)
	if !errors.Is(err, may) {
		t.Fatalf("error %v, want %v", err, may)
	}
	if may != nil {
		r.want(t)
		return
	}
	if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK); err != nil || uint32(got) != mark {
		t.Errorf("mark %#x, %v; want %#x", uint32(got), err, uint32(mark))
	}
}

// Without Sockets, connections are anybody's.
func TestNobodyToTell(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there := netip.MustParseAddrPort(l.Addr().String())
	var s *Sockets
	fd := socket(t, there)
	if err := s.Connect(fd, there); err != nil {
		t.Error(err)
	}
	c, err := s.DialTCP(t.Context(), there)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	u, release, err := s.DialUDP(there)
	if err != nil {
		t.Fatal(err)
	}
	u.Close()
	if err := release(); err != nil {
		t.Error(err)
	}
}
