package cut

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// place is the world's container, under one Spec for good.
func (w *world) place(s Spec) Place {
	return Place{Enter: w.inside.Do, Hold: func(do func(*Spec)) { do(&s) }}
}

func (w *world) sweep(t testing.TB, places ...Place) Report {
	t.Helper()
	r, err := Sweep(w.host.Namespace, places)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// leave makes entries that no socket stands for, to a refused and an allowed address a family, and one of a neighbour's.
func (w *world) leave(t *testing.T) {
	t.Helper()
	nft(t, w.inside, gateRules)
	serve(t, w.outside, servicePort, beyond...)
	for i := range own {
		connect(t, w.inside, "udp", refused[i], servicePort).Close()
		connect(t, w.inside, "udp", allowed[i], servicePort).Close()
		// From the neighbour's address, which the host has too: its own connection.
		var c net.Conn
		w.host.Run(t, func() (err error) {
			d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(neighbour[i], 0))}
			c, err = d.Dial("udp", netip.AddrPortFrom(refused[i], servicePort).String())
			return err
		})
		t.Cleanup(func() { c.Close() })
		survives(t, "neighbour", c)
	}
}

// left fails unless the host has as many entries from the container to each refused address.
func (w *world) left(t *testing.T, count int) {
	t.Helper()
	for i := range own {
		if n := entries(t, w.host, own[i], refused[i]); n != count {
			t.Errorf("%d entries from %v to %v on the host, want %d", n, own[i], refused[i], count)
		}
		if n := entriesTo(t, w.host, refused[i]); n != count+1 {
			t.Errorf("%d entries to %v on the host, want %d and the neighbour's", n, refused[i], count)
		}
		if n := entries(t, w.host, own[i], allowed[i]); n != 1 {
			t.Errorf("%d entries from %v to %v on the host, want 1", n, own[i], allowed[i])
		}
	}
}

// Entries without a socket stay if nobody could use them, until they are swept. Other containers' are never touched.
func TestSweep(t *testing.T) {
	for _, test := range []struct {
		name   string
		others int  // entries of the host's
		more   bool // containers
	}{
		{name: "few_entries"},
		{name: "many_entries", others: 10 * fewEntries},
		{name: "many_entries_and_containers", others: 10 * fewEntries, more: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.leave(t)
			if test.others > 0 {
				w.fill(t, test.others)
			}
			want(t, w.cut(t, w.spec(false)), Report{})
			places := []Place{w.place(w.spec(false))}
			if test.more {
				s := w.spec(false)
				s.Addresses = []netip.Addr{netip.MustParseAddr("10.77.0.4"), netip.MustParseAddr("10.77.0.5")}
				s.Refused = func(netip.AddrPort, uint8) bool { return false } // it looks at the same namespace here
				places = append(places, w.place(s))
			}
			want(t, w.sweep(t, places...), Report{Ended: 2, Entries: 2, HostEntries: 2, Swept: true})
			w.left(t, 0)
		})
	}
}

// What the rules refuse may change while entries are looked for.
func TestSweepByTheRulesInForce(t *testing.T) {
	for _, test := range []struct {
		name string
		call int // of Hold, from which on
		then *Spec
		want int // entries left
	}{
		{"unknown", 1, nil, 1},
		{"unknown_before_the_end_inside", 2, nil, 1},
		{"allowed_before_the_end_inside", 2, &Spec{Refused: func(netip.AddrPort, uint8) bool { return false }, Addresses: own}, 1},
		{"other_addresses_before_the_end_inside", 2, &Spec{Refused: func(netip.AddrPort, uint8) bool { return true }, Addresses: own[:1]}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.leave(t)
			calls, now := 0, w.spec(false)
			p := w.place(now)
			p.Hold = func(do func(*Spec)) {
				if calls++; calls < test.call {
					do(&now)
				} else if test.then != nil {
					do(test.then)
				}
			}
			want(t, w.sweep(t, p), Report{Swept: true})
			w.left(t, test.want)
		})
	}
}

// Raw frames pass no rule inside that has conntrack look at them, so the host alone knows what they began.
func TestSweepOfWhatTheHostAloneKnows(t *testing.T) {
	w := newWorld(t)
	serve(t, w.outside, servicePort, beyond...)
	for i := range own {
		connect(t, w.inside, "udp", refused[i], servicePort).Close()
		connect(t, w.inside, "udp", allowed[i], servicePort).Close()
	}
	want(t, w.sweep(t, w.place(w.spec(false))), Report{HostEntries: 2, Swept: true})
	for i := range own {
		if n, stays := entries(t, w.host, own[i], refused[i]), entries(t, w.host, own[i], allowed[i]); n != 0 || stays != 1 {
			t.Errorf("%d refused entries on the host and %d allowed ones, want 0 and 1", n, stays)
		}
	}
}

// A namespace that is gone keeps no other from being swept.
func TestSweepWithoutNamespace(t *testing.T) {
	w := newWorld(t)
	w.leave(t)
	gone := w.place(Spec{Refused: w.spec(false).Refused})
	gone.Enter = func(func() error) error { return os.ErrClosed }
	want(t, w.sweep(t, gone, w.place(w.spec(false))), Report{Ended: 2, Entries: 2, HostEntries: 2, Swept: true})
	w.left(t, 0)
}

// Of listeners that are gone no entry is left, which would keep a client's next packets from those that came after them.
// What is open through them goes on.
func TestSweepOfFormerListeners(t *testing.T) {
	w := newWorld(t)
	nft(t, w.inside, gateRules)
	for i, family := range []string{"ipv4", "ipv6"} {
		var l net.Listener
		var u net.PacketConn
		w.inside.Run(t, func() (err error) {
			if l, err = net.Listen("tcp", netip.AddrPortFrom(loopback[i], listenerPort).String()); err == nil {
				u, err = net.ListenPacket("udp", netip.AddrPortFrom(loopback[i], listenerPort).String())
			}
			return err
		})
		dial := func(network string) net.Conn {
			t.Helper()
			var c net.Conn
			w.inside.Run(t, func() (err error) {
				c, err = net.Dial(network, netip.AddrPortFrom(refused[i], proxiedPort).String())
				return err
			})
			t.Cleanup(func() { c.Close() })
			return c
		}
		open, over := dial("tcp"), dial("tcp")
		served := make(map[string]net.Conn)
		for range 2 {
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			served[c.RemoteAddr().String()] = c
		}
		served[over.LocalAddr().String()].Close()
		over.Close()
		datagrams := dial("udp")
		if _, err := datagrams.Write([]byte("ask")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 8)
		_, asker, err := u.ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}

		s := w.spec(true)
		s.First = true
		s.Refused = func(netip.AddrPort, uint8) bool { return false }
		of := func(c net.Conn) int {
			return entries(t, w.inside, netip.MustParseAddrPort(c.LocalAddr().String()).Addr(), refused[i])
		}
		before := of(open)
		if before != 3 {
			t.Fatalf("%s: %d entries, want one of each connection and of the datagrams", family, before)
		}
		w.sweep(t, w.place(s))
		if n := of(open); n != before {
			t.Errorf("%s: %d of %d entries are left while the listeners are there", family, n, before)
		}
		l.Close()
		u.Close()
		later := s
		later.First = false
		w.sweep(t, w.place(later))
		if n := of(open); n != before {
			t.Errorf("%s: %d of %d entries are left after a sweep that is not the first", family, n, before)
		}
		w.sweep(t, w.place(s))
		if n := of(open); n != 1 {
			t.Errorf("%s: %d entries are left, want that of the open connection", family, n)
		}
		if _, err := served[open.LocalAddr().String()].Write([]byte("more")); err != nil {
			t.Fatal(err)
		}
		if n, err := open.Read(b); string(b[:n]) != "more" {
			t.Errorf("%s: the open connection says %q, %v", family, b[:n], err)
		}

		// The same client asks again, where there is a new listener.
		nft(t, w.inside, "flush chain inet gate steer; add rule inet gate steer meta l4proto { tcp, udp } th dport 443 redirect to :998")
		w.inside.Run(t, func() (err error) {
			u, err = net.ListenPacket("udp", netip.AddrPortFrom(loopback[i], 998).String())
			return err
		})
		t.Cleanup(func() { u.Close() })
		if _, err := datagrams.Write([]byte("again")); err != nil {
			t.Fatal(err)
		}
		u.SetDeadline(time.Now().Add(10 * time.Second))
		if n, from, err := u.ReadFrom(b); err != nil || string(b[:n]) != "again" || from.String() != asker.String() {
			t.Errorf("%s: the new listener got %q from %v, %v", family, b[:n], from, err)
		}
		nft(t, w.inside, "flush chain inet gate steer; add rule inet gate steer meta l4proto { tcp, udp } th dport 443 redirect to :999")
	}
}
