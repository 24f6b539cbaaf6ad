package guard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/dockernet/gate"
	"sluice/dockernet/netns/netnstest"
	"sluice/policy"
)

// Frames that ask for a checksum over a part of their own headers change behind the guard, where they leave the host.
// The gate does not let them out of the container.
func TestChecksumsInOddPlaces(t *testing.T) {
	const port, networkOffset, checksumBytes = 443, 14, 2
	allowed4, allowed6 := netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8:2::5")
	l := newLab(t, "as")
	check(t, l.guard.AddBridge(labBridge, false))
	withoutChecksums(t, l.host, "up0")
	phases := threeOf(t, phaseOf(t, "allowlist", "192.0.2.5:443", "[2001:db8:2::5]:443"))
	l.install(t, "s", phaseOf(t, "public"))
	l.install(t, "a", phases[:]...)
	a := l.containers["a"]
	frames := map[string]struct {
		frame         func(key string) []byte
		start, offset int // in the frame, of what the checksum is of, and from there of where it goes
	}{
		"address6": {func(k string) []byte { return l.fromA(allowed6, ip{from: a.ip6, to: allowed6}.datagram(port, port, k)) }, 20, 22},
		"port6":    {func(k string) []byte { return l.fromA(allowed6, ip{from: a.ip6, to: allowed6}.datagram(port, port, k)) }, networkOffset + 40, 2},
		"port4":    {func(k string) []byte { return l.fromA(allowed4, ip{from: a.ip4, to: allowed4}.datagram(port, port, k)) }, networkOffset + 20, 2},
	}
	// made is such a frame as a packet socket wants it, with what it should be when it leaves the host.
	made := func(name, key string) (asking, frame []byte) {
		f := frames[name]
		frame = f.frame(key)
		header := binary.NativeEndian.AppendUint16([]byte{unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, 0, 0, 0, 0, 0}, uint16(f.start))
		return append(binary.NativeEndian.AppendUint16(header, uint16(f.offset)), frame...), frame
	}
	setOption(t, a.fd, unix.PACKET_VNET_HDR, 1)
	for name, f := range frames {
		key := l.token()
		asking, frame := made(name, key)
		where := l.where(t, "a", []byte(key), asking)
		at := f.start + f.offset
		if !l.watchers["outside"].any(func(got []byte) bool {
			return bytes.Contains(got, []byte(key)) && !bytes.Equal(got[at:at+checksumBytes], frame[at:at+checksumBytes])
		}) {
			t.Errorf("%s without a gate: it reaches %q, unchanged, so this tests nothing", name, where)
		}
	}

	g := gate.New(a.Namespace.Namespace)
	t.Cleanup(g.Close)
	install := func(phases ...direct.Phase) {
		check(t, g.Install(&gate.Spec{
			Spec:      l.spec(t, "a", phases...).Spec,
			Listeners: gate.Listeners{TCP4: 40001, UDP4: 40002, TCP6: 40003, UDP6: 40004},
		}, policy.Baseline))
	}
	// What is public refuses addresses of the floor, and those of IPv4 are safe.
	install(phaseOf(t, "public"), phaseOf(t, "public"), phaseOf(t, "public"))
	for name, want := range map[string]error{"address6": unix.ENOBUFS, "port6": unix.ENOBUFS, "port4": nil} {
		asking, _ := made(name, l.token())
		if err := send(a.fd, asking); !errors.Is(err, want) {
			t.Errorf("%s with a gate that is public: sent with %v, want %v", name, err, want)
		}
	}
	install(phases[:]...)
	for _, bypass := range []int{0, 1} {
		setOption(t, a.fd, unix.PACKET_QDISC_BYPASS, bypass)
		for name := range frames {
			key := l.token()
			asking, _ := made(name, key)
			if err := send(a.fd, asking); !errors.Is(err, unix.ENOBUFS) {
				t.Errorf("%s with a gate, past the queue: %d: sent with %v, want %v", name, bypass, err, unix.ENOBUFS)
			}
			last := []byte(l.token())
			check(t, l.signal(last))
			check(t, l.watchers["outside"].waitFor(patience, last))
			if seen := l.seen([]byte(key)); seen != "" {
				t.Errorf("%s with a gate, past the queue: %d: it leaves:\n%s", name, bypass, seen)
			}
		}
	}
}

func setOption(t *testing.T, fd, option, value int) {
	t.Helper()
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, value); err != nil {
		t.Fatal(err)
	}
}

// withoutChecksums makes an interface one that cannot fill in checksums.
func withoutChecksums(t *testing.T, ns *netnstest.Namespace, device string) {
	t.Helper()
	value := struct{ command, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], device)
	ns.Run(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, _, failed := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		runtime.KeepAlive(&value)
		if failed != 0 {
			return failed
		}
		return nil
	})
}
