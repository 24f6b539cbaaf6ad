package gate

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/nft/nfttest"
	"sluice/policy"
)

// engine makes what the engine has inside of a container: a resolver on a random port of 127.0.0.11, and rules that
// lead port 53 there. It returns the port and what the resolver gets.
func (l *lab) engine(t testing.TB) (port uint16, got chan string) {
	t.Helper()
	got = make(chan string, 16)
	l.workload.Run(t, func() error {
		c, err := net.ListenPacket("udp", "127.0.0.11:0")
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		port = netip.MustParseAddrPort(c.LocalAddr().String()).Port()
		go func() {
			buffer := make([]byte, 2048)
			for {
				n, from, err := c.ReadFrom(buffer)
				if err != nil {
					return
				}
				got <- string(buffer[:n])
				_, _ = c.WriteTo([]byte("engine\n"), from)
			}
		}()
		return nil
	})
	nfttest.Run(t, l.workload, fmt.Sprintf(`
		table ip engine {
			chain output {
				type nat hook output priority -100; policy accept;
				ip daddr 127.0.0.11 udp dport 53 dnat to 127.0.0.11:%d
			}
		}`, port), "-f", "-")
	return port, got
}

// The engine's own redirect of port 53 comes too late, and its resolver cannot be reached on its own port.
func TestBeforeTheEngine(t *testing.T) {
	for _, mode := range []string{"public", "no-network"} {
		t.Run(mode, func(t *testing.T) {
			l := newLab(t, false)
			port, _ := l.engine(t)
			to := fmt.Sprintf("127.0.0.11:%d", port)
			for _, a := range []string{"127.0.0.11:53", to} {
				if got := l.probe(t, "udp", a); got != "engine" {
					t.Fatalf("%s without rules: got %s", a, got)
				}
			}
			if err := l.gate.Install(l.spec(t, l.listen(t), phaseOf(t, mode)), policy.Baseline); err != nil {
				t.Fatal(err)
			}
			for _, a := range []string{"127.0.0.11:53", to} {
				if got := l.probe(t, "udp", a); got != "dns" {
					t.Errorf("%s: got %s", a, got)
				}
			}
		})
	}
}

// Fragments that are not put together before the rules are not redirected: they must not reach the resolver either.
func TestFragmentsToTheEngine(t *testing.T) {
	l := newLab(t, false)
	port, got := l.engine(t)
	send := func(text string) {
		t.Helper()
		datagram := udp(1234, port, fmt.Sprintf("%-40s", text))
		l.workload.Run(t, func() error {
			for _, f := range []struct {
				fragment uint16
				part     []byte
			}{{0x2000, datagram[:16]}, {2, datagram[16:]}} {
				h := ip4{from: netip.MustParseAddr("127.0.0.1"), to: engineResolver, protocol: unix.IPPROTO_UDP, fragment: f.fragment}
				if err := sendRaw(h.packet(f.part), noDefragment); err != nil && err != unix.EPERM {
					return err
				}
			}
			return nil
		})
	}
	send("before")
	if text := <-got; text[:6] != "before" {
		t.Fatalf("got %q", text)
	}
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOf(t, "public")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	send("after")
	if err := l.gate.Remove(); err != nil {
		t.Fatal(err)
	}
	send("the end")
	if text := <-got; text[:7] != "the end" {
		t.Errorf("got %q", text)
	}
}

// A socket that is destroyed, as at the end of a flow, tells the other end; a reset by hand cannot carry anything.
func TestResets(t *testing.T) {
	l := newLab(t, false)
	l.neighbours(t)
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOf(t, "allowlist", "192.0.2.10"), phaseOf(t, "no-network")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	tap := newTap(t, l.outside, "eth0")
	remote := netip.MustParseAddrPort("192.0.2.10:80")
	destroyed := l.open(t, "tcp", remote, "direct")
	f := l.open(t, "tcp", remote, "direct")
	if err := l.gate.Switch(policy.Run); err != nil {
		t.Fatal(err)
	}
	// The last segment shows which numbers are in the window.
	l.outside.Run(t, func() error { return sendUDP(netip.AddrPortFrom(own4, 9), "")("first end") })
	local := netip.MustParseAddrPort(f.conn.LocalAddr().String())
	var seq, ack uint32
	for _, p := range tap.until(t, "first end") {
		if len(p) >= 40 && p[0]>>4 == 4 && p[9] == unix.IPPROTO_TCP && binary.BigEndian.Uint16(p[20:]) == local.Port() {
			payload := len(p) - 20 - int(p[32]>>4)*4
			seq, ack = binary.BigEndian.Uint32(p[24:])+uint32(payload), binary.BigEndian.Uint32(p[28:])
		}
	}
	l.workload.Run(t, func() error {
		// In this order: what is refused is answered by a reset, which ends the connection.
		_ = sendRaw(tcp4(local, remote, seq, ack, 0x14, "leak in a reset"), nil)
		_ = sendRaw(tcp4(local, remote, seq, ack, 0x15, "leak in a reset with FIN"), nil)
		_ = sendRaw(tcp4(local, remote, seq, ack, 0x18, "leak in a segment"), nil)
		return nil
	})
	// Closed like this, a socket sends a reset and nothing else.
	c := destroyed.conn.(*net.TCPConn)
	if err := c.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	c.Close()
	l.outside.Run(t, func() error { return sendUDP(netip.AddrPortFrom(own4, 9), "")("second end") })
	resets := 0
	for _, p := range tap.until(t, "second end") {
		if len(p) < 40 || p[0]>>4 != 4 || p[9] != unix.IPPROTO_TCP {
			continue
		}
		if payload := len(p) - 20 - int(p[32]>>4)*4; payload > 0 {
			t.Errorf("a segment with %q came out", p[len(p)-payload:])
		}
		if p[33]&4 != 0 {
			resets++
		}
	}
	if resets != 1 {
		t.Errorf("%d resets came out, want that of the destroyed socket", resets)
	}
}

// Two phases in force let through what both allow.
func TestBoth(t *testing.T) {
	l := newLab(t, false)
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOfLoad(t, 0, 0), phaseOfLoad(t, 1, 0)), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Both(policy.Run); err != nil {
		t.Fatal(err)
	}
	for _, f := range loads {
		for i, want := range []string{"refused", "refused", "direct", "refused"} {
			if got := l.probe(t, "udp", netip.AddrPortFrom(f[i], 80).String()); got != want {
				t.Errorf("destination %d, %v: got %s, want %s", i, f[i], got, want)
			}
		}
	}
}
