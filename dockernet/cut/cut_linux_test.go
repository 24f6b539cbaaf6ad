package cut

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
)

// Idle connections end, with a reset for the far end, and others do not notice.
func TestCutIdle(t *testing.T) {
	for i, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			w := newWorld(t)
			nft(t, w.inside, gateRules)
			serve(t, w.outside, servicePort, beyond...)
			ended := w.farEnd(t, refused[i])

			stay := connect(t, w.inside, "tcp", allowed[i], servicePort)
			stayUDP := connect(t, w.inside, "udp", allowed[i], servicePort)
			goes := connect(t, w.inside, "tcp", refused[i], 7000)
			goesUDP := connect(t, w.inside, "udp", refused[i], servicePort)

			want(t, w.cut(t, w.spec(false)), Report{Ended: 2, Sockets: 2, Entries: 2, HostEntries: 2, Kept: 2})
			aborted(t, "refused TCP", goes)
			aborted(t, "refused UDP", goesUDP)
			if err := <-ended; !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the far end got %v, want a reset", err)
			}
			survives(t, "allowed TCP", stay)
			survives(t, "allowed UDP", stayUDP)
			for _, ns := range []*netnstest.Namespace{w.inside, w.host} {
				if n := entriesTo(t, ns, refused[i]); n != 0 {
					t.Errorf("%d entries to the refused address are left", n)
				}
				if n := entriesTo(t, ns, allowed[i]); n != 2 {
					t.Errorf("%d entries to the allowed address, want 2", n)
				}
			}
			want(t, w.cut(t, w.spec(false)), Report{Kept: 2})
		})
	}
}

// farEnd echoes four bytes of one connection to port 7000 and tells how it ends.
func (w *world) farEnd(t *testing.T, at netip.Addr) <-chan error {
	var l net.Listener
	w.outside.Run(t, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(at, 7000).String())
		return err
	})
	t.Cleanup(func() { l.Close() })
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = io.Copy(c, c)
		ended <- err
	}()
	return ended
}

// A busy upload ends, and what the far end has got does not grow any more.
func TestCutBusy(t *testing.T) {
	w := newWorld(t)
	nft(t, w.inside, gateRules)
	var got atomic.Int64
	var l net.Listener
	w.outside.Run(t, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(refused[0], 7000).String())
		return err
	})
	defer l.Close()
	far := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			far <- err
			return
		}
		defer c.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			got.Add(int64(n))
			if err != nil {
				far <- err
				return
			}
		}
	}()
	var c net.Conn
	w.inside.Run(t, func() (err error) {
		c, err = net.Dial("tcp", netip.AddrPortFrom(refused[0], 7000).String())
		return err
	})
	defer c.Close()
	near := make(chan error, 1)
	go func() {
		b := make([]byte, 64<<10)
		for {
			if _, err := c.Write(b); err != nil {
				near <- err
				return
			}
		}
	}()
	for deadline := time.Now().Add(10 * time.Second); got.Load() < 1<<20; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the upload does not get going")
		}
	}
	want(t, w.cut(t, w.spec(false)), Report{Ended: 1, Sockets: 1, Entries: 1, HostEntries: 1})
	if err := <-near; !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.EPIPE) {
		t.Errorf("the application got %v, want %v", err, unix.ECONNABORTED)
	}
	if err := <-far; !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the far end got %v, want a reset", err)
	}
}

// What is redirected to the proxy carries the original destination in its socket, and yet is the proxy's to judge.
// What does not leave the namespace is nobody's.
func TestCutLeavesRedirectedAndLocal(t *testing.T) {
	w := newWorld(t)
	nft(t, w.inside, gateRules)
	serve(t, w.inside, listenerPort, loopback...)
	serve(t, w.inside, servicePort, inside...)
	for i, family := range []string{"ipv4", "ipv6"} {
		connections := map[string]net.Conn{
			"redirected_tcp": connect(t, w.inside, "tcp", refused[i], proxiedPort),
			"redirected_udp": connect(t, w.inside, "udp", refused[i], proxiedPort),
			"own_address":    connect(t, w.inside, "tcp", own[i], servicePort),
			"loopback":       connect(t, w.inside, "tcp", loopback[i], servicePort),
		}
		s := w.spec(true)
		s.Refused = func(netip.AddrPort, uint8) bool { return true }
		s.RefusedInbound = func(netip.Addr) bool { return true }
		want(t, w.cut(t, s), Report{})
		for name, c := range connections {
			survives(t, family+" "+name, c)
		}
	}
}

// Connections into the container are not the policy's, unless it says so.
func TestCutInbound(t *testing.T) {
	for i, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			w := newWorld(t)
			nft(t, w.inside, gateRules)
			serve(t, w.inside, servicePort, inside...)
			published := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
			var fromRefused net.Conn
			w.outside.Run(t, func() (err error) {
				d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(refused[i], 0))}
				fromRefused, err = d.Dial("tcp", netip.AddrPortFrom(published[i], 80).String())
				return err
			})
			defer fromRefused.Close()
			survives(t, "before", fromRefused)
			fromHost := connect(t, w.host, "tcp", own[i], servicePort)

			got := w.cut(t, w.spec(false))
			want(t, got, Report{Inbound: 2})
			survives(t, "published port", fromRefused)

			got = w.cut(t, w.spec(true))
			want(t, got, Report{Ended: 1, Sockets: 1, Entries: 1, HostEntries: 1, Inbound: 1})
			survives(t, "from the host", fromHost)
			fromRefused.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := fromRefused.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("refused client got %v, want a reset", err)
			}
		})
	}
}

// A server's UDP socket is not connected: only conntrack knows its clients.
func TestCutInboundDatagrams(t *testing.T) {
	w := newWorld(t)
	nft(t, w.inside, gateRules)
	serve(t, w.inside, servicePort, own...)
	for i := range own {
		connect(t, w.host, "udp", own[i], servicePort)
	}
	want(t, w.cut(t, w.spec(true)), Report{})
	s := w.spec(false)
	s.RefusedInbound = func(netip.Addr) bool { return true }
	want(t, w.cut(t, s), Report{Ended: 2, Entries: 2, HostEntries: 2})
}

// Before the gate is there only the host's conntrack knows who opened a connection, and between neighbours nobody
// does.
func TestCutBeforeTheGate(t *testing.T) {
	for i, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			w := newWorld(t)
			serve(t, w.outside, servicePort, beyond...)
			serve(t, w.inside, servicePort, inside...)
			out := connect(t, w.inside, "tcp", refused[i], servicePort)
			outUDP := connect(t, w.inside, "udp", refused[i], servicePort)
			in := connect(t, w.host, "tcp", own[i], servicePort)
			s := w.spec(false)
			s.First = true
			s.Refused = func(netip.AddrPort, uint8) bool { return true }
			// The inbound one's entry goes too, see TestCutForged, and comes back.
			want(t, w.cut(t, s), Report{Ended: 2, Sockets: 2, HostEntries: 3, Inbound: 1, Swept: true})
			aborted(t, "outbound TCP", out)
			aborted(t, "outbound UDP", outUDP)
			survives(t, "inbound", in)

			s.Host = w.outside.Namespace // which has not seen anything of it
			want(t, w.cut(t, s), Report{Ended: 1, Sockets: 1, Swept: true})
			in.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := in.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("a connection of nobody knows whom got %v, want a reset", err)
			}
		})
	}
}

// Dual-stack programs have IPv6 sockets with IPv4 addresses in them.
func TestCutMappedAddresses(t *testing.T) {
	w := newWorld(t)
	nft(t, w.inside, gateRules)
	serve(t, w.outside, servicePort, beyond...)
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		var fd int
		w.inside.Run(t, func() (err error) {
			fd, err = unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, 0)
			return err
		})
		defer unix.Close(fd)
		timeout := unix.Timeval{Sec: 10}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			t.Fatal(err)
		}
		to := &unix.SockaddrInet6{Port: servicePort, Addr: netip.AddrFrom16(refused[0].As16()).As16()}
		if err := unix.Connect(fd, to); err != nil {
			t.Fatal(err)
		}
		b := []byte("ping")
		if _, err := unix.Write(fd, b); err != nil {
			t.Fatal(err)
		}
		read := func() (err error) {
			for err = unix.EINTR; err == unix.EINTR; { // signals of the runtime end reads with a time limit (signal(7))
				_, err = unix.Read(fd, b)
			}
			return err
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
		want(t, w.cut(t, w.spec(false)), Report{Ended: 1, Sockets: 1, Entries: 1, HostEntries: 1})
		if err := read(); err != syscall.Errno(unix.ECONNABORTED) {
			t.Errorf("read: %v, want %v", err, unix.ECONNABORTED)
		}
	}
}

// A UDP socket that is not connected gets datagrams from everybody: after the cut not from a refused address any more,
// for the host has forgotten where to send them.
func TestCutUnconnectedUDP(t *testing.T) {
	for i, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			w := newWorld(t)
			nft(t, w.inside, gateRules)
			var far, near net.PacketConn
			w.outside.Run(t, func() (err error) {
				far, err = net.ListenPacket("udp", netip.AddrPortFrom(refused[i], servicePort).String())
				return err
			})
			defer far.Close()
			w.inside.Run(t, func() (err error) {
				near, err = net.ListenPacket("udp", "[::]:0")
				return err
			})
			defer near.Close()
			b := make([]byte, 16)
			if _, err := near.WriteTo([]byte("ping"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(refused[i], servicePort))); err != nil {
				t.Fatal(err)
			}
			far.SetDeadline(time.Now().Add(10 * time.Second))
			_, from, err := far.ReadFrom(b)
			if err != nil {
				t.Fatal(err)
			}
			near.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := far.WriteTo([]byte("pong"), from); err != nil {
				t.Fatal(err)
			}
			if _, _, err := near.ReadFrom(b); err != nil {
				t.Fatal(err)
			}
			want(t, w.cut(t, w.spec(false)), Report{Ended: 1, Entries: 1, HostEntries: 1})
			// The host itself has been sent the answer now and says that nobody is there.
			if _, err := far.WriteTo([]byte("more"), from); err != nil {
				t.Fatal(err)
			}
			near.SetReadDeadline(time.Now()) // what was sent before is there by now, if at all
			if n, _, err := near.ReadFrom(b); err == nil {
				t.Errorf("got %q from a refused address", b[:n])
			}
		})
	}
}

// Whoever has a raw socket can use entries that no other socket stands for.
func TestCutSweepsForRawSockets(t *testing.T) {
	for name, domain := range map[string]int{"raw": unix.AF_INET, "raw6": unix.AF_INET6, "packet": unix.AF_PACKET} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			nft(t, w.inside, gateRules)
			serve(t, w.outside, servicePort, beyond...)
			connect(t, w.inside, "udp", refused[0], servicePort).Close()
			var fd int
			w.inside.Run(t, func() (err error) {
				fd, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
				return err
			})
			defer unix.Close(fd)
			want(t, w.cut(t, w.spec(false)), Report{Ended: 1, Entries: 1, HostEntries: 1, Swept: true})
		})
	}
}

// Echoes have no ports: they are told apart by what they have instead.
func TestCutEcho(t *testing.T) {
	for i, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			w := newWorld(t)
			nft(t, w.inside, gateRules)
			domain, protocol, kind := unix.AF_INET, unix.IPPROTO_ICMP, byte(8) // RFC 792, RFC 4443 §4.1
			if i == 1 {
				domain, protocol, kind = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128
			}
			var fd int
			w.inside.Run(t, func() (err error) {
				fd, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
				return err
			})
			defer unix.Close(fd)
			for _, to := range []netip.Addr{refused[i], allowed[i]} {
				for _, id := range []byte{7, 8} {
					echo := []byte{kind, 0, 0, 0, 0, id, 0, 1}
					sum := uint16(kind)<<8 + uint16(id) + 1 // ICMPv6's is the kernel's to make
					echo[2], echo[3] = byte(^sum>>8), byte(^sum)
					address := unix.Sockaddr(&unix.SockaddrInet6{Addr: to.As16()})
					if to.Is4() {
						address = &unix.SockaddrInet4{Addr: to.As4()}
					}
					if err := unix.Sendto(fd, echo, 0, address); err != nil {
						t.Fatal(err)
					}
				}
			}
			// The first packet waits for the neighbour's address.
			for deadline := time.Now().Add(10 * time.Second); entriesTo(t, w.host, allowed[i]) < 2 || entriesTo(t, w.host, refused[i]) < 2; {
				if time.Now().After(deadline) {
					t.Fatal("the echoes do not come to the host")
				}
			}
			want(t, w.cut(t, w.spec(false)), Report{Ended: 2, Entries: 2, HostEntries: 2, Swept: true})
			if n := entriesTo(t, w.host, allowed[i]); n != 2 {
				t.Errorf("%d entries to the allowed address are left on the host, want 2", n)
			}
		})
	}
}

func TestCutManySockets(t *testing.T) {
	w := newWorld(t)
	nft(t, w.inside, gateRules)
	serve(t, w.outside, servicePort, beyond...)
	const count = 1000
	for _, network := range []string{"tcp", "udp"} {
		for range count {
			connect(t, w.inside, network, refused[0], servicePort)
		}
		start := time.Now()
		r := w.cut(t, w.spec(false))
		t.Logf("%d %s sockets: %v", count, network, time.Since(start))
		want(t, r, Report{Ended: count, Sockets: count, Entries: count, HostEntries: count})
		start = time.Now()
		w.cut(t, w.spec(false))
		t.Logf("none left: %v", time.Since(start))
	}
}

func TestCutManyEntries(t *testing.T) {
	w := newWorld(t)
	nft(t, w.inside, gateRules)
	// Nobody answers, so that the sender is not slowed down by ICMP.
	nft(t, w.outside, "table inet quiet { chain in { type filter hook input priority 0; meta l4proto udp drop; }; }")
	var near net.PacketConn
	w.inside.Run(t, func() (err error) {
		near, err = net.ListenPacket("udp", "[::]:0")
		return err
	})
	defer near.Close()
	const count = 5000 // to each address
	for port := range count {
		for _, to := range []netip.Addr{refused[0], allowed[0]} {
			address := netip.AddrPortFrom(to, uint16(10000+port))
			if _, err := near.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(address)); err != nil {
				t.Fatal(fmt.Errorf("to %v: %w", address, err))
			}
		}
	}
	if n := entriesTo(t, w.host, refused[0]); n != count {
		t.Fatalf("%d entries on the host, want %d", n, count)
	}
	start := time.Now()
	r := w.cut(t, w.spec(false))
	t.Logf("%d of %d entries, inside and on the host: %v", count, 2*count, time.Since(start))
	want(t, r, Report{Ended: count, Entries: count, HostEntries: count})
	if n := entriesTo(t, w.host, allowed[0]); n != count {
		t.Errorf("%d entries to the allowed address are left on the host, want %d", n, count)
	}
	start = time.Now()
	w.cut(t, w.spec(false))
	t.Logf("%d entries that stay: %v", count, time.Since(start))
}

func TestCutWithoutPredicate(t *testing.T) {
	ns := netnstest.New(t)
	if _, err := Cut(ns.Namespace, Spec{}); err == nil {
		t.Error("no error, although nothing says what is refused")
	}
}

func TestCheck(t *testing.T) {
	netnstest.New(t).Run(t, Check)
}
