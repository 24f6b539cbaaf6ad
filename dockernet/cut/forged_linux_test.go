package cut

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
)

// A container that could send frames of its own, before it came under rules, may have let the host believe that somebody
// dialled it: then what it sends there would be an answer.
func TestCutForged(t *testing.T) {
	for _, many := range []bool{false, true} { // entries, so that both ways to list them are taken
		for _, tt := range []struct {
			name  string
			spec  func(*Spec)
			stays bool
		}{
			{"first", func(s *Spec) { s.First = true }, false},
			{"first_but_muted", func(s *Spec) { s.First, s.Muted = true, true }, true},
			{"switch", func(s *Spec) {}, true},
		} {
			t.Run(fmt.Sprintf("%s_many_%v", tt.name, many), func(t *testing.T) {
				w := newWorld(t)
				nft(t, w.inside, gateRules)
				serve(t, w.inside, servicePort, own...)
				w.reach(t)
				// The same as frames of the container with these sources would make.
				for i := range own {
					for _, from := range []netip.Addr{refused[i], allowed[i]} {
						for _, network := range []string{"tcp", "udp"} {
							w.dialFrom(t, network, from, own[i], servicePort)
						}
					}
					w.dialFrom(t, "tcp", refused[i], []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}[i], 80)
				}
				if many {
					w.fill(t, fewEntries)
				}
				s := w.spec(false)
				tt.spec(&s)
				w.cut(t, s)
				for i := range own {
					got := map[string]int{
						"refused": entries(t, w.host, refused[i], own[i]), "allowed": entries(t, w.host, allowed[i], own[i]),
						"published": entries(t, w.host, refused[i], []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}[i]),
					}
					left := 0
					if tt.stays {
						left = 2
					}
					if got["refused"] != left || got["allowed"] != 2 || got["published"] != 1 {
						t.Errorf("entries on the host: %v, want %d of the refused", got, left)
					}
				}
			})
		}
	}
}

// dialFrom opens a connection from one of the addresses outside, which goes on with the next packet of that end.
func (w *world) dialFrom(t *testing.T, network string, from, to netip.Addr, port uint16) {
	t.Helper()
	var c net.Conn
	w.outside.Run(t, func() (err error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		c, err = d.Dial(network, netip.AddrPortFrom(to, port).String())
		return err
	})
	t.Cleanup(func() { c.Close() })
	if err := ping(c); err != nil {
		t.Fatalf("%s from %v to %v: %v", network, from, to, err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			survives(t, network+" from "+from.String(), c)
		}
	})
}

// fill gives the host's conntrack entries of somebody else.
func (w *world) fill(t testing.TB, n int) {
	t.Helper()
	w.host.Run(t, func() error {
		c, err := net.ListenPacket("udp4", netip.AddrPortFrom(neighbour[0], 0).String())
		if err != nil {
			return err
		}
		defer c.Close()
		for i := range n + 1 {
			if _, err := c.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(allowed[0], uint16(20000+i)))); err != nil {
				return err
			}
		}
		return nil
	})
}

// entries counts those of the namespace's conntrack that began with a packet from one address to another.
func entries(t testing.TB, ns *netnstest.Namespace, from, to netip.Addr) (n int) {
	t.Helper()
	ns.Run(t, func() error {
		c, err := dial(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer c.close()
		return c.all(func(e entry) {
			if e.original.source.Addr() == from && e.original.destination.Addr() == to {
				n++
			}
		})
	})
	return n
}

// Where the container may send anyway it matters only later that nobody has dialled it: with the first cut that refuses it.
// What comes in after the first cut is not in doubt, nor what the host has translated.
func TestCutForgedLater(t *testing.T) {
	w := newWorld(t)
	nft(t, w.inside, gateRules)
	serve(t, w.inside, servicePort, own...)
	w.reach(t)
	published := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	for i := range own {
		for _, network := range []string{"tcp", "udp"} {
			w.dialFrom(t, network, refused[i], own[i], servicePort)
		}
		w.dialFrom(t, "tcp", refused[i], published[i], 80)
	}
	var doubts Doubts
	cut := func(first, refuses bool) {
		t.Helper()
		s := w.spec(false)
		s.First, s.Doubtful = first, &doubts
		if !refuses {
			s.Refused = func(netip.AddrPort, uint8) bool { return false }
		}
		w.cut(t, s)
	}
	check := func(when string, want int) {
		t.Helper()
		for i := range own {
			if n := entries(t, w.host, refused[i], own[i]); n != want {
				t.Errorf("%s: %d entries from %v, want %d", when, n, refused[i], want)
			}
			if n := entries(t, w.host, refused[i], published[i]); n != 1 {
				t.Errorf("%s: %d entries from %v to the published port, want 1", when, n, refused[i])
			}
		}
	}
	cut(true, false)
	check("while it is allowed", 2)
	for i := range own {
		w.dialFrom(t, "udp", refused[i], own[i], servicePort)
	}
	cut(false, false)
	check("while it is still allowed", 3)
	cut(false, true)
	check("when it is refused", 1)
	cut(false, true)
	check("after that", 1)
}

// reach lets the outside send to the container's own addresses.
func (w *world) reach(t *testing.T) {
	t.Helper()
	h := w.outside.Handle(t)
	for i, network := range []string{"10.77.0.0/24", "fd77::/64"} {
		_, to, err := net.ParseCIDR(network)
		if err != nil {
			t.Fatal(err)
		}
		via := []string{"192.0.2.1", "2001:db8::1"}[i]
		if err := h.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(via)}); err != nil {
			t.Fatal(err)
		}
	}
}
