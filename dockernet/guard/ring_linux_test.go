package guard

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of a frame in memory that a workload shares with the kernel (PACKET_TX_RING), the kernel's own look at IPv6 takes the
// kind of the second header from elsewhere, and so another place for its ports. The guard's rules read them where they are.
func TestFramesInSharedMemory(t *testing.T) {
	const many = 2000 // of 100, one passed
	l := newLab(t, "as")
	l.install(t, "s", phaseOf(t, "public"))
	a := l.containers["a"]
	to4, to6 := netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8:2::5")
	var ring []byte
	a.Run(t, func() error {
		fd, err := packetSocket("eth0")
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		setOption(t, fd, unix.PACKET_VERSION, unix.TPACKET_V2)
		size := unix.Getpagesize()
		one := unix.TpacketReq{Block_size: uint32(size), Block_nr: 1, Frame_size: uint32(size), Frame_nr: 1}
		if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_TX_RING, &one); err != nil {
			return err
		}
		unix.Close(a.fd)
		a.fd = fd
		ring, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		return err
	})
	t.Cleanup(func() { _ = unix.Munmap(ring) })
	sendByRing := func(frame []byte, times int) error {
		copy(ring[32:], frame) // behind struct tpacket2_hdr
		binary.NativeEndian.PutUint32(ring[4:], uint32(len(frame)))
		for range times {
			atomic.StoreUint32((*uint32)(unsafe.Pointer(&ring[0])), 1) // TP_STATUS_SEND_REQUEST
			if err := unix.Sendto(a.fd, nil, 0, nil); err != nil {
				return err
			}
		}
		return nil
	}
	// As options hop by hop, this datagram's header has 16 bytes, and then comes one for an allowed port.
	const sourcePort = unix.IPPROTO_UDP<<8 | 1
	hidden := strings.Repeat("\x00", 8) + "\x01\xbb\x01\xbb\x00\x28\x00\x00"
	for _, row := range []struct {
		name   string
		policy []string
		frame  func(key string) []byte
		passes bool
	}{
		{"allowed4", []string{"192.0.2.5:443"}, func(k string) []byte { return l.fromA(to4, ip{from: a.ip4, to: to4}.datagram(444, 443, k)) }, true},
		{"allowed6", []string{"[2001:db8:2::5]:443"}, func(k string) []byte { return l.fromA(to6, ip{from: a.ip6, to: to6}.datagram(444, 443, k)) }, true},
		{"hidden-port", []string{"[2001:db8:2::5]:443"}, func(k string) []byte {
			return l.fromA(to6, ip{from: a.ip6, to: to6}.datagram(sourcePort, 22, hidden+k))
		}, false},
		{"hidden-port-allowed", []string{"[2001:db8:2::5]:22"}, func(k string) []byte {
			return l.fromA(to6, ip{from: a.ip6, to: to6}.datagram(sourcePort, 22, hidden+k))
		}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			l.install(t, "a", phaseOf(t, "allowlist", row.policy...))
			key := l.token()
			times := 1
			if !row.passes {
				times = many
			}
			last := l.token()
			onOneCPU(t, func() error { // which keeps the order
				if err := sendByRing(row.frame(key), times); err != nil {
					return err
				}
				return l.signal([]byte(last))
			})
			if row.passes {
				check(t, l.watchers["outside"].waitFor(patience, []byte(key)))
				return
			}
			check(t, l.watchers["outside"].waitFor(patience, []byte(last)))
			if n := l.watchers["outside"].count([]byte(key)); n > 0 {
				t.Errorf("LEAK: %d of %d frames for another port pass", n, many)
			}
		})
	}
}
