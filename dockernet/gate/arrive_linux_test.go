package gate

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/policy"
)

// What the workload sends as an answer goes out only if somebody has opened a connection to it: not if it has made that up
// itself, and not if conntrack has forgotten who opened it.
func TestAnswersToNobody(t *testing.T) {
	const port, far = 4321, 80
	for _, inbound := range []policy.Inbound{policy.InboundAll, policy.InboundHost} {
		for _, f := range []struct {
			name      string
			own, host netip.Addr
		}{
			{"ipv4", own4, netip.MustParseAddr("198.51.100.1")},
			{"ipv6", own6, netip.MustParseAddr("2001:db8:1::1")},
		} {
			// segment and datagram make packets from a far end, or back to it.
			segment := func(from, to netip.AddrPort, flags byte, text string) []byte {
				if f.own.Is4() {
					return tcp4(from, to, 1, 1, flags, text)
				}
				return tcp6(from, to, 1, 1, flags, text)
			}
			datagram := func(from, to netip.AddrPort, text string) []byte {
				payload := udp6(from.Addr(), to.Addr(), from.Port(), to.Port(), text)
				if f.own.Is4() {
					return ip4{from: from.Addr(), to: to.Addr(), protocol: unix.IPPROTO_UDP}.packet(payload)
				}
				return ip6{from: from.Addr(), to: to.Addr(), next: unix.IPPROTO_UDP, hops: 64}.packet(payload)
			}
			const syn, ack = 2, 16
			for _, tt := range []struct {
				name   string
				opened func(l *lab, here, there netip.AddrPort) // to the workload
				answer func(here, there netip.AddrPort, text string) []byte
				leaves bool
			}{
				{"opened", func(l *lab, here, there netip.AddrPort) {
					l.outside.Run(t, func() error { return sendRaw(segment(there, here, syn, ""), nil) })
				}, func(here, there netip.AddrPort, text string) []byte { return segment(here, there, syn|ack, text) }, true},
				{"asked", func(l *lab, here, there netip.AddrPort) {
					l.outside.Run(t, func() error { return sendRaw(datagram(there, here, ""), nil) })
				}, datagram, true},
				{"in_the_middle", func(l *lab, here, there netip.AddrPort) {
					l.outside.Run(t, func() error { return sendRaw(segment(there, here, ack, "more"), nil) })
				}, func(here, there netip.AddrPort, text string) []byte { return segment(here, there, ack, text) }, false},
				{"frame_segment", func(l *lab, here, there netip.AddrPort) {
					l.workload.Run(t, func() error { return sendFrameOf("lo", segment(there, here, syn, "")) })
				}, func(here, there netip.AddrPort, text string) []byte { return segment(here, there, syn|ack, text) }, false},
				{"frame_datagram", func(l *lab, here, there netip.AddrPort) {
					l.workload.Run(t, func() error { return sendFrameOf("lo", datagram(there, here, "")) })
				}, datagram, false},
			} {
				t.Run(fmt.Sprintf("%d_%s_%s", inbound, f.name, tt.name), func(t *testing.T) {
					t.Parallel()
					l := newLab(t, false)
					phase := phaseOf(t, "no-network")
					phase.Inbound = inbound
					if err := l.gate.Install(l.spec(t, l.listen(t), phase), policy.Baseline); err != nil {
						t.Fatal(err)
					}
					l.neighbours(t)
					here, there := netip.AddrPortFrom(f.own, port), netip.AddrPortFrom(f.host, far)
					l.swallow(t, here)
					tap := newTap(t, l.outside, "eth0")
					tt.opened(l, here, there)
					sent := []byte("answer of the workload")
					arrives := func() bool {
						l.workload.Run(t, func() error {
							_ = sendRaw(tt.answer(here, there, string(sent)), nil)
							return nil
						})
						l.outside.Run(t, func() error { return sendUDP(netip.AddrPortFrom(f.own, 9), "")("the end") })
						for _, p := range tap.all(t, "the end") {
							if bytes.Contains(p, sent) {
								return true
							}
						}
						return false
					}
					if tt.leaves {
						wait(t, "the answer", arrives)
						return
					}
					// What was sent before has been looked at by the time this has.
					for range 3 {
						if arrives() {
							t.Fatal("LEAK: it comes out")
						}
					}
				})
			}
		}
	}
}

// swallow takes all that comes to a port, so that the kernel does not say that nobody is there.
func (l *lab) swallow(t *testing.T, at netip.AddrPort) {
	t.Helper()
	family, address := socketAddress(at)
	l.workload.Run(t, func() error {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { unix.Close(fd) })
			none := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
			err = errors.Join(unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none[0]}),
				unix.Bind(fd, address))
			if err == nil && kind == unix.SOCK_STREAM {
				err = unix.Listen(fd, 1)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
