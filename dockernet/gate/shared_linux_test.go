package gate

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/policy"
)

// secret is the mark of the sidecar's sockets in these tests.
const secret = 0x5eca3e71

// shared is a lab with the sidecar inside of the workload's namespace, and without a guard.
func newShared(t *testing.T) (*lab, *Own) {
	l := newLab(t, false)
	own := NewOwn(l.workload.Namespace)
	t.Cleanup(own.Close)
	return l, own
}

func (l *lab) installShared(t *testing.T, s *Spec) {
	t.Helper()
	s.Shared = &Shared{Mark: secret}
	l.install(t, s)
}

// The kernel has what nft makes of the rules for a shared namespace.
func TestSharedListing(t *testing.T) {
	s := example(true, threeOf(t, phaseOf(t, "allowlist", "ok.test", "192.0.2.5")))
	s.Shared = &Shared{Mark: secret}
	kernelHasListing(t, s)
}

// ours opens a connection as the sidecar does, with a mark, told to the rules or not.
func ours(t *testing.T, l *lab, own *Own, network, to string, mark int) (string, net.Conn) {
	t.Helper()
	at := netip.MustParseAddrPort(to)
	var c net.Conn
	var answer string
	l.workload.Run(t, func() error {
		family, address := socketAddress(at)
		kind := unix.SOCK_STREAM
		if network == "udp" {
			kind = unix.SOCK_DGRAM
		}
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if mark != 0 {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
				return err
			}
		}
		limit := unix.NsecToTimeval(patience.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil { // of connect too
			return err
		}
		any := unix.Sockaddr(&unix.SockaddrInet4{})
		if at.Addr().Is6() {
			any = &unix.SockaddrInet6{}
		}
		if err := unix.Bind(fd, any); err != nil {
			return err
		}
		local, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		var port uint16
		switch a := local.(type) {
		case *unix.SockaddrInet4:
			port = uint16(a.Port)
		case *unix.SockaddrInet6:
			port = uint16(a.Port)
		}
		if own != nil {
			if err := own.Open(at, port); err != nil {
				return err
			}
		}
		err = unix.Connect(fd, address)
		if own != nil && network == "tcp" {
			if err := own.Opened(at, port); err != nil {
				return err
			}
		}
		if err != nil {
			answer = outcome(err)
			return nil
		}
		c, err = connOf(fd)
		if err == nil {
			t.Cleanup(func() { c.Close() })
			answer = exchange(c)
		}
		if own != nil && network == "udp" {
			return own.Opened(at, port)
		}
		return err
	})
	return answer, c
}

// end sends the end of all that is sent, behind it, as the sidecar does.
func end(t *testing.T, l *lab, own *Own) {
	t.Helper()
	_, c := ours(t, l, own, "udp", "192.0.2.53:53", secret)
	if c == nil {
		t.Fatal("the sidecar cannot send")
	}
	if _, err := c.Write([]byte("the end")); err != nil {
		t.Fatal(err)
	}
}

// The sidecar's own connections pass, and go on when the rules have forgotten how they began. The workload's do not,
// neither with the sidecar's mark nor with the ports of its connections.
func TestSharedOwnConnections(t *testing.T) {
	l, own := newShared(t)
	_, asked := l.engine(t)
	l.installShared(t, l.spec(t, l.listen(t), phaseOf(t, "allowlist", "ok.test"), phaseOf(t, "no-network")))
	for _, tt := range []struct {
		name, network, to string
		own               *Own
		mark              int
		want              string
	}{
		{"tcp", "tcp", "192.0.2.200:80", own, secret, "direct"},
		{"tcp-ipv6", "tcp", "[2001:db8:2::200]:443", own, secret, "direct"},
		{"engine", "udp", "127.0.0.11:53", own, secret, "engine"},
		{"server", "udp", "192.0.2.53:53", own, secret, "direct"},
		{"mark-alone", "tcp", "192.0.2.200:80", nil, secret, "proxy"},
		{"mark-alone-udp", "udp", "192.0.2.200:80", nil, secret, "refused"},
		{"mark-alone-engine", "udp", "127.0.0.11:53", nil, secret, "dns"},
		{"told-without-mark", "tcp", "192.0.2.200:80", own, 0, "proxy"},
		{"told-with-another-mark", "tcp", "192.0.2.200:80", own, 114514, "proxy"},
		{"told-without-mark-udp", "udp", "192.0.2.200:80", own, 0, "refused"},
	} {
		got, c := ours(t, l, tt.own, tt.network, tt.to, tt.mark)
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if c != nil && tt.want == "direct" {
			if got := exchange(c); got != "direct" {
				t.Errorf("%s goes on with %s", tt.name, got)
			}
		}
	}
	for len(asked) > 1 {
		<-asked
	}

	// Segments and datagrams that the workload makes itself belong to the sidecar's connections, by their addresses.
	_, c := ours(t, l, own, "tcp", "192.0.2.200:80", secret)
	_, question := ours(t, l, own, "udp", "192.0.2.53:53", secret)
	tap := newTap(t, l.outside, "eth0")
	l.workload.Run(t, func() error {
		from := func(c net.Conn) netip.AddrPort { return netip.MustParseAddrPort(c.LocalAddr().String()) }
		to := netip.MustParseAddrPort("192.0.2.200:80")
		_ = sendRaw(tcp4(from(c), to, 1, 1, 0x18, "forged segment"), nil)
		_ = sendRaw(ip4{from: own4, to: netip.MustParseAddr("192.0.2.53"), protocol: unix.IPPROTO_UDP}.packet(udp(from(question).Port(), 53, "forged question")), nil)
		return nil
	})
	end(t, l, own)
	for _, p := range tap.until(t, "the end") {
		if bytes.Contains(p, []byte("forged segment")) || bytes.Contains(p, []byte("forged question")) {
			t.Errorf("came out: %q", p)
		}
	}

	// All connections end in a quarantine.
	if err := l.gate.Quarantine(); err != nil {
		t.Fatal(err)
	}
	if got := exchange(c); got == "direct" {
		t.Error("the sidecar's connection goes on in a quarantine")
	}
	if got, _ := ours(t, l, own, "tcp", "192.0.2.200:80", secret); got != "refused" {
		t.Errorf("a connection in a quarantine: %s", got)
	}
	if err := l.gate.Switch(policy.Run); err != nil {
		t.Fatal(err)
	}
	if got, _ := ours(t, l, own, "tcp", "192.0.2.200:80", secret); got != "direct" {
		t.Errorf("a connection after a quarantine: %s", got)
	}
}

// Without a guard, nothing else gets out either: the attempts of TestNothingGetsPast, frames, and answers to somebody
// who was never there.
func TestSharedNothingGetsPast(t *testing.T) {
	all := append(attempts(),
		attempt{"frame", true, func(text string) error {
			return sendFrameOf("eth0", ip4{from: own4, to: bad4, protocol: unix.IPPROTO_UDP}.packet(udp(1234, 80, text)))
		}},
		attempt{"answer_to_a_frame_on_the_loopback", true, inTurn(func(string) error {
			return sendFrameOf("lo", ip4{from: bad4, to: own4, protocol: unix.IPPROTO_UDP}.packet(udp(80, 4321, "first")))
		}, func(text string) error {
			return sendUDP(netip.AddrPortFrom(bad4, 80), "", func(fd int) error { return unix.Bind(fd, &unix.SockaddrInet4{Port: 4321, Addr: own4.As4()}) })(text)
		})})
	for _, tt := range []struct {
		name, mode string
		targets    []string
	}{
		{"public", "public", nil},
		{"no-network", "no-network", nil},
		{"allowlist", "allowlist", []string{good4.String(), good6.String(), "ok.test"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, own := newShared(t)
			l.installShared(t, l.spec(t, l.listen(t), phaseOf(t, tt.mode, tt.targets...)))
			l.neighbours(t)
			tap := newTap(t, l.outside, "eth0")
			for i, a := range all {
				open := a.name == "answer_to_a_frame_on_the_loopback" // to an address that public allows anyway
				if tt.mode == "public" && (!a.public || open) {
					continue
				}
				l.workload.Run(t, func() error { _ = a.send(leak(i)); return nil })
			}
			end(t, l, own)
			for i := range leaked(tap.until(t, "the end")) {
				t.Errorf("came out: %s", all[i].name)
			}
		})
	}
}

// Frames with a false source do come in by the loopback where the rules for a shared namespace are missing.
func TestLoopbackFrames(t *testing.T) {
	for name, mine := range map[string]*Shared{"own-namespace": nil, "shared": {Mark: secret}} {
		t.Run(name, func(t *testing.T) {
			l, _ := newShared(t)
			s := l.spec(t, l.listen(t), phaseOf(t, "allowlist", "ok.test"))
			s.Shared = mine
			l.install(t, s)
			var got string
			l.workload.Run(t, func() error {
				c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: own4.AsSlice(), Port: 4321})
				if err != nil {
					return err
				}
				defer c.Close()
				if err := sendFrameOf("lo", ip4{from: bad4, to: own4, protocol: unix.IPPROTO_UDP}.packet(udp(80, 4321, "forged"))); err != nil {
					return err
				}
				// Behind it, from an address of its own.
				end, err := net.DialUDP("udp4", nil, c.LocalAddr().(*net.UDPAddr))
				if err != nil {
					return err
				}
				defer end.Close()
				if _, err := end.Write([]byte("the end")); err != nil {
					return err
				}
				buffer := make([]byte, 64)
				n, _, err := c.ReadFrom(buffer)
				got = string(buffer[:n])
				return err
			})
			if want := map[bool]string{true: "forged", false: "the end"}[mine == nil]; got != want {
				t.Errorf("%q came first, want %q", got, want)
			}
		})
	}
}

// A kernel that cannot refuse frames has no other policy than public, where no guard stands behind the gate.
func TestSharedWithoutFrames(t *testing.T) {
	for _, tt := range []struct {
		name           string
		mode           string
		shared, unheld bool
		refused        bool
	}{
		{"held", "no-network", true, false, false},
		{"unheld", "no-network", true, true, true},
		{"unheld-public", "public", true, true, false},
		{"unheld-with-a-guard", "no-network", false, true, false},
	} {
		s := &Spec{Spec: direct.Spec{Phases: threeOf(t, phaseOf(t, tt.mode), phaseOf(t, tt.mode), phaseOf(t, tt.mode))}}
		if tt.shared {
			s.Shared = &Shared{Mark: secret}
		}
		if err := s.checkFrames(tt.unheld); tt.refused != errors.Is(err, ErrFrames) || !tt.refused && err != nil {
			t.Errorf("%s: %v, want it refused: %v", tt.name, err, tt.refused)
		}
	}
	if err := (&Shared{}).check(); err == nil {
		t.Error("no error for a mark that all sockets have")
	}
}

// sendFrameOf sends an IPv4 packet as a frame of the workload's own, to whoever is on the link.
func sendFrameOf(device string, packet []byte) error {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: networkOrder(unix.ETH_P_IP), Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	if device == "lo" {
		to.Addr = [8]byte{}
	}
	return unix.Sendto(fd, packet, 0, to)
}

// connOf makes a connection of a socket, which stays the caller's.
func connOf(fd int) (net.Conn, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	return net.FileConn(f)
}
