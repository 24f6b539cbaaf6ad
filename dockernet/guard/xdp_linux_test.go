package guard

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/dockernet/gate"
	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/xdp"
	"sluice/policy"
)

// xdpSocket is one of AF_XDP in copy mode on the first queue of an interface, with a transmit ring.
type xdpSocket struct {
	fd         int
	umem, ring []byte
	offsets    unix.XDPMmapOffsets
	sent       uint32
}

func openXDP(t *testing.T, ns *netnstest.Namespace, device string) (s *xdpSocket, err error) {
	t.Helper()
	const page, entries = 4096, 8
	ns.Run(t, func() error {
		err = func() error {
			link, err := net.InterfaceByName(device)
			if err != nil {
				return err
			}
			fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			s = &xdpSocket{fd: fd}
			if s.umem, err = unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
				return err
			}
			reg := struct {
				addr, length    uint64
				chunk, headroom uint32
				flags, metadata uint32
			}{uint64(uintptr(unsafe.Pointer(&s.umem[0]))), 2 * page, page, 0, 1 << 2, 24}
			if _, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG, uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0); e != 0 {
				return fmt.Errorf("umem: %w", e)
			}
			for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_TX_RING} {
				if err := unix.SetsockoptInt(fd, unix.SOL_XDP, ring, entries); err != nil {
					return fmt.Errorf("ring %d: %w", ring, err)
				}
			}
			size := uint32(unsafe.Sizeof(s.offsets))
			if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, uintptr(unsafe.Pointer(&s.offsets)), uintptr(unsafe.Pointer(&size)), 0); e != 0 {
				return fmt.Errorf("offsets: %w", e)
			}
			if s.ring, err = unix.Mmap(fd, unix.XDP_PGOFF_TX_RING, int(s.offsets.Tx.Desc)+entries*16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
				return fmt.Errorf("map ring: %w", err)
			}
			if err := unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(link.Index)}); err != nil {
				return fmt.Errorf("bind: %w", err)
			}
			return nil
		}()
		return nil
	})
	return s, err
}

// send sends a frame, with a checksum of what follows start, offset bytes behind that.
func (s *xdpSocket) send(frame []byte, start, offset uint16) error {
	const at, metadata = 256, 24
	copy(s.umem[at:], frame)
	*(*uint64)(unsafe.Pointer(&s.umem[at-metadata])) = 1 << 1 // XDP_TXMD_FLAGS_CHECKSUM
	*(*uint16)(unsafe.Pointer(&s.umem[at-metadata+8])) = start
	*(*uint16)(unsafe.Pointer(&s.umem[at-metadata+10])) = offset
	desc := (*unix.XDPDesc)(unsafe.Pointer(&s.ring[s.offsets.Tx.Desc+uint64(s.sent%8)*16]))
	*desc = unix.XDPDesc{Addr: at, Len: uint32(len(frame)), Options: 1 << 1} // XDP_TX_METADATA
	s.sent++
	*(*uint32)(unsafe.Pointer(&s.ring[s.offsets.Tx.Producer])) = s.sent
	return unix.Sendto(s.fd, nil, unix.MSG_DONTWAIT, nil)
}

// Sockets of AF_XDP pass the rules inside, and can ask for checksums over a part of their headers as packet sockets can.
// A workload cannot have one where its queues are kept (package xdp).
func TestChecksumsOfXDP(t *testing.T) {
	const start, offset = 20, 22 // of the checksum, and from there where it goes: into the destination
	l := newLab(t, "as")
	check(t, l.guard.AddBridge(labBridge, false))
	withoutChecksums(t, l.host, "up0")
	phases := threeOf(t, phaseOf(t, "allowlist", "[2001:db8:2::5]:443"))
	l.install(t, "s", phaseOf(t, "public"))
	l.install(t, "a", phases[:]...)
	a := l.containers["a"]
	g := gate.New(a.Namespace.Namespace)
	t.Cleanup(g.Close)
	check(t, g.Install(&gate.Spec{
		Spec:      l.spec(t, "a", phases[:]...).Spec,
		Listeners: gate.Listeners{TCP4: 40001, UDP4: 40002, TCP6: 40003, UDP6: 40004},
	}, policy.Baseline))
	s, err := openXDP(t, a.Namespace, "eth0")
	if err != nil {
		t.Fatalf("without queues kept: %v", err)
	}
	key, to := l.token(), netip.MustParseAddr("2001:db8:2::5")
	frame := l.fromA(to, ip{from: a.ip6, to: to}.datagram(443, 443, key))
	check(t, s.send(frame, start, offset))
	last := []byte(l.token())
	check(t, l.signal(last))
	check(t, l.watchers["outside"].waitFor(patience, last))
	if !l.watchers["outside"].any(func(got []byte) bool {
		return bytes.Contains(got, []byte(key)) && !bytes.Equal(got[start+offset:start+offset+2], frame[start+offset:start+offset+2])
	}) {
		t.Error("without queues kept: it does not leave with another destination, so this tests nothing (Linux 6.8 or newer)")
	}

	var queues xdp.Queues
	t.Cleanup(queues.Close)
	queues.Patience = time.Millisecond
	if err := queues.Keep(a.Namespace.Namespace); !errors.Is(err, xdp.ErrTaken) {
		t.Errorf("a queue that the workload has: %v", err)
	}
	check(t, unix.Munmap(s.ring))
	check(t, unix.Close(s.fd))
	queues.Patience = 0
	check(t, queues.Keep(a.Namespace.Namespace))
	if _, err := openXDP(t, a.Namespace, "eth0"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("with queues kept: %v", err)
	}
	check(t, queues.Keep(a.Namespace.Namespace)) // once more is no error
}
