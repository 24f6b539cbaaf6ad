package cut

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An answer that comes late, where nobody translates addresses, is no connection into the container: it would have leave to
// answer, and so go on with what the cut has ended.
func TestCutLateAnswers(t *testing.T) {
	for i, family := range []string{"ipv4", "ipv6"} {
		for _, how := range []string{"any_peer", "connected", "raw", "swept"} {
			t.Run(family+"_"+how, func(t *testing.T) {
				w := newWorld(t)
				nft(t, w.inside, gateRules)
				to := netip.AddrPortFrom(neighbour[i], servicePort)
				var far, near net.PacketConn
				w.host.Run(t, func() (err error) {
					far, err = net.ListenPacket("udp", to.String())
					return err
				})
				defer far.Close()
				w.inside.Run(t, func() (err error) {
					if how == "connected" {
						var c net.Conn
						if c, err = net.Dial("udp", to.String()); err == nil {
							near = c.(*net.UDPConn)
						}
						return err
					}
					if how == "raw" {
						fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
						if err != nil {
							return err
						}
						t.Cleanup(func() { unix.Close(fd) })
					}
					near, err = net.ListenPacket("udp", netip.AddrPortFrom(own[i], 0).String())
					return err
				})
				defer near.Close()
				var err error
				if how == "connected" {
					_, err = near.(*net.UDPConn).Write([]byte("ask"))
				} else {
					_, err = near.WriteTo([]byte("ask"), net.UDPAddrFromAddrPort(to))
				}
				if err != nil {
					t.Fatal(err)
				}
				far.SetDeadline(time.Now().Add(10 * time.Second))
				b := make([]byte, 8)
				_, asker, err := far.ReadFrom(b)
				if err != nil {
					t.Fatal(err)
				}

				s := w.spec(false)
				s.Refused = func(to netip.AddrPort, _ uint8) bool { return slices.Contains(neighbour, to.Addr()) }
				w.cut(t, s)
				if how == "swept" {
					w.sweep(t, w.place(s))
				}
				if _, err := far.WriteTo([]byte("late"), asker); err != nil {
					t.Fatal(err)
				}
				if how != "connected" {
					near.SetDeadline(time.Now().Add(10 * time.Second))
					if _, _, err := near.ReadFrom(b); err != nil {
						t.Fatal(err)
					}
				}
				for name, n := range map[string]int{
					"inside": entries(t, w.inside, neighbour[i], own[i]), "on the host": entries(t, w.host, neighbour[i], own[i]),
				} {
					if n != 0 {
						t.Errorf("LEAK: %s the answer counts as a connection into the container", name)
					}
				}
			})
		}
	}
}

// A stream's far end whom the reset does not reach, or who does not believe it, sends once more. That is no connection
// into the container either.
func TestCutLateSegments(t *testing.T) {
	for i, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			w := newWorld(t)
			nft(t, w.inside, gateRules)
			// It knows nothing of resets.
			nft(t, w.host, "table inet deaf { chain in { type filter hook input priority 0; tcp flags & rst == rst drop; }; }")
			at := netip.AddrPortFrom(neighbour[i], servicePort).String()
			far, _ := pair(t, w.host, at, w.inside, at)
			// Nobody inside says that there is no such connection.
			nft(t, w.inside, fmt.Sprintf("table inet mute { chain in { type filter hook input priority 0; tcp sport %d counter drop; }; }", servicePort))
			s := w.spec(false)
			s.Refused = func(to netip.AddrPort, _ uint8) bool { return slices.Contains(neighbour, to.Addr()) }
			w.cut(t, s)
			if _, err := far.Write([]byte("late")); err != nil {
				t.Fatal(err)
			}
			if n := entries(t, w.host, neighbour[i], own[i]); n != 0 {
				t.Error("LEAK: on the host the segment counts as a connection into the container")
			}
			if n := entries(t, w.host, own[i], neighbour[i]); n != 1 {
				t.Errorf("%d entries of the connection are left on the host, want 1", n)
			}
		})
	}
}
