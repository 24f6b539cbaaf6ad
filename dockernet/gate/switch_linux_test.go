package gate

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/policy"
)

// Destinations of the load: only in the first phase, only in the second, in both, in none.
var loads = [2][4]netip.Addr{
	{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.20"), netip.MustParseAddr("192.0.2.30"), netip.MustParseAddr("192.0.2.40")},
	{netip.MustParseAddr("2001:db8:2::10"), netip.MustParseAddr("2001:db8:2::20"), netip.MustParseAddr("2001:db8:2::30"), netip.MustParseAddr("2001:db8:2::40")},
}

// phaseOfLoad is the first or the second phase, with some more targets.
func phaseOfLoad(t testing.TB, which int, more int) direct.Phase {
	t.Helper()
	var hosts []string
	for _, family := range loads {
		hosts = append(hosts, family[which].String(), family[2].String())
	}
	for i := range more { // ranges, so that all addresses are in one set of ranges
		hosts = append(hosts, fmt.Sprintf("10.%d.%d.0/31", i>>8, i&0xff), fmt.Sprintf("2001:db8:5:%x::/64", 2*i))
	}
	return phaseOf(t, "allowlist", hosts...)
}

// clock counts switches: it is even between two of them and odd while there is one, and half of it, modulo 2, is the
// phase in force or left.
type clock struct{ atomic.Int64 }

// load sends packets to the four destinations in turn, as fast as it can, and judges what the kernel says to each.
type load struct {
	passed, refused int
	problems        []string
}

func (l *load) run(to [4]netip.Addr, clock *clock, stop *atomic.Bool) error {
	var addresses [4]unix.Sockaddr
	var family int
	for i, a := range to {
		family, addresses[i] = socketAddress(netip.AddrPortFrom(a, 9))
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	payload := make([]byte, 64)
	newPassed := int64(-1) // the last switch in which something went to a destination of the new phase only
	for i := 0; !stop.Load(); i = (i + 1) % 4 {
		before := clock.Load()
		err := unix.Sendto(fd, payload, 0, addresses[i])
		after := clock.Load()
		if err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("send to %v: %w", to[i], err)
		}
		if err == nil {
			l.passed++
		} else {
			l.refused++
		}
		l.judge(i, err == nil, before, after, &newPassed)
	}
	return nil
}

func (l *load) judge(i int, passed bool, before, after int64, newPassed *int64) {
	problem := func(text string) {
		if len(l.problems) < 10 {
			l.problems = append(l.problems, fmt.Sprintf("destination %d, clock %d to %d: %s", i, before, after, text))
		}
	}
	old := before / 2 % 2
	switch {
	case i == 2 && !passed:
		problem("refused, although both phases allow it")
	case i == 3 && passed:
		problem("let through, although no phase allows it")
	case i >= 2:
	case before == after && before%2 == 0:
		if passed != (int64(i) == old) {
			problem(fmt.Sprintf("let through: %v, which is wrong for the phase in force", passed))
		}
	case before == after && passed && int64(i) != old:
		*newPassed = before
	case before == after && passed && *newPassed == before:
		problem("let through by the old phase after something was by the new one")
	}
}

// No packet meets a mixture of two phases, or none, whatever is switched to, and flows that both allow go on.
func TestSwitchUnderLoad(t *testing.T) {
	for _, tt := range []struct {
		name     string
		switches int
		restage  int // targets that are staged anew before each switch
	}{
		{"phases", 100, 0},
		{"new_sets", 30, 300},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, false)
			listeners := l.listen(t)
			spec := func() *Spec {
				return l.spec(t, listeners, phaseOfLoad(t, 0, tt.restage), phaseOfLoad(t, 1, tt.restage))
			}
			if err := l.gate.Install(spec(), 0); err != nil {
				t.Fatal(err)
			}
			flows := l.flows(t)
			var clock clock
			var stop atomic.Bool
			defer stop.Store(true)
			results := make(chan error, len(loads))
			var all [len(loads)]load
			for i := range loads {
				go func() {
					results <- l.workload.Do(func() error { return all[i].run(loads[i], &clock, &stop) })
				}()
			}
			for n := range tt.switches {
				next := policy.Phase((n + 1) % 2)
				if tt.restage > 0 {
					if err := l.gate.Stage(spec()); err != nil {
						t.Fatal(err)
					}
				}
				clock.Add(1)
				if err := errors.Join(l.gate.Both(next), l.gate.Switch(next)); err != nil {
					t.Fatal(err)
				}
				clock.Add(1)
				for _, f := range flows {
					if got := exchange(f.conn); got != f.by {
						t.Fatalf("after %d switches, a connection to %v got %s", n+1, f.conn.RemoteAddr(), got)
					}
				}
			}
			stop.Store(true)
			for range loads {
				if err := <-results; err != nil {
					t.Error(err)
				}
			}
			for i := range all {
				if all[i].passed == 0 || all[i].refused == 0 {
					t.Errorf("load %d: %d passed, %d refused: want some of both", i, all[i].passed, all[i].refused)
				}
				for _, p := range all[i].problems {
					t.Errorf("load %d: %s", i, p)
				}
				t.Logf("load %d: %d packets passed, %d were refused", i, all[i].passed, all[i].refused)
			}
		})
	}
}

type flow struct {
	conn net.Conn
	by   string
}

// flows are connections that both phases allow: direct ones of both protocols, and redirected ones.
func (l *lab) flows(t *testing.T) (flows []flow) {
	t.Helper()
	for _, f := range loads {
		for _, network := range []string{"tcp", "udp"} {
			flows = append(flows, l.open(t, network, netip.AddrPortFrom(f[2], 80), "direct"))
		}
		flows = append(flows, l.open(t, "tcp", netip.AddrPortFrom(f[3], 80), "proxy"))
	}
	return flows
}

// open makes a connection from the workload that lives as long as the test.
func (l *lab) open(t testing.TB, network string, to netip.AddrPort, by string) flow {
	t.Helper()
	var c net.Conn
	l.workload.Run(t, func() (err error) {
		c, err = net.DialTimeout(network, to.String(), patience)
		return err
	})
	t.Cleanup(func() { c.Close() })
	if got := exchange(c); got != by {
		t.Fatalf("%s to %v: got %s, want %s", network, to, got, by)
	}
	return flow{c, by}
}

// What a switch takes away ends: a reset for TCP, an error for UDP, at the next packet.
func TestSwitchEndsFlows(t *testing.T) {
	l := newLab(t, false)
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOfLoad(t, 0, 0), phaseOfLoad(t, 1, 0), phaseOf(t, "no-network")), 0); err != nil {
		t.Fatal(err)
	}
	for _, next := range []policy.Phase{policy.Run, policy.Evaluation} {
		if err := l.gate.Switch(policy.Baseline); err != nil {
			t.Fatal(err)
		}
		var flows []flow
		for _, f := range loads {
			for _, network := range []string{"tcp", "udp"} {
				flows = append(flows, l.open(t, network, netip.AddrPortFrom(f[0], 80), "direct"))
			}
		}
		if err := l.gate.Switch(next); err != nil {
			t.Fatal(err)
		}
		for _, f := range flows {
			if got := exchange(f.conn); got != "refused" {
				t.Errorf("phase %v: connection to %v got %s, want refused", next, f.conn.RemoteAddr(), got)
			}
		}
	}
}

// Connections of the direct plane live on in a public phase that would put new ones on the proxy's, and end in one
// that denies by name.
func TestPlanesOfOpenFlows(t *testing.T) {
	for _, tt := range []struct {
		name   string
		phases []direct.Phase
		by     string
		then   string
	}{
		{"public", []direct.Phase{phaseOf(t, "allowlist", "192.0.2.10", "ok.test"), phaseOf(t, "public")}, "direct", "direct"},
		{"denylist", []direct.Phase{phaseOf(t, "allowlist", "192.0.2.10", "ok.test"), phaseOf(t, "denylist", "192.0.2.11")}, "direct", "direct"},
		// The same phases with a denied name: TCP is on the proxy's plane from the start.
		{"denied_name", []direct.Phase{phaseOf(t, "allowlist", "192.0.2.10"), phaseOf(t, "denylist", "evil.test")}, "proxy", "proxy"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, false)
			if err := l.gate.Install(l.spec(t, l.listen(t), tt.phases...), policy.Baseline); err != nil {
				t.Fatal(err)
			}
			f := l.open(t, "tcp", netip.AddrPortFrom(loads[0][0], 80), tt.by)
			if err := errors.Join(l.gate.Both(policy.Run), l.gate.Switch(policy.Run)); err != nil {
				t.Fatal(err)
			}
			if got := exchange(f.conn); got != tt.then {
				t.Errorf("got %s, want %s", got, tt.then)
			}
		})
	}
}
