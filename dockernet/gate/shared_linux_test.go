package gate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft/rawip"
	"sluice/policy"
	"sluice/proxy/outgoing"
)

// secret and secretGroup are mark and group of the sidecar's sockets in these tests.
const secret, secretGroup = 0x5eca3e71, 0x71c0ffee

// newShared is a lab with the sidecar inside of the workload's namespace, and without a guard.
func newShared(t *testing.T) (*lab, *Own) {
	l := newLab(t, false)
	l.neighbours(t)
	own := NewOwn(l.workload.Namespace)
	t.Cleanup(own.Close)
	return l, own
}

func (l *lab) shared(t *testing.T, listeners Listeners, phases ...direct.Phase) *Spec {
	s := l.spec(t, listeners, phases...)
	s.Shared = &Shared{Mark: secret, Group: secretGroup}
	return s
}

// untold keeps to itself what it is told.
type untold struct{}

func (untold) Open(netip.AddrPort, uint16) error   { return nil }
func (untold) Opened(netip.AddrPort, uint16) error { return nil }

// connect opens a connection as the proxy does. The second result ends it.
func (l *lab) connect(told outgoing.Announcer, by who, network, to string) (c net.Conn, end func() error, err error) {
	at := netip.MustParseAddrPort(to)
	sockets := &outgoing.Sockets{Announcer: told, Mark: by.mark}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = l.workload.Do(inGroup(by.group, func() (err error) {
		if network == "tcp" {
			if c, err = sockets.DialTCP(ctx, at); err == nil {
				end = c.Close
			}
			return err
		}
		u, release, err := sockets.DialUDP(at)
		if err == nil {
			c, end = u, func() error { return errors.Join(u.Close(), release()) }
		}
		return err
	}))
	return c, end, err
}

// who is whom rules take a socket's owner for.
type who struct{ mark, group uint32 }

var theSidecar = who{secret, secretGroup}

// inGroup is f with sockets that a group opens. It is called on a thread of its own.
func inGroup(group uint32, f func() error) func() error {
	return func() error {
		before, err := unix.SetfsgidRetGid(int(group))
		if err != nil {
			return err
		}
		return errors.Join(f(), unix.Setfsgid(before))
	}
}

// ours is connect for a connection that lives as long as the test, and who answers on it.
func (l *lab) ours(t *testing.T, told outgoing.Announcer, by who, network, to string) (string, net.Conn) {
	t.Helper()
	c, end, err := l.connect(told, by, network, to)
	if err != nil {
		return outcome(err), nil
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Errorf("end the connection to %s: %v", to, err)
		}
	})
	return exchange(c), c
}

// end sends the end of all that is sent, behind it, as the sidecar does.
func (l *lab) end(t *testing.T, own *Own) {
	t.Helper()
	c, end, err := l.connect(own, theSidecar, "udp", "192.0.2.53:53")
	if err == nil {
		_, err = c.Write([]byte("the end"))
		err = errors.Join(err, end())
	}
	if err != nil {
		t.Fatalf("the sidecar cannot send: %v", err)
	}
}

// The kernel has what nft makes of the rules for a shared namespace.
func TestSharedListing(t *testing.T) {
	s := example(true, threeOf(t, phaseOf(t, "allowlist", "ok.test", "192.0.2.5")))
	s.Shared = &Shared{Mark: secret, Group: secretGroup}
	kernelHasListing(t, s)
}

// The sidecar's own connections pass, and go on when the rules have forgotten how they began. The workload's do not,
// neither with the sidecar's mark nor with the ports of its connections.
func TestSharedOwnConnections(t *testing.T) {
	l, own := newShared(t)
	l.engine(t)
	l.install(t, l.shared(t, l.listen(t), phaseOf(t, "allowlist", "ok.test"), phaseOf(t, "no-network")))
	for _, tt := range []struct {
		name, network, to string
		told              outgoing.Announcer
		by                who
		want              string
	}{
		{"tcp", "tcp", "192.0.2.200:80", own, theSidecar, "direct"},
		{"tcp_ipv6", "tcp", "[2001:db8:2::200]:443", own, theSidecar, "direct"},
		{"engine", "udp", "127.0.0.11:53", own, theSidecar, "engine"},
		{"server", "udp", "192.0.2.53:53", own, theSidecar, "direct"},
		{"server_ipv6", "udp", "[2001:db8:2::53]:53", own, theSidecar, "direct"},
		{"server_tcp", "tcp", "192.0.2.53:53", own, theSidecar, "direct"},
		{"untold", "tcp", "192.0.2.200:80", untold{}, theSidecar, "proxy"},
		{"untold_ipv6", "tcp", "[2001:db8:2::200]:80", untold{}, theSidecar, "proxy"},
		{"untold_udp", "udp", "192.0.2.200:80", untold{}, theSidecar, "refused"},
		{"untold_server", "udp", "192.0.2.53:53", untold{}, theSidecar, "dns"},
		{"untold_engine", "udp", "127.0.0.11:53", untold{}, theSidecar, "dns"},
		{"told_without_mark", "tcp", "192.0.2.200:80", own, who{}, "proxy"},
		{"told_without_mark_ipv6", "tcp", "[2001:db8:2::200]:80", own, who{}, "proxy"},
		{"told_without_group", "tcp", "192.0.2.200:80", own, who{mark: secret}, "proxy"},
		{"told_without_group_server", "udp", "192.0.2.53:53", own, who{mark: secret}, "dns"},
		{"told_with_another_group", "tcp", "192.0.2.200:80", own, who{secret, secretGroup ^ 1}, "proxy"},
		{"told_with_the_group_alone", "tcp", "192.0.2.200:80", own, who{group: secretGroup}, "proxy"},
		{"told_with_another_mark", "tcp", "192.0.2.200:80", own, who{mark: 114514}, "proxy"},
		{"told_with_the_entry's_mark", "tcp", "192.0.2.200:80", own, who{mark: OwnMark}, "proxy"},
		{"told_without_mark_udp", "udp", "192.0.2.200:80", own, who{}, "refused"},
		{"told_without_mark_server", "udp", "192.0.2.53:53", own, who{}, "dns"},
		{"told_without_mark_engine", "udp", "127.0.0.11:53", own, who{}, "dns"},
	} {
		got, c := l.ours(t, tt.told, tt.by, tt.network, tt.to)
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if c != nil && tt.want == "direct" {
			if got := exchange(c); got != "direct" {
				t.Errorf("%s goes on with %s", tt.name, got)
			}
		}
	}

	// All connections end in a quarantine.
	_, c := l.ours(t, own, theSidecar, "tcp", "192.0.2.200:80")
	if err := l.gate.Quarantine(); err != nil {
		t.Fatal(err)
	}
	if got := exchange(c); got == "direct" {
		t.Error("the sidecar's connection goes on in a quarantine")
	}
	for _, network := range []string{"tcp", "udp"} {
		if got, _ := l.ours(t, own, theSidecar, network, "192.0.2.200:80"); got != "refused" {
			t.Errorf("%s in a quarantine: %s", network, got)
		}
	}
	if err := l.gate.Switch(policy.Run); err != nil {
		t.Fatal(err)
	}
	if got, _ := l.ours(t, own, theSidecar, "tcp", "192.0.2.200:80"); got != "direct" {
		t.Errorf("a connection after a quarantine: %s", got)
	}
	// Without rules nothing is asked of the sidecar.
	if err := l.gate.Remove(); err != nil {
		t.Fatal(err)
	}
	if got, _ := l.ours(t, untold{}, who{}, "tcp", "192.0.2.200:80"); got != "direct" {
		t.Errorf("a connection without rules: %s", got)
	}
}

// Nobody sees the sidecar's mark on its packets: not when they leave, nor on the loopback, nor when the rules take them
// for anybody's, nor in a quarantine.
func TestSharedMarkIsSecret(t *testing.T) {
	l, own := newShared(t)
	l.engine(t)
	l.install(t, l.shared(t, l.listen(t), phaseOf(t, "allowlist", "ok.test"), phaseOf(t, "no-network")))
	const another = 7
	tap := new(tap)
	l.workload.Run(t, func() (err error) {
		// Sees the packets of all interfaces that have either mark.
		if tap.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(networkOrder(unix.ETH_P_ALL))); err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(tap.fd) })
		filter, err := bpf.Assemble([]bpf.Instruction{
			bpf.LoadExtension{Num: bpf.ExtMark},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: secret, SkipTrue: 1},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: another, SkipTrue: 1},
			bpf.RetConstant{Val: 1 << 16},
			bpf.RetConstant{Val: 0},
		})
		if err != nil {
			return err
		}
		program := make([]unix.SockFilter, len(filter))
		for i, f := range filter {
			program[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
		}
		return unix.SetsockoptSockFprog(tap.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	})
	for _, tt := range []struct {
		told        outgoing.Announcer
		network, to string
	}{
		{own, "tcp", "192.0.2.200:80"}, {own, "tcp", "[2001:db8:2::200]:80"}, {own, "udp", "192.0.2.53:53"}, {own, "udp", "[2001:db8:2::53]:53"},
		{own, "udp", "127.0.0.11:53"}, {untold{}, "tcp", "192.0.2.200:80"}, {untold{}, "tcp", "[2001:db8:2::200]:80"},
		{untold{}, "udp", "192.0.2.53:53"}, {untold{}, "udp", "192.0.2.200:80"}, {untold{}, "tcp", own4.String() + ":1"},
	} {
		c, end, err := l.connect(tt.told, theSidecar, tt.network, tt.to)
		if err != nil {
			continue // refused
		}
		exchange(c)
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	var listener net.Listener
	l.workload.Run(t, func() (err error) {
		listener, err = net.Listen("tcp", own4.String()+":0")
		return err
	})
	defer listener.Close()
	inside, end, err := l.connect(own, theSidecar, "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Quarantine(); err != nil {
		t.Fatal(err)
	}
	_, err = inside.Write([]byte("in a quarantine"))
	if err := errors.Join(err, end()); err != nil {
		t.Error(err)
	}
	// Behind all that, the workload's own mark, which is nobody's business.
	if c, end, err := l.connect(untold{}, who{mark: another}, "udp", own4.String()+":9"); err != nil {
		t.Fatal(err)
	} else {
		_, err = c.Write([]byte("the end"))
		if err := errors.Join(err, end()); err != nil {
			t.Fatal(err)
		}
	}
	if seen := tap.all(t, "the end"); len(seen) != 1 {
		t.Errorf("%d packets have the mark, the first: %x", len(seen)-1, seen[0])
	}
}

// Phases that are not public let TCP out and nothing else, and nobody in.
func TestSharedPhases(t *testing.T) {
	l, _ := newShared(t)
	l.serve(t)
	open, closed := phaseOf(t, "public"), phaseOf(t, "no-network")
	some := phaseOf(t, "allowlist", good4.String(), good6.String(), sibling4.String(), "ok.test")
	for _, p := range []*direct.Phase{&open, &closed, &some} {
		p.Inbound = policy.InboundAll // does not hold
	}
	l.install(t, l.shared(t, l.listen(t), open, closed, some))
	phases := [...]string{policy.Baseline: "public", policy.Run: "no-network", policy.Evaluation: "allowlist"}
	for _, phase := range []policy.Phase{policy.Run, policy.Baseline, policy.Evaluation, policy.Run, policy.Evaluation} {
		if err := errors.Join(l.gate.Both(phase), l.gate.Switch(phase)); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			protocol, to string
			want         [3]string // of the phases as they are written
		}{
			// A public phase beside one with names judges TCP where that does.
			{"tcp", "192.0.2.5:80", [3]string{"proxy", "refused", "direct"}},
			{"tcp", "[2001:db8:2::5]:80", [3]string{"proxy", "refused", "direct"}},
			{"tcp", "192.0.2.200:80", [3]string{"proxy", "refused", "proxy"}},
			{"tcp", "[2001:db8:2::200]:80", [3]string{"proxy", "refused", "proxy"}},
			{"tcp", "198.51.100.20:80", [3]string{"direct", "refused", "direct"}},
			{"udp", "192.0.2.5:80", [3]string{"direct", "refused", "refused"}},
			{"udp", "[2001:db8:2::5]:80", [3]string{"direct", "refused", "refused"}},
			{"udp", "192.0.2.200:53", [3]string{"dns", "dns", "dns"}},
			{"ping", "192.0.2.5", [3]string{"direct", "refused", "refused"}},
			{"ping", "2001:db8:2::5", [3]string{"direct", "refused", "refused"}},
		} {
			if got := l.probe(t, tt.protocol, tt.to); got != tt.want[phase] {
				t.Errorf("%s: %s %s: %s, want %s (%v)", phases[phase], tt.protocol, tt.to, got, tt.want[phase], lastRefusal.Load())
			}
		}
	}
	// From outside, last under an allowlist that names who dials.
	for _, phase := range []policy.Phase{policy.Evaluation, policy.Baseline} {
		if err := l.gate.Switch(phase); err != nil {
			t.Fatal(err)
		}
		for _, a := range [][2]netip.Addr{{sibling4, own4}, {sibling6, own6}} {
			c, err := l.dial(t, "udp", a[0], a[1])
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if phase == policy.Baseline {
				if got := exchange(c); got != "inside" {
					t.Errorf("%s: from %v: %s", phases[phase], a[0], got)
				}
				continue
			}
			before := l.refusals(t, phase)
			if _, err := c.Write([]byte{'?'}); err != nil {
				t.Fatal(err)
			}
			wait(t, "the datagram to be refused", func() bool { return l.refusals(t, phase) > before })
		}
	}
}

// refusals is how much the phase has refused.
func (l *lab) refusals(t *testing.T, phase policy.Phase) uint64 {
	t.Helper()
	c, err := l.gate.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c.Refused[phase].Packets
}

// refusedAlways is how much was refused whatever the phase.
func (l *lab) refusedAlways(t *testing.T) uint64 {
	t.Helper()
	c, err := l.gate.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c.RefusedAlways.Packets
}

// Without a guard, nothing else gets out either: the attempts of TestNothingGetsPast, frames, and answers to somebody
// who was never there.
func TestSharedNothingGetsPast(t *testing.T) {
	all := append(attempts(),
		attempt{"frame", true, func(text string) error {
			return sendFrameOf("eth0", ip4{from: own4, to: bad4, protocol: unix.IPPROTO_UDP}.packet(udp(1234, 80, text)))
		}},
		attempt{"frame_past_the_queue", true, func(text string) error {
			return sendFrameOf("eth0", ip4{from: own4, to: bad4, protocol: unix.IPPROTO_UDP}.packet(udp(1234, 80, text)), pastQueue)
		}},
		attempt{"frame_ipv6", true, func(text string) error {
			return sendFrameOf("eth0", ip6{from: own6, to: bad6, next: unix.IPPROTO_UDP, hops: 64}.packet(udp6(own6, bad6, 1234, 80, text)))
		}},
		attempt{"frame_past_the_queue_ipv6", true, func(text string) error {
			return sendFrameOf("eth0", ip6{from: own6, to: bad6, next: unix.IPPROTO_UDP, hops: 64}.packet(udp6(own6, bad6, 1234, 80, text)), pastQueue)
		}},
		attempt{"answer_to_a_frame_on_the_loopback", false, inTurn(func(string) error {
			return sendFrameOf("lo", ip4{from: bad4, to: own4, protocol: unix.IPPROTO_UDP}.packet(udp(80, 4321, "first")))
		}, func(text string) error {
			return sendUDP(netip.AddrPortFrom(bad4, 80), "", func(fd int) error { return unix.Bind(fd, &unix.SockaddrInet4{Port: 4321, Addr: own4.As4()}) })(text)
		})})
	for _, tt := range []struct {
		name, mode string
		targets    []string
	}{
		{"public", "public", nil},
		{"no_network", "no-network", nil},
		{"allowlist", "allowlist", []string{good4.String(), good6.String(), "ok.test"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, own := newShared(t)
			p := phaseOf(t, tt.mode, tt.targets...)
			l.install(t, l.shared(t, l.listen(t), p, p, p))
			tap := newTap(t, l.outside, "eth0")
			for i, a := range all {
				if tt.mode == "public" && !a.public {
					continue
				}
				l.workload.Run(t, func() error { _ = a.send(leak(i)); return nil })
			}
			l.end(t, own)
			for i := range leaked(tap.until(t, "the end")) {
				t.Errorf("came out: %s", all[i].name)
			}
		})
	}
}

// What a workload makes itself does not pass for a packet of the sidecar's connections, which it can see.
func TestSharedForged(t *testing.T) {
	for _, f := range []struct {
		name                   string
		origin, server         string
		from                   netip.Addr
		packet                 func(to netip.Addr, protocol byte, payload []byte) []byte
		fragmentFirst, further func(to netip.Addr, payload []byte) []byte
	}{
		{"ipv4", "192.0.2.200:80", "192.0.2.53:53", own4,
			func(to netip.Addr, protocol byte, payload []byte) []byte {
				return ip4{from: own4, to: to, protocol: protocol}.packet(payload)
			},
			func(to netip.Addr, payload []byte) []byte {
				return ip4{from: own4, to: to, protocol: unix.IPPROTO_TCP, fragment: 0x2000}.packet(payload)
			},
			func(to netip.Addr, payload []byte) []byte {
				return ip4{from: own4, to: to, protocol: unix.IPPROTO_TCP, fragment: 4}.packet(payload)
			}},
		{"ipv6", "[2001:db8:2::200]:80", "[2001:db8:2::53]:53", own6,
			func(to netip.Addr, protocol byte, payload []byte) []byte {
				return ip6{from: own6, to: to, next: protocol, hops: 64}.packet(payload)
			}, nil, nil},
	} {
		t.Run(f.name, func(t *testing.T) {
			l, own := newShared(t)
			p := phaseOf(t, "allowlist", "ok.test", good4.String())
			l.install(t, l.shared(t, l.listen(t), p, p, p))
			got, c := l.ours(t, own, theSidecar, "tcp", f.origin)
			asked, question := l.ours(t, own, theSidecar, "udp", f.server)
			if got != "direct" || asked != "direct" {
				t.Fatalf("the sidecar's connections: %s, %s", got, asked)
			}
			from := func(c net.Conn) netip.AddrPort {
				return netip.AddrPortFrom(f.from, netip.MustParseAddrPort(c.LocalAddr().String()).Port())
			}
			origin, server := netip.MustParseAddrPort(f.origin), netip.MustParseAddrPort(f.server)
			segment := func(text string) []byte { return rawip.Segment(from(c), origin, 1, 1, 0x18, text) }
			datagram := func(text string) []byte {
				return udp6(f.from, server.Addr(), from(question).Port(), server.Port(), text)
			}
			var all []attempt
			add := func(name string, send func(text string) error) { all = append(all, attempt{name: name, send: send}) }
			for name, prepare := range map[string]func(int) error{
				"plain": nil, "by_device": toDevice("eth0"), "not_put_together": noDefragment,
				"mark_of_entries": withMark(OwnMark), "mark_0": withMark(0), "mark_of_others": withMark(114514),
				"mark_nearly": withMark(secret ^ 1), "mark_alone": withMark(secret),
			} {
				if f.name == "ipv6" && name == "not_put_together" {
					continue // IPv4 alone has that
				}
				add("segment_"+name, func(text string) error {
					return sendRaw(f.packet(origin.Addr(), unix.IPPROTO_TCP, segment(text)), prepare)
				})
				add("datagram_"+name, func(text string) error {
					return sendRaw(f.packet(server.Addr(), unix.IPPROTO_UDP, datagram(text)), prepare)
				})
			}
			for name, prepare := range map[string]func(int) error{"frame": nil, "frame_past_the_queue": pastQueue} {
				prepared := []func(int) error{withMark(OwnMark)}
				if prepare != nil {
					prepared = append(prepared, prepare)
				}
				add(name+"_segment", func(text string) error {
					return sendFrameOf("eth0", f.packet(origin.Addr(), unix.IPPROTO_TCP, segment(text)), prepared...)
				})
				add(name+"_datagram", func(text string) error {
					return sendFrameOf("eth0", f.packet(server.Addr(), unix.IPPROTO_UDP, datagram(text)), prepared...)
				})
			}
			if f.fragmentFirst != nil {
				for name, prepare := range map[string]func(int) error{"": nil, "_not_put_together": noDefragment} {
					add("first_fragment"+name, func(text string) error {
						return sendRaw(f.fragmentFirst(origin.Addr(), segment(text)[:24]), prepare)
					})
					add("further_fragment"+name, func(text string) error {
						return sendRaw(f.further(origin.Addr(), []byte(text)), prepare)
					})
				}
			}
			// A second socket at the same port, which a workload can have, goes where anybody's goes.
			add("same_port", func(text string) error {
				return sendUDP(server, "", reuse, bindTo(from(question)))(text)
			})
			tap := newTap(t, l.outside, "eth0")
			for i, a := range all {
				l.workload.Run(t, func() error { _ = a.send(leak(i)); return nil })
			}
			l.end(t, own)
			for i := range leaked(tap.until(t, "the end")) {
				t.Errorf("came out: %s", all[i].name)
			}
			// The sidecar's go on.
			for _, c := range []net.Conn{c, question} {
				if got := exchange(c); got != "direct" {
					t.Errorf("afterwards the sidecar's connection to %v: %s", c.RemoteAddr(), got)
				}
			}

			// Without rules all but a few of these come out: those are not made wrongly.
			if err := l.gate.Remove(); err != nil {
				t.Fatal(err)
			}
			tap = newTap(t, l.outside, "eth0")
			for i, a := range all {
				l.workload.Run(t, func() error { _ = a.send(leak(i)); return nil })
			}
			c, end, err := l.connect(untold{}, who{}, "udp", f.server)
			if err == nil {
				_, err = c.Write([]byte("the end"))
				err = errors.Join(err, end())
			}
			if err != nil {
				t.Fatal(err)
			}
			came := leaked(tap.until(t, "the end"))
			for i, a := range all {
				if !came[i] && a.name != "same_port" && !strings.HasPrefix(a.name, "first_fragment") && a.name != "further_fragment" {
					t.Errorf("%s does not come out even without rules", a.name)
				}
			}
		})
	}
}

func withMark(mark uint32) func(int) error {
	return func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)) }
}

func pastQueue(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
}

func reuse(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }

func bindTo(a netip.AddrPort) func(int) error {
	return func(fd int) error {
		_, address := socketAddress(a)
		return unix.Bind(fd, address)
	}
}

// What a raw socket sends to the sidecar's own sockets, from the addresses of those whom they are connected to, does not
// come: neither to one that waits for an answer, nor in a quarantine.
func TestSharedForgedAnswers(t *testing.T) {
	for _, f := range []struct{ name, server string }{{"ipv4", "192.0.2.53:53"}, {"ipv6", "[2001:db8:2::53]:53"}} {
		t.Run(f.name, func(t *testing.T) {
			l, own := newShared(t)
			p := phaseOf(t, "allowlist", "ok.test", "192.0.2.53", "2001:db8:2::53")
			l.install(t, l.shared(t, l.listen(t), p, p, p))
			got, c := l.ours(t, own, theSidecar, "udp", f.server)
			if got != "direct" {
				t.Fatalf("the sidecar's question: %s", got)
			}
			server, mine := netip.MustParseAddrPort(f.server), netip.MustParseAddrPort(c.LocalAddr().String())
			forge := func(prepare func(int) error) func(string) error {
				return func(text string) error {
					b := udp6(server.Addr(), mine.Addr(), server.Port(), mine.Port(), text)
					if mine.Addr().Is4() {
						return sendRaw(ip4{from: server.Addr(), to: mine.Addr(), protocol: unix.IPPROTO_UDP}.packet(b), prepare)
					}
					return sendRaw(ip6{from: server.Addr(), to: mine.Addr(), next: unix.IPPROTO_UDP, hops: 64}.packet(b), prepare)
				}
			}
			frame := func(text string) error {
				b := udp6(server.Addr(), mine.Addr(), server.Port(), mine.Port(), text)
				if mine.Addr().Is4() {
					return sendFrameOf("lo", ip4{from: server.Addr(), to: mine.Addr(), protocol: unix.IPPROTO_UDP}.packet(b))
				}
				return sendFrameOf("lo", ip6{from: server.Addr(), to: mine.Addr(), next: unix.IPPROTO_UDP, hops: 64}.packet(b))
			}
			attempts := []func(string) error{frame, forge(nil), forge(withMark(OwnMark))}
			if mine.Addr().Is4() {
				attempts = append(attempts, forge(noDefragment), forge(toDevice("lo")))
			}
			all := func() {
				l.workload.Run(t, func() error {
					for _, send := range attempts {
						_ = send("forged")
					}
					return nil
				})
			}
			refused := func() {
				before := l.refusedAlways(t)
				all()
				wait(t, "forged answers to be refused", func() bool { return l.refusedAlways(t) >= before+uint64(len(attempts)) })
			}
			refused()
			if got := exchange(c); got != "direct" {
				t.Errorf("the next answer: %s", got)
			}
			if err := l.gate.Quarantine(); err != nil {
				t.Fatal(err)
			}
			refused()
			if err := l.gate.Switch(policy.Baseline); err != nil {
				t.Fatal(err)
			}
			if got := exchange(c); got != "direct" {
				t.Errorf("the next answer after a quarantine: %s", got)
			}
			// They do come where there are no rules.
			if err := l.gate.Remove(); err != nil {
				t.Fatal(err)
			}
			wait(t, "a forged answer without rules", func() bool { all(); return exchange(c) == "forged" })
		})
	}
}

// No frame comes in by the loopback, whatever source it names, where a sidecar is, and none with somebody else's elsewhere.
// Nothing that a socket can send there has another source than the namespace's own. So nobody forges an answer to the
// sidecar, or is answered who has never asked.
func TestSharedLoopback(t *testing.T) {
	for name, mine := range map[string]*Shared{"own_namespace": nil, "shared": {Mark: secret, Group: secretGroup}} {
		for _, f := range []struct {
			name     string
			own, bad netip.Addr
		}{{"ipv4", own4, bad4}, {"ipv6", own6, bad6}} {
			t.Run(name+"_"+f.name, func(t *testing.T) {
				l, _ := newShared(t)
				s := l.shared(t, l.listen(t), phaseOf(t, "allowlist", "ok.test"))
				s.Shared = mine
				l.install(t, s)
				frame := func(from netip.Addr, text string) error {
					payload := udp6(from, f.own, 80, 4321, text)
					if f.own.Is4() {
						return sendFrameOf("lo", ip4{from: from, to: f.own, protocol: unix.IPPROTO_UDP}.packet(payload))
					}
					return sendFrameOf("lo", ip6{from: from, to: f.own, next: unix.IPPROTO_UDP, hops: 64}.packet(payload))
				}
				got := make(map[string]bool)
				before := l.refusedAlways(t)
				l.workload.Run(t, func() error {
					c, err := net.ListenUDP("udp", &net.UDPAddr{IP: f.own.AsSlice(), Port: 4321})
					if err != nil {
						return err
					}
					defer c.Close()
					if err := errors.Join(frame(f.bad, "forged"), frame(f.own, "forged with an own source")); err != nil {
						return err
					}
					for _, prepare := range []func(int) error{nil, noDefragment} {
						payload := udp6(f.bad, f.own, 80, 4321, "forged by a raw socket")
						packet := ip4{from: f.bad, to: f.own, protocol: unix.IPPROTO_UDP}.packet(payload)
						if f.own.Is6() {
							packet, prepare = ip6{from: f.bad, to: f.own, next: unix.IPPROTO_UDP, hops: 64}.packet(payload), nil
						}
						_ = sendRaw(packet, prepare)
					}
					refused := before + 4
					if mine == nil {
						refused = before + 3 // what has an own source is the kernel's to judge
					}
					wait(t, "all that to be refused", func() bool { return l.refusedAlways(t) >= refused })
					// Behind all that, from an address of its own.
					end, err := net.DialUDP("udp", nil, c.LocalAddr().(*net.UDPAddr))
					if err != nil {
						return err
					}
					defer end.Close()
					if _, err := end.Write([]byte("the end")); err != nil {
						return err
					}
					buffer := make([]byte, 64)
					for !got["the end"] {
						if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
							return err
						}
						n, _, err := c.ReadFrom(buffer)
						if err != nil {
							return err
						}
						got[string(buffer[:n])] = true
					}
					return nil
				})
				if mine != nil && got["forged with an own source"] || got["forged"] || got["forged by a raw socket"] {
					t.Errorf("came in: %v", got)
				}
			})
		}
	}
}

// The kernel alone asks and answers for neighbours.
func TestSharedARP(t *testing.T) {
	l := newLab(t, false) // where neighbours have to be found
	for name, mode := range map[string]string{"no_network": "no-network", "public": "public"} {
		p := phaseOf(t, mode)
		l.install(t, l.shared(t, l.listen(t), p, p, p))
		for what, prepare := range map[string]func(int) error{"plain": withMark(0), "past_the_queue": pastQueue} {
			for kind, ethertype := range map[string]uint16{"arp": unix.ETH_P_ARP, "rarp": unix.ETH_P_RARP, "vlan": unix.ETH_P_8021Q} {
				if err := sendFrame(t, l.workload, "eth0", ethertype, prepare); !errors.Is(err, unix.ENOBUFS) {
					t.Errorf("%s: %s, %s: %v, want it refused", name, kind, what, err)
				}
			}
		}
	}
	p := phaseOf(t, "public")
	l.install(t, l.shared(t, l.listen(t), p, p, p))
	if got := l.probe(t, "tcp", sibling4.String()+":80"); got != "direct" {
		t.Errorf("a neighbour: %s", got)
	}
}

// While policies change, the sidecar's connections begin and go on, and nothing of the workload's comes out that neither
// policy lets out.
func TestSharedSwitches(t *testing.T) {
	l, own := newShared(t)
	listeners := l.listen(t)
	spec := func(n int) *Spec {
		p := phaseOf(t, "no-network")
		if n%2 == 0 {
			p = phaseOf(t, "allowlist", "ok.test", good4.String(), good6.String())
		}
		return l.shared(t, listeners, p, p, p)
	}
	l.install(t, spec(0))
	var lasting []net.Conn
	for _, to := range []string{"192.0.2.200:80", "[2001:db8:2::200]:80"} {
		for _, network := range []string{"tcp", "udp"} {
			got, c := l.ours(t, own, theSidecar, network, to)
			if got != "direct" {
				t.Fatalf("%s %s: %s", network, to, got)
			}
			lasting = append(lasting, c)
		}
	}
	tap := newTap(t, l.outside, "eth0")
	stop := make(chan struct{})
	var loads sync.WaitGroup
	halt := sync.OnceFunc(func() { close(stop); loads.Wait() })
	defer halt()
	load := func(do func(i int) error) {
		loads.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := do(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	load(func(i int) error {
		to := []string{"192.0.2.200:80", "[2001:db8:2::200]:80"}[i%2]
		c, end, err := l.connect(own, theSidecar, []string{"tcp", "udp"}[i/2%2], to)
		if err != nil {
			return fmt.Errorf("the sidecar's connection to %s: %w", to, err)
		}
		if got := exchange(c); got != "direct" {
			err = fmt.Errorf("the sidecar's connection to %s: %s", to, got)
		}
		return errors.Join(err, end())
	})
	from := netip.AddrPortFrom(own4, netip.MustParseAddrPort(lasting[0].LocalAddr().String()).Port())
	load(func(int) error {
		return l.workload.Do(func() error {
			for _, send := range []func(string) error{
				sendUDP(netip.AddrPortFrom(bad4, 9), ""), sendUDP(netip.AddrPortFrom(good6, 9), ""),
				func(text string) error {
					return sendRaw(tcp4(from, netip.AddrPortFrom(bad4, 80), 1, 1, 0x18, text), nil)
				},
				func(text string) error {
					return sendFrameOf("eth0", ip4{from: own4, to: bad4, protocol: unix.IPPROTO_UDP}.packet(udp(1, 9, text)))
				},
			} {
				_ = send(leak(1))
			}
			return nil
		})
	})
	load(func(int) error { // by a name, which is the proxy's to judge, or refused
		return l.workload.Do(func() error {
			if got := request("tcp", "192.0.2.200:81"); got != "proxy" && got != "refused" {
				return fmt.Errorf("the workload's connection: %s", got)
			}
			return nil
		})
	})
	for n := range 40 {
		if err := l.gate.Stage(spec(n + 1)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.gate.Both(policy.Run), l.gate.Switch(policy.Run)); err != nil {
			t.Fatal(err)
		}
		for _, c := range lasting {
			if got := exchange(c); got != "direct" {
				t.Fatalf("after %d switches the sidecar's connection to %v: %s", n+1, c.RemoteAddr(), got)
			}
		}
	}
	halt()
	l.end(t, own)
	if came := leaked(tap.until(t, "the end")); len(came) > 0 {
		t.Error("something of the workload's came out")
	}
}

// A kernel that cannot refuse frames has no other policy than public, where no guard stands behind the gate.
func TestSharedWithoutFrames(t *testing.T) {
	for _, tt := range []struct {
		name           string
		mode           string
		shared, unheld bool
		refused        bool
	}{
		{"held", "no-network", true, false, false},
		{"unheld", "no-network", true, true, true},
		{"unheld_public", "public", true, true, false},
		{"unheld_with_a_guard", "no-network", false, true, false},
	} {
		s := &Spec{Spec: direct.Spec{Phases: threeOf(t, phaseOf(t, tt.mode), phaseOf(t, tt.mode), phaseOf(t, tt.mode))}}
		if tt.shared {
			s.Shared = &Shared{Mark: secret, Group: secretGroup}
		}
		if err := s.checkFrames(tt.unheld); tt.refused != errors.Is(err, ErrFrames) || !tt.refused && err != nil {
			t.Errorf("%s: %v, want it refused: %v", tt.name, err, tt.refused)
		}
	}
	for _, s := range []*Shared{{}, {Mark: secret}, {Group: secretGroup}} {
		if err := s.check(); err == nil {
			t.Errorf("no error for %+v, which all sockets have", *s)
		}
	}
}

// sendFrameOf sends an IP packet as a frame of the workload's own, to whoever is on the link.
func sendFrameOf(device string, packet []byte, prepare ...func(int) error) error {
	kind := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	return sendFrameOfKind(device, kind, packet, prepare...)
}
