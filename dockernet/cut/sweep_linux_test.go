package cut

import (
	"net"
	"net/netip"
	"os"
	"testing"
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

// A namespace that is gone keeps no other from being swept.
func TestSweepWithoutNamespace(t *testing.T) {
	w := newWorld(t)
	w.leave(t)
	gone := w.place(Spec{Refused: w.spec(false).Refused})
	gone.Enter = func(func() error) error { return os.ErrClosed }
	want(t, w.sweep(t, gone, w.place(w.spec(false))), Report{Ended: 2, Entries: 2, HostEntries: 2, Swept: true})
	w.left(t, 0)
}
