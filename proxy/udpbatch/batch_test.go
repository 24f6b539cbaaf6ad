package udpbatch

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func listen(t *testing.T, network, address string) (*net.UDPConn, int) {
	t.Helper()
	conn, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, descriptor(t, conn)
}

func descriptor(t *testing.T, conn *net.UDPConn) int {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var fd int
	if err := raw.Control(func(f uintptr) { fd = int(f) }); err != nil {
		t.Fatal(err)
	}
	return fd
}

// port returns the port that conn is bound to.
func port(conn *net.UDPConn) uint16 { return conn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// wait returns when conn has something to read.
func wait(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAnswerLeavesFromWhereItWasAsked sends to addresses of the loopback device other than the one that the kernel
// would choose as source.
func TestAnswerLeavesFromWhereItWasAsked(t *testing.T) {
	tests := []struct {
		name, network, listen, ask string
		early                      bool // it was asked before WantLocal
	}{
		{"v4", "udp4", "127.0.0.1:0", "127.0.0.1", false},
		{"v4-any-address", "udp4", "0.0.0.0:0", "127.0.0.9", false},
		{"v4-any-address-early", "udp4", "0.0.0.0:0", "127.0.0.9", true},
		{"v6", "udp6", "[::1]:0", "::1", false},
		{"v6-any-address", "udp6", "[::]:0", "::1", false},
		{"v6-any-address-early", "udp6", "[::]:0", "::1", true},
		{"v4-on-dual-stack", "udp", "[::]:0", "127.0.0.9", false},
		{"v4-on-dual-stack-early", "udp", "[::]:0", "127.0.0.9", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server, fd := listen(t, tt.network, tt.listen)
			if !tt.early {
				if err := WantLocal(fd); err != nil {
					t.Fatal(err)
				}
			}
			to := netip.AddrPortFrom(netip.MustParseAddr(tt.ask), port(server))
			client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) // hears that address only
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := client.Write([]byte("ask")); err != nil {
				t.Fatal(err)
			}
			wait(t, server)
			if tt.early {
				if err := WantLocal(fd); err != nil {
					t.Fatal(err)
				}
			}
			r, w := NewReader(), new(Writer)
			n, err := r.Read(fd, true)
			if n != 1 || err != nil || string(r.Packet(0)) != "ask" {
				t.Fatalf("read %d packets, %v", n, err)
			}
			if got, want := r.Peer(0).AddrPort(), client.LocalAddr().(*net.UDPAddr).AddrPort(); got != want {
				t.Errorf("peer is %v, want %v", got, want)
			}
			w.Add(append(w.Scratch(), "answer"...), r.Peer(0))
			if err := w.Flush(fd); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 10)
			if n, err := client.Read(b); err != nil || string(b[:n]) != "answer" {
				t.Errorf("read %q, %v", b[:n], err)
			}
		})
	}
}

func TestBatch(t *testing.T) {
	server, fd := listen(t, "udp4", "127.0.0.1:0")
	_, from := listen(t, "udp4", "127.0.0.1:0")
	to := Peer{addrLen: unix.SizeofSockaddrInet4}
	to.addr.Family = unix.AF_INET
	a := &to.addr
	a.Port = networkOrder(port(server))
	a.Flowinfo = networkOrder32(127<<24 | 1) // where the IPv4 address lies

	w, want := new(Writer), []string{}
	for i := 0; !w.Full(); i++ {
		packet := strings.Repeat("x", i+1)
		w.Add([]byte(packet), &to)
		want = append(want, packet)
	}
	if err := w.Flush(from); err != nil || !w.Empty() {
		t.Fatal(err)
	}
	w.Add(make([]byte, PacketSize+1), &to)
	if err := w.Flush(from); err != nil {
		t.Fatal(err)
	}

	r := NewReader()
	var got []string
	for len(got) < len(want)+1 {
		wait(t, server)
		n, err := r.Read(fd, true)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			got = append(got, string(r.Packet(i)))
			if last := len(got) == len(want)+1; r.Truncated(i) != last {
				t.Errorf("packet %d: truncated is %v", len(got), !last)
			}
		}
	}
	if !slices.Equal(got[:len(want)], want) {
		t.Errorf("packets differ: %q", got)
	}
	if _, err := r.Read(fd, true); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("an empty socket gives %v", err)
	}
}

func networkOrder32(v uint32) uint32 {
	return uint32(networkOrder(uint16(v>>16))) | uint32(networkOrder(uint16(v)))<<16
}

func TestFlushGoesOnAfterABadPacket(t *testing.T) {
	server, fd := listen(t, "udp4", "127.0.0.1:0")
	client, err := net.DialUDP("udp4", nil, server.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("ask")); err != nil {
		t.Fatal(err)
	}
	wait(t, server)
	r, w := NewReader(), new(Writer)
	if _, err := r.Read(fd, true); err != nil {
		t.Fatal(err)
	}
	bad := *r.Peer(0)
	bad.addr.Port = 0 // EINVAL
	w.Add([]byte("lost"), &bad)
	w.Add([]byte("good"), r.Peer(0))
	if err := w.Flush(fd); !errors.Is(err, unix.EINVAL) {
		t.Errorf("flush reports %v, want EINVAL", err)
	}
	b := make([]byte, 10)
	if n, err := client.Read(b); err != nil || string(b[:n]) != "good" {
		t.Errorf("read %q, %v", b[:n], err)
	}
}
