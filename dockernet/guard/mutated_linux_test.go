package guard

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/policy"
)

// Frames that are nearly right, with a few bytes changed and more of them: none carries what a container wants it to,
// whoever is to get it, where the policy allows nothing or the port has no rules.
func TestMutatedFrames(t *testing.T) {
	const rounds, each = 40, 100 // the kernel's queue takes 1000 frames
	for name, phase := range map[string]func(t testing.TB) direct.Phase{
		"without_rules": nil,
		"no_network":    func(t testing.TB) direct.Phase { return phaseOf(t, "no-network") },
		"inbound_none": func(t testing.TB) direct.Phase {
			return inbound(phaseOf(t, "allowlist", "192.0.2.5:443", "[2001:db8:2::5]:443"), policy.InboundNone)
		},
		"allowlist": func(t testing.TB) direct.Phase {
			return phaseOf(t, "allowlist", "192.0.2.5:443", "[2001:db8:2::5]:443")
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, "absc")
			check(t, l.guard.AddBridge(labBridge, true))
			l.install(t, "s", phaseOf(t, "public"))
			if phase != nil {
				l.install(t, "a", phase(t))
			}
			l.silence(t, "a")
			const seed = 1
			r := rand.New(rand.NewPCG(seed, seed))
			for range rounds {
				key := []byte(l.token() + "mutated")
				var frames [][]byte
				for range each {
					frames = append(frames, l.mutated(r, key))
				}
				if got := l.where(t, "a", key, frames...); got != "" {
					t.Fatalf("something reaches %q:\n%s", got, l.seen(key))
				}
			}
		})
	}
}

// seen are the frames with a key that somebody has got.
func (l *lab) seen(key []byte) (text string) {
	for name, w := range l.watchers {
		w.any(func(f []byte) bool {
			if bytes.Contains(f, key) {
				text += fmt.Sprintf("%s: %x\n", name, f)
			}
			return false
		})
	}
	return text
}

// mutated makes a frame of container a with the key at its end.
func (l *lab) mutated(r *rand.Rand, key []byte) []byte {
	a, b := l.containers["a"], l.containers["b"]
	pick := func(list ...netip.Addr) netip.Addr { return list[r.IntN(len(list))] }
	to4 := pick(b.ip4, gateway.ip4, remote4, uplink4, netip.MustParseAddr("198.51.100.255"), netip.MustParseAddr("224.0.0.251"), a.ip4)
	to6 := pick(b.ip6, b.linkLocal6, gateway.ip6, remote6, uplink6, netip.MustParseAddr("ff02::1"), solicitedNodeOf(b.ip6), a.ip6)
	h4, h6 := ip{from: a.ip4, to: to4}, ip{from: pick(a.ip6, a.linkLocal6), to: to6, hops: []byte{0, 1, 255}[r.IntN(3)]}
	port := []uint16{53, 80, 443, 0, 5353, 67, 547}[r.IntN(7)]
	k, flags, words := string(key), byte(r.IntN(256)), r.IntN(4)
	var packet []byte
	kind := uint16(unix.ETH_P_IP)
	switch r.IntN(13) {
	case 0:
		packet = h4.datagram(port, port, k)
	case 1:
		packet = h4.segment(port, port, flags, words, k)
	case 2:
		packet = h4.echo(byte(r.IntN(20)), k)
	case 3:
		h4.proto = []byte{4, 41, 47, 132, 2, 112, 89, 136, 50, 51, 255, 0}[r.IntN(12)]
		packet = h4.packet(append(h4.datagram(1, port, ""), key...))
	case 4:
		h4.proto, h4.fragment = []byte{1, 6, 17}[r.IntN(3)], uint16(r.IntN(1<<16))
		packet = h4.packet(key)
	case 5:
		h4.options = bytes.Repeat([]byte{byte(r.IntN(256)), 4, 1, 1}, 1+r.IntN(3))
		packet = h4.datagram(port, port, k)
	case 6:
		kind, packet = unix.ETH_P_IPV6, h6.datagram(port, port, k)
	case 7:
		kind, packet = unix.ETH_P_IPV6, h6.segment(port, port, flags, words, k)
	case 8:
		kind, packet = unix.ETH_P_IPV6, h6.echo([]byte{1, 2, 3, 4, 128, 129, 130, 131, 132, 133, 134, 137, 143}[r.IntN(13)], k)
	case 9:
		h6.proto = []byte{0, 43, 44, 60, 51, 135, 59, 4, 41, 253}[r.IntN(10)]
		kind, packet = unix.ETH_P_IPV6, h6.packet(append([]byte{[]byte{6, 17, 58}[r.IntN(3)], byte(r.IntN(2)), 0, 0, 0, 0, 0, 0, 0, byte(port), 0, 80}, key...))
	case 10:
		option := []byte{sourceOption, targetOption, nonceOption, 5, 25}[r.IntN(5)]
		kind, packet = unix.ETH_P_IPV6, h6.message([]byte{solicit, advert}[r.IntN(2)], 0, append(neighbour(0, to6, option, a.hardware), key...))
	case 11:
		kind, packet = unix.ETH_P_ARP, append(arpPacket(uint16(r.IntN(10)), a.hardware, a.ip4, b.hardware, to4), key...)
	case 12:
		kind, packet = []uint16{ethVLAN, ethQinQ, ethPPPoE, ethLLDP, ethLab, 0x8035, 0x88e5, 0x86dd, 0x0800, 0x22f0, 0x893a, 3, 1500}[r.IntN(13)], append([]byte{0, 1, 8, 0}, h4.datagram(1, 2, k)...)
	}
	hardware := [][6]byte{b.hardware, bridgeA, broadcast, {1, 0x80, 0xc2, 0, 0, byte(r.IntN(16))}, groupHardware(netip.MustParseAddr("ff02::1")), a.hardware}[r.IntN(6)]
	frame := ethernet(hardware, a.hardware, kind, packet)
	if r.IntN(4) == 0 {
		frame = tagged(frame, []uint16{ethVLAN, ethQinQ}[r.IntN(2)], uint16(r.IntN(1<<16)))
	}
	for range r.IntN(4) {
		frame[r.IntN(len(frame)-len(key))] = byte(r.IntN(256))
	}
	return frame
}
