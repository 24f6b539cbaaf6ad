package gate

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/cut"
	"sluice/dockernet/direct"
	"sluice/policy"
)

// serve listens in the workload on port 7000 and answers with "inside".
func (l *lab) serve(t testing.TB) {
	t.Helper()
	l.workload.Run(t, func() error {
		tcp, err := net.Listen("tcp", ":7000")
		if err != nil {
			return err
		}
		serveTCP(t, tcp, "inside")
		for _, a := range []netip.Addr{own4, own6} {
			udp, err := net.ListenPacket("udp", netip.AddrPortFrom(a, 7000).String())
			if err != nil {
				return err
			}
			serveUDP(t, udp, "inside")
		}
		return nil
	})
}

// dial connects from an address of the outside to the workload's service.
func (l *lab) dial(t testing.TB, network string, from, to netip.Addr) (c net.Conn, err error) {
	t.Helper()
	d := net.Dialer{Timeout: patience}
	d.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
	if network == "udp" {
		d.LocalAddr = &net.UDPAddr{IP: from.AsSlice()}
	}
	l.outside.Run(t, func() error {
		c, err = d.Dial(network, netip.AddrPortFrom(to, 7000).String())
		return nil
	})
	return c, err
}

func TestInbound(t *testing.T) {
	modes := map[string]direct.Phase{
		"public":         phaseOf(t, "public"),
		"no_network":     phaseOf(t, "no-network"),
		"allowlist":      phaseOf(t, "allowlist", "192.0.2.5", "ok.test"),
		"denylist":       phaseOf(t, "denylist", "198.51.100.0/24", "2001:db8:1::/64"),
		"denylist_names": phaseOf(t, "denylist", "evil.test", "198.51.100.0/24", "2001:db8:1::/64"),
	}
	host4, host6 := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1")
	for mode, phase := range modes {
		for _, tt := range []struct {
			name          string
			inbound       policy.Inbound
			host, sibling bool
		}{
			{"all", policy.InboundAll, true, true},
			{"host", policy.InboundHost, true, false},
			{"none", policy.InboundNone, false, false},
		} {
			t.Run(mode+"_"+tt.name, func(t *testing.T) {
				t.Parallel()
				phase := phase
				l := newLab(t, false)
				l.serve(t)
				phase.Inbound = tt.inbound
				if err := l.gate.Install(l.spec(t, l.listen(t), phase), policy.Baseline); err != nil {
					t.Fatal(err)
				}
				for _, from := range []struct {
					name     string
					from, to netip.Addr
					works    bool
				}{
					{"host", host4, own4, tt.host},
					{"host", host6, own6, tt.host},
					{"sibling", sibling4, own4, tt.sibling},
					{"sibling", sibling6, own6, tt.sibling},
				} {
					want := "inside"
					if !from.works {
						want = "refused"
					}
					got := ""
					if c, err := l.dial(t, "tcp", from.from, from.to); err != nil {
						got = outcome(err)
					} else {
						got = exchange(c)
						c.Close()
					}
					if got != want {
						t.Errorf("TCP from %s %v: got %s, want %s", from.name, from.from, got, want)
					}
					if !from.works {
						continue // UDP that is refused here has no answer: the kernel's own one is not let out
					}
					c, err := l.dial(t, "udp", from.from, from.to)
					if err != nil {
						t.Fatal(err)
					}
					if got := exchange(c); got != want {
						t.Errorf("UDP from %s %v: got %s, want %s", from.name, from.from, got, want)
					}
					c.Close()
				}
			})
		}
	}
}

// Connections into the container live through switches of the mode, and end with a phase that refuses them.
func TestInboundLivesOn(t *testing.T) {
	l := newLab(t, false)
	l.serve(t)
	before, err := l.dial(t, "tcp", sibling4, own4)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	closed := phaseOf(t, "no-network")
	closed.Inbound = policy.InboundNone
	s := l.spec(t, l.listen(t), phaseOf(t, "public"), phaseOf(t, "no-network"), closed)
	exchange(before)
	if err := cut.Remember(l.workload.Namespace, l.outside.Namespace); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	after, err := l.dial(t, "tcp", sibling6, own6)
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	for _, step := range []func() error{
		func() error { return nil },
		func() error { return l.gate.Both(policy.Run) },
		func() error { return l.gate.Switch(policy.Run) },
		func() error { return l.gate.Switch(policy.Baseline) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		for _, c := range []net.Conn{before, after} {
			if got := exchange(c); got != "inside" {
				t.Errorf("connection from %v: got %s", c.LocalAddr(), got)
			}
		}
	}
	if err := l.gate.Switch(policy.Evaluation); err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{before, after} {
		if got := exchange(c); got == "inside" {
			t.Errorf("connection from %v lives on although nothing may come in", c.LocalAddr())
		}
	}
}

// A phase that lets in only the host ends the connections of others.
func TestInboundFromOthersEnds(t *testing.T) {
	l := newLab(t, false)
	l.serve(t)
	host := phaseOf(t, "no-network")
	host.Inbound = policy.InboundHost
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOf(t, "public"), host), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for _, from := range []netip.Addr{netip.MustParseAddr("198.51.100.1"), sibling4} {
		c, err := l.dial(t, "udp", from, own4)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := exchange(c); got != "inside" {
			t.Fatalf("from %v: got %s", from, got)
		}
		conns = append(conns, c)
	}
	if err := l.gate.Switch(policy.Run); err != nil {
		t.Fatal(err)
	}
	if got := exchange(conns[0]); got != "inside" {
		t.Errorf("from the host: got %s", got)
	}
	// Not only does nothing come in: what the workload would still answer is refused too.
	tap := newTap(t, l.outside, "eth0")
	l.workload.Run(t, func() error {
		_ = sendRaw(ip4{from: own4, to: sibling4, protocol: unix.IPPROTO_UDP}.packet(
			udp(7000, netip.MustParseAddrPort(conns[1].LocalAddr().String()).Port(), leak(0))), nil)
		return nil
	})
	l.outside.Run(t, func() error { return sendUDP(netip.AddrPortFrom(own4, 9), "")("the end") })
	if len(leaked(tap.until(t, "the end"))) > 0 {
		t.Error("an answer to a sibling came out")
	}
}

// A neighbour finds the workload's IPv6 address and is found, in a phase that lets nothing else through.
func TestNeighbours(t *testing.T) {
	l := newLab(t, false)
	l.serve(t)
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOf(t, "no-network")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	c, err := l.dial(t, "tcp", sibling6, own6)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := exchange(c); got != "inside" {
		t.Errorf("got %s", got)
	}
}

// What neighbours send to be passed on is not the workload's, and not let through.
func TestForwardsNothing(t *testing.T) {
	l := newLab(t, false)
	writeSysctl(t, l.workload, "net/ipv4/ip_forward", "1")
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOf(t, "public")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	before, err := l.gate.Counters()
	if err != nil {
		t.Fatal(err)
	}
	l.outside.Run(t, func() error {
		// As if the workload were the router: its link address, another one's IP address.
		there := netip.MustParseAddr("192.0.2.5")
		return routeVia(t, l.outside, there, own4, func() error { return sendUDP(netip.AddrPortFrom(there, 80), "")("pass it on") })
	})
	wait(t, "a packet to be refused in forward", func() bool {
		after, err := l.gate.Counters()
		return err == nil && after.RefusedAlways.Packets > before.RefusedAlways.Packets
	})
}

// A sysctl that lets loopback addresses in does not open the listeners to neighbours.
func TestLoopbackFromOutside(t *testing.T) {
	l := newLab(t, false)
	listeners := l.listen(t)
	writeSysctl(t, l.workload, "net/ipv4/conf/all/route_localnet", "1")
	writeSysctl(t, l.outside, "net/ipv4/conf/all/route_localnet", "1")
	if err := l.gate.Install(l.spec(t, listeners, phaseOf(t, "public")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	l.neighboursOf(t, netip.MustParseAddr("127.0.0.1"))
	before, err := l.gate.Counters()
	if err != nil {
		t.Fatal(err)
	}
	l.outside.Run(t, func() error {
		return sendRaw(tcp4(netip.AddrPortFrom(sibling4, 1234), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), listeners.TCP4), 1, 0, 2, ""), toDevice("eth0"))
	})
	wait(t, "a packet to be refused in input", func() bool {
		after, err := l.gate.Counters()
		return err == nil && after.RefusedAlways.Packets > before.RefusedAlways.Packets
	})
}
