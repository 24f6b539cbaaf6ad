package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
)

// tap sees every packet that comes in through an interface.
type tap struct{ fd int }

func newTap(t testing.TB, ns *netnstest.Namespace, name string) *tap {
	t.Helper()
	tap := new(tap)
	ns.Run(t, func() (err error) {
		if tap.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		return unix.Bind(tap.fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: link.Index})
	})
	t.Cleanup(func() { unix.Close(tap.fd) })
	_ = unix.SetsockoptInt(tap.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	return tap
}

func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// until returns all packets that have come when one with the text has, or fails after a time that is long enough.
func (p *tap) until(t testing.TB, text string) (packets [][]byte) {
	t.Helper()
	return p.read(t, text, func(kind uint8) bool { return kind != unix.PACKET_OUTGOING })
}

// all is until for those too that leave.
func (p *tap) all(t testing.TB, text string) (packets [][]byte) {
	t.Helper()
	return p.read(t, text, func(uint8) bool { return true })
}

func (p *tap) read(t testing.TB, text string, wanted func(kind uint8) bool) (packets [][]byte) {
	t.Helper()
	deadline := time.Now().Add(patience)
	buffer := make([]byte, 1<<16)
	for time.Now().Before(deadline) {
		poll := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, int(time.Until(deadline).Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		n, from, err := unix.Recvfrom(p.fd, buffer, unix.MSG_DONTWAIT)
		if err != nil || !wanted(from.(*unix.SockaddrLinklayer).Pkttype) {
			continue
		}
		packet := bytes.Clone(buffer[:n])
		packets = append(packets, packet)
		if bytes.Contains(packet, []byte(text)) {
			return packets
		}
	}
	t.Fatalf("no packet with %q came", text)
	return nil
}
