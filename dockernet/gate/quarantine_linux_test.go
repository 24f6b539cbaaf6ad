package gate

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/policy"
)

func TestQuarantine(t *testing.T) {
	for _, tt := range []struct {
		name      string
		installed bool
		fresh     bool // by a Gate that knows nothing
	}{
		{"installed", true, false},
		{"by_another_controller", true, true},
		{"nothing_installed", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, false)
			l.serve(t)
			resolver, _ := l.engine(t)
			listeners := l.listen(t)
			s := l.spec(t, listeners, phaseOf(t, "allowlist", "192.0.2.10", "2001:db8:2::10", "ok.test"), phaseOf(t, "public"))
			direct := func(by string) []flow {
				return []flow{
					l.open(t, "tcp", netip.MustParseAddrPort("192.0.2.10:80"), "direct"),
					l.open(t, "udp", netip.MustParseAddrPort("[2001:db8:2::10]:80"), "direct"),
					l.open(t, "tcp", netip.MustParseAddrPort("192.0.2.40:80"), by),
				}
			}
			by := "direct"
			if tt.installed {
				if err := l.gate.Install(s, policy.Baseline); err != nil {
					t.Fatal(err)
				}
				by = "proxy"
			}
			flows := direct(by)
			flows = append(flows, l.open(t, "tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), listeners.TCP4), "proxy"))
			inbound, err := l.dial(t, "tcp", sibling4, own4)
			if err != nil {
				t.Fatal(err)
			}
			defer inbound.Close()
			own := l.open(t, "tcp", netip.MustParseAddrPort("127.0.0.1:7000"), "inside")

			g := l.gate
			if tt.fresh {
				g = newGate(t, l.workload)
			}
			if err := g.Quarantine(); err != nil {
				t.Fatal(err)
			}
			if !tt.installed { // nobody knows of listeners then, so that they are like the workload's own
				flows = flows[:3]
			}
			for _, f := range flows {
				if got := exchange(f.conn); got == f.by {
					t.Errorf("connection to %v goes on", f.conn.RemoteAddr())
				}
			}
			before, err := g.Counters()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := inbound.Write([]byte{'?'}); err != nil {
				t.Error(err)
			}
			wait(t, "what comes in to be refused", func() bool {
				after, err := g.Counters()
				return err == nil && after.RefusedAlways.Packets > before.RefusedAlways.Packets
			})
			if got := exchange(own.conn); got != "inside" {
				t.Errorf("the workload's own connection: got %s", got)
			}
			for _, p := range []struct{ protocol, to string }{
				{"tcp", "192.0.2.10:80"}, {"udp", "192.0.2.10:80"}, {"tcp", "192.0.2.40:443"}, {"ping", "192.0.2.10"}, {"udp", "192.0.2.10:53"},
				{"tcp", "[2001:db8:2::10]:80"}, {"udp", "[2001:db8:2::10]:80"}, {"ping", "2001:db8:2::10"},
				{"udp", "127.0.0.11:53"}, {"tcp", "127.0.0.11:53"}, {"tcp", "127.0.0.1:3128"}, {"tcp", "198.51.100.1:80"},
				{"udp", fmt.Sprintf("127.0.0.11:%d", resolver)},
			} {
				if got := l.probe(t, p.protocol, p.to); got != "refused" {
					t.Errorf("%s to %s: got %s", p.protocol, p.to, got)
				}
			}
			if tt.installed {
				for _, port := range []uint16{listeners.TCP4, listeners.TCP6} {
					for _, host := range []string{"127.0.0.1", "::1"} {
						to := net.JoinHostPort(host, fmt.Sprint(port))
						if got := l.probe(t, "tcp", to); got != "refused" {
							t.Errorf("listener at %s: got %s", to, got)
						}
					}
				}
			}
			for _, to := range []string{"127.0.0.1:7000", "[::1]:7000", "198.51.100.2:7000", "[2001:db8:1::2]:7000"} {
				if got := l.probe(t, "tcp", to); got != "inside" {
					t.Errorf("own loopback, %s: got %s", to, got)
				}
			}
			if !tt.installed || tt.fresh {
				return
			}
			if err := g.Both(policy.Run); err != nil {
				t.Error(err)
			}
			if got := l.probe(t, "tcp", "192.0.2.10:80"); got != "refused" {
				t.Errorf("two phases together end the quarantine: got %s", got)
			}
			if err := g.Switch(policy.Run); err != nil {
				t.Fatal(err)
			}
			for _, p := range []struct{ protocol, to, want string }{
				{"udp", "192.0.2.40:80", "direct"}, {"tcp", "192.0.2.40:80", "proxy"}, {"udp", "127.0.0.11:53", "dns"},
			} {
				if got := l.probe(t, p.protocol, p.to); got != p.want {
					t.Errorf("after a switch, %s to %s: got %s, want %s", p.protocol, p.to, got, p.want)
				}
			}
		})
	}
}

// Nothing comes in either, and nothing that is sent in a quarantine opens a way out for later.
func TestQuarantineLeavesNothingBehind(t *testing.T) {
	l := newLab(t, false)
	l.neighbours(t)
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOf(t, "no-network")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 16)
	l.workload.Run(t, func() error {
		c, err := net.ListenPacket("udp", netip.AddrPortFrom(own4, 7001).String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			buffer := make([]byte, 64)
			for {
				n, _, err := c.ReadFrom(buffer)
				if err != nil {
					return
				}
				got <- string(buffer[:n])
			}
		}()
		return nil
	})
	if err := l.gate.Quarantine(); err != nil {
		t.Fatal(err)
	}
	in := sendUDP(netip.AddrPortFrom(own4, 7001), "")
	l.outside.Run(t, func() error { return in("in the quarantine") })
	question := ip4{from: bad4, to: own4, protocol: unix.IPPROTO_UDP}.packet(udp(80, 1234, "a question that seems to come from outside"))
	l.workload.Run(t, func() error { _ = sendRaw(question, nil); return nil })
	if err := l.gate.Switch(policy.Baseline); err != nil {
		t.Fatal(err)
	}
	tap := newTap(t, l.outside, "eth0")
	l.workload.Run(t, func() error {
		bind := func(fd int) error { return unix.Bind(fd, &unix.SockaddrInet4{Port: 1234, Addr: own4.As4()}) }
		_ = sendUDP(netip.AddrPortFrom(bad4, 80), "", bind)(leak(0))
		return nil
	})
	l.outside.Run(t, func() error { return in("after it") })
	if text := <-got; text != "after it" {
		t.Errorf("the workload got %q", text)
	}
	l.outside.Run(t, func() error { return sendUDP(netip.AddrPortFrom(own4, 9), "")("the end") })
	if len(leaked(tap.until(t, "the end"))) > 0 {
		t.Error("the answer to a question that the workload made up came out")
	}
}

// Listeners that were replaced cannot send any more either.
func TestQuarantineOfOldListeners(t *testing.T) {
	l := newLab(t, false)
	old, err := l.workload.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	s := l.spec(t, Listeners{TCP4: old.TCP4.Port, UDP4: old.UDP4.Port, TCP6: old.TCP6.Port, UDP6: old.UDP6.Port}, phaseOf(t, "allowlist", "ok.test"))
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	listener, err := net.FileListener(old.TCP4.File)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var client net.Conn
	l.workload.Run(t, func() (err error) {
		client, err = net.DialTimeout("tcp", "192.0.2.40:80", patience)
		return err
	})
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := l.gate.Retarget(l.listen(t)); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Quarantine(); err != nil {
		t.Fatal(err)
	}
	if got := exchange(server); got != "refused" {
		t.Errorf("the sidecar's end of the connection got %s", got)
	}
}
