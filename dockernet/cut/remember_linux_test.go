package cut

import (
	"io"
	"net/netip"
	"testing"
	"time"
)

// Connections that were there before conntrack was go on whoever sends first, and it is known who opened them. Those of the
// container's own are not taken for such.
func TestRemember(t *testing.T) {
	for i, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			w := newWorld(t)
			serve(t, w.outside, servicePort, beyond...)
			accepted, in := pair(t, w.inside, ":8080", w.host, netip.AddrPortFrom(own[i], servicePort).String())
			connect(t, w.inside, "tcp", allowed[i], servicePort)
			// Conntrack has looked at something before, for a time.
			nft(t, w.inside, gateRules)
			connect(t, w.inside, "udp", allowed[i], servicePort)
			nft(t, w.inside, "delete table inet gate")
			connect(t, w.inside, "tcp", refused[i], servicePort)

			for range 2 { // the second time conntrack knows already
				if err := Remember(w.inside.Namespace, w.host.Namespace); err != nil {
					t.Fatal(err)
				}
			}
			from := netip.MustParseAddrPort(accepted.RemoteAddr().String()).Addr()
			if n := entries(t, w.inside, from, own[i]); n != 1 {
				t.Errorf("%d entries from %v, want the connection's", n, from)
			}
			for _, a := range beyond {
				if n := entries(t, w.inside, a, own[i]); n != 0 {
					t.Errorf("%d entries from %v, to whom the container has opened a connection, want none", n, a)
				}
			}
			if n := entries(t, w.inside, own[i], refused[i]); n != 0 {
				t.Errorf("%d entries of a connection that the container has opened, want none", n)
			}
			nft(t, w.inside, `
table inet answers {
	chain output {
		type filter hook output priority 0
		tcp sport 8080 ct direction reply ct state established accept
		tcp sport 8080 reject with tcp reset
	}
}`)
			if _, err := accepted.Write([]byte("first")); err != nil {
				t.Fatal(err)
			}
			in.SetDeadline(time.Now().Add(10 * time.Second))
			b := make([]byte, 5)
			if _, err := io.ReadFull(in, b); err != nil {
				t.Errorf("what the container says first: %v", err)
			}
		})
	}
}

// Of a connection that conntrack has come to in the middle nobody knows who opened it: it ends if it is refused either way.
func TestCutJoined(t *testing.T) {
	for name, refuses := range map[string]bool{"refused": true, "allowed": false} {
		for i, family := range []string{"ipv4", "ipv6"} {
			t.Run(family+"_"+name, func(t *testing.T) {
				const mark = 0x52
				w := newWorld(t)
				at := netip.AddrPortFrom(neighbour[i], servicePort).String()
				far, c := pair(t, w.host, at, w.inside, at)
				nft(t, w.inside, `
table inet gate {
	chain arrive {
		type nat hook input priority -110
		meta l4proto tcp ct mark set 0x52
	}
}`)
				b := make([]byte, 4)
				if _, err := far.Write([]byte("join")); err != nil {
					t.Fatal(err)
				}
				c.SetDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.ReadFull(c, b); err != nil {
					t.Fatal(err)
				}
				s := w.spec(false)
				s.Joined = mark
				if refuses {
					s.Refused = func(to netip.AddrPort, _ uint8) bool { return to.Addr() == neighbour[i] }
				}
				got := w.cut(t, s)
				if refuses {
					aborted(t, "the connection", c)
				} else if got.Kept != 1 {
					t.Errorf("report %+v, want the connection to be kept", got)
				}
			})
		}
	}
}
