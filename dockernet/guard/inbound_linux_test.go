package guard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	icmp4 "golang.org/x/net/ipv4"
	icmp6 "golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft/nfttest"
	"sluice/policy"
)

// published is what an engine does for a published port: 8080 on the host leads to 80 of container a.
const published = `
table ip published {
	chain prerouting {
		type nat hook prerouting priority -100; policy accept;
		ip daddr 203.0.113.1 tcp dport 8080 dnat to 198.51.100.2:80
		ip daddr 203.0.113.1 udp dport 8080 dnat to 198.51.100.2:80
	}
}
table ip6 published {
	chain prerouting {
		type nat hook prerouting priority -100; policy accept;
		ip6 daddr 2001:db8:ffff::1 tcp dport 8080 dnat to [2001:db8:1::2]:80
		ip6 daddr 2001:db8:ffff::1 udp dport 8080 dnat to [2001:db8:1::2]:80
	}
}
`

// serve answers on port 80 of a namespace, TCP and UDP.
func serve(t testing.TB, ns *netnstest.Namespace) {
	t.Helper()
	ns.Run(t, func() error {
		tcp, err := net.Listen("tcp", ":80")
		if err != nil {
			return err
		}
		udp, err := net.ListenPacket("udp", ":80")
		if err != nil {
			tcp.Close()
			return err
		}
		t.Cleanup(func() { tcp.Close(); udp.Close() })
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				go echoOn(c)
			}
		}()
		go func() {
			buffer := make([]byte, 2048)
			for {
				n, from, err := udp.ReadFrom(buffer)
				if err != nil {
					return
				}
				udp.WriteTo(buffer[:n], from)
			}
		}()
		return nil
	})
}

func echoOn(c net.Conn) {
	defer c.Close()
	buffer := make([]byte, 2048)
	for {
		n, err := c.Read(buffer)
		if err != nil {
			return
		}
		if _, err := c.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// dial connects from a namespace and asks for an echo.
func dial(ns *netnstest.Namespace, network, to string, wait time.Duration) (net.Conn, error) {
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = net.DialTimeout(network, to, wait)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := exchange(c, wait); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func exchange(c net.Conn, wait time.Duration) error {
	if _, err := c.Write([]byte("echo")); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	buffer := make([]byte, 16)
	n, err := c.Read(buffer)
	if err == nil && string(buffer[:n]) != "echo" {
		err = fmt.Errorf("the answer is %q", buffer[:n])
	}
	return err
}

// ping asks an address for an echo, from a namespace.
func ping(ns *netnstest.Namespace, to netip.Addr, wait time.Duration) error {
	network, proto, request, reply := "ip4:icmp", 1, icmp.Type(icmp4.ICMPTypeEcho), icmp.Type(icmp4.ICMPTypeEchoReply)
	if to.Is6() {
		network, proto, request, reply = "ip6:ipv6-icmp", 58, icmp6.ICMPTypeEchoRequest, icmp6.ICMPTypeEchoReply
	}
	var c net.PacketConn
	if err := ns.Do(func() (err error) { c, err = net.ListenPacket(network, ""); return err }); err != nil {
		return err
	}
	defer c.Close()
	m := icmp.Message{Type: request, Body: &icmp.Echo{ID: 4711, Seq: 1, Data: []byte("ping")}}
	b, err := m.Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	buffer := make([]byte, 1500)
	for {
		n, _, err := c.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if got, err := icmp.ParseMessage(proto, buffer[:n]); err == nil && got.Type == reply {
			return nil
		}
	}
}

// way is one into container a.
type way struct {
	name string
	from *netnstest.Namespace
	to   []netip.AddrPort
	host bool // it comes from one of the host's own addresses
}

func (l *lab) waysIn() []way {
	a := l.containers["a"]
	both := func(a4, a6 netip.Addr, port uint16) []netip.AddrPort {
		return []netip.AddrPort{netip.AddrPortFrom(a4, port), netip.AddrPortFrom(a6, port)}
	}
	return []way{
		{"host", l.host, both(a.ip4, a.ip6, 80), true},
		{"outside", l.outside, both(a.ip4, a.ip6, 80), false},
		{"outside_published", l.outside, both(uplink4, uplink6, 8080), false},
		{"sibling", l.containers["b"].Namespace, both(a.ip4, a.ip6, 80), false},
		{"sibling_published", l.containers["b"].Namespace, both(uplink4, uplink6, 8080), false},
	}
}

// What comes into the container works, whatever it may reach itself.
func TestInboundWorksInEveryMode(t *testing.T) {
	for _, plane := range planeColumns {
		t.Run(plane.name, func(t *testing.T) {
			l := newLab(t, "abs")
			l.nft(t, published, "-f", "-")
			serve(t, l.containers["a"].Namespace)
			s := l.spec(t, "a", plane.phases(t)...)
			s.Internal = plane.internal
			if err := l.port("a").Install(s, policy.Baseline); err != nil {
				t.Fatal(err)
			}
			for _, w := range l.waysIn() {
				for _, to := range w.to {
					for _, network := range []string{"tcp", "udp"} {
						c, err := dial(w.from, network, to.String(), patience)
						if err != nil {
							t.Errorf("%s to %v from %s: %v", network, to, w.name, err)
							continue
						}
						c.Close()
					}
					if to.Port() != 80 {
						continue
					}
					if err := ping(w.from, to.Addr(), patience); err != nil {
						t.Errorf("ping to %v from %s: %v", to, w.name, err)
					}
					// A closed port is refused and does not time out.
					_, err := dial(w.from, "tcp", netip.AddrPortFrom(to.Addr(), 81).String(), patience)
					if !isRefusal(err) {
						t.Errorf("closed port of %v from %s: %v, want a refusal", to, w.name, err)
					}
				}
			}
		})
	}
}

func isRefusal(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// silence bounds how long a test waits for what should not come.
const silence = 300 * time.Millisecond

func TestInboundOption(t *testing.T) {
	for _, tt := range []struct {
		option policy.Inbound
		host   bool
	}{{policy.InboundHost, true}, {policy.InboundNone, false}} {
		for _, mode := range []string{"public", "allowlist", "no-network"} {
			t.Run(fmt.Sprintf("%d_%s", tt.option, mode), func(t *testing.T) {
				l := newLab(t, "abs")
				l.nft(t, published, "-f", "-")
				serve(t, l.containers["a"].Namespace)
				var targets []string
				if mode == "allowlist" {
					targets = []string{"192.0.2.5"}
				}
				l.install(t, "a", inbound(phaseOf(t, mode, targets...), tt.option))
				var all sync.WaitGroup
				for _, w := range l.waysIn() {
					// To where a public phase may send anything, replies go as well: the gate stops what comes in.
					want := mode == "public" || tt.host && w.host
					wait := silence
					if want {
						wait = patience
					}
					for _, to := range w.to {
						for _, network := range []string{"tcp", "udp"} {
							all.Go(func() {
								c, err := dial(w.from, network, to.String(), wait)
								if err == nil {
									c.Close()
								}
								if (err == nil) != want {
									t.Errorf("%s to %v from %s: %v, want an answer: %v", network, to, w.name, err, want)
								}
							})
						}
					}
				}
				all.Wait()
			})
		}
	}
}

// Only what answers to something passes as an answer.
func TestRepliesOnly(t *testing.T) {
	l := newLab(t, "abs")
	a, b := l.containers["a"], l.containers["b"]
	l.install(t, "a", phaseOf(t, "no-network"))
	// The answers are made by hand.
	nfttest.Run(t, a.Namespace, "table inet quiet { chain output { type filter hook output priority 0; policy drop; }; }", "-f", "-")
	for _, f := range []struct {
		from, to netip.Addr
	}{{a.ip4, b.ip4}, {a.ip6, b.ip6}} {
		toA := func(packet []byte) []byte {
			kind := uint16(0x0800)
			if f.to.Is6() {
				kind = 0x86dd
			}
			return ethernet(a.hardware, b.hardware, kind, packet)
		}
		in, out := ip{from: f.to, to: f.from}, ip{from: f.from, to: f.to}
		for i, tt := range []struct {
			name    string
			ask     []byte
			answer  func(key string) []byte
			arrives bool
		}{
			{"datagram", in.datagram(5000, 6000, ""), func(key string) []byte { return out.datagram(6000, 5000, key) }, true},
			{"datagram_from_other_port", in.datagram(5001, 6001, ""), func(key string) []byte { return out.datagram(6002, 5001, key) }, false},
			{"datagram_to_other_port", in.datagram(5003, 6003, ""), func(key string) []byte { return out.datagram(6003, 5004, key) }, false},
			{"segment", in.segment(5000, 6000, syn, 0, ""), func(key string) []byte { return out.segment(6000, 5000, syn|ack, 0, key) }, true},
			{"segment_to_other_port", in.segment(5001, 6001, syn, 0, ""), func(key string) []byte { return out.segment(6001, 5002, syn|ack, 0, key) }, false},
			{"first_segment_back", in.segment(5005, 6005, syn, 0, ""), func(key string) []byte { return out.segment(6005, 5005, syn, 0, key) }, false},
			{"nothing_asked", nil, func(key string) []byte { return out.datagram(7000, 7001, key) }, false},
		} {
			t.Run(fmt.Sprintf("%s_%v", tt.name, f.to), func(t *testing.T) {
				if tt.ask != nil {
					asked := l.token()
					onOneCPU(t, func() error { return errors.Join(send(b.fd, toA(tt.ask)), l.signal([]byte(asked))) })
				}
				key := l.token()
				if got := l.where(t, "a", []byte(key), l.fromA(f.to, tt.answer(key))); (got == "b") != tt.arrives {
					t.Errorf("row %d reaches %q, want to arrive: %v", i, got, tt.arrives)
				}
			})
		}
	}
}
