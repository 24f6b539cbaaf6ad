package internet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Enter runs f on a thread in the internet's network namespace: sockets that f opens are the internet's.
func (n *Internet) Enter(f func() error) error { return n.enter(f) }

// Packet is a TCP or UDP packet as it arrived on the internet's end of the link, before any rule there saw it.
type Packet struct {
	// Time is the kernel's, by the same clock as time.Now, when the packet came in.
	Time     time.Time
	TCP      bool
	SYN      bool // of a TCP packet: it opens a connection or is the answer to one that does
	From, To netip.AddrPort
	// Length is that of the payload in bytes, whatever the packet is: a reset may have one.
	Length int
	// Payload is the payload, or the beginning of it. It holds until the next packet.
	Payload []byte
}

// Capture reads what arrives on the internet's end of the link.
type Capture struct {
	file *os.File
	done chan struct{}
	err  error
}

// captureBuffer is what the kernel may keep for a reader that is late, in bytes: some 100,000 small packets.
const captureBuffer = 128 << 20

// captured is how much of a packet is looked at, in bytes: all headers and the beginning of the payload.
const captured = 192

// Capture calls see for every TCP and UDP packet that arrives from now on, one after another, until [Capture.Close].
// Packets without a port, fragments and packets with IPv6 extension headers are left out.
func (n *Internet) Capture(see func(*Packet)) (*Capture, error) {
	c := &Capture{done: make(chan struct{})}
	if err := n.enter(c.open); err != nil {
		return nil, fmt.Errorf("capture on the internet's link: %w", err)
	}
	go func() {
		defer close(c.done)
		c.err = c.read(see)
	}()
	return c, nil
}

// Close ends the capture, when see has been called for the last time. Its error says so if the kernel had to leave
// packets out.
func (c *Capture) Close() error {
	lost, err := c.lost()
	c.file.SetReadDeadline(time.Now())
	<-c.done
	if err == nil && lost > 0 {
		err = fmt.Errorf("the capture has lost %d packets", lost)
	}
	return errors.Join(err, c.err, c.file.Close())
}

// open runs in the namespace. Of the interfaces there, lo has packets of the internet's own, which no capture shows twice.
func (c *Capture) open() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c.file = os.NewFile(uintptr(fd), "capture")
	link, err := net.InterfaceByName("link")
	if err == nil {
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: link.Index}))
	}
	if err != nil {
		return errors.Join(err, c.file.Close())
	}
	return nil
}

func networkOrder(v uint16) uint16 { return v<<8 | v>>8 } // of packet(7), on machines that are little-endian

func (c *Capture) lost() (uint32, error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var stats *unix.TpacketStats
	var inner error
	err = raw.Control(func(fd uintptr) {
		stats, inner = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	})
	if err := errors.Join(err, inner); err != nil {
		return 0, fmt.Errorf("statistics of the capture: %w", err)
	}
	return stats.Drops, nil
}

// read hands packets on until the file's deadline.
func (c *Capture) read(see func(*Packet)) error {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	buffer, control := make([]byte, captured), make([]byte, 128)
	for {
		var size, controlSize int
		var inner error
		err := raw.Read(func(fd uintptr) bool {
			size, controlSize, _, _, inner = unix.Recvmsg(int(fd), buffer, control, unix.MSG_DONTWAIT)
			return inner != unix.EAGAIN
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		case inner == unix.EINTR:
			continue
		case inner != nil:
			return fmt.Errorf("read a packet: %w", inner)
		}
		var p Packet
		if !p.parse(buffer[:size]) {
			continue
		}
		if p.Time, err = arrival(control[:controlSize]); err != nil {
			return err
		}
		see(&p)
	}
}

// arrival reads the time that the kernel gives with a packet.
func arrival(control []byte) (time.Time, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, fmt.Errorf("read a packet's time: %w", err)
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
			var at unix.Timespec
			if _, err := binary.Decode(m.Data, binary.NativeEndian, &at); err != nil {
				return time.Time{}, fmt.Errorf("read a packet's time: %w", err)
			}
			return time.Unix(at.Unix()), nil
		}
	}
	return time.Time{}, errors.New("a packet has no time")
}

// parse reads an IP packet, and reports whether it has ports.
func (p *Packet) parse(b []byte) bool {
	if len(b) < 20 {
		return false
	}
	var protocol byte
	var total int // of the packet, in bytes
	var from, to netip.Addr
	switch b[0] >> 4 {
	case 4:
		header := int(b[0]&15) * 4
		protocol, total = b[9], int(binary.BigEndian.Uint16(b[2:]))
		if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 || header < 20 || len(b) < header { // a fragment
			return false
		}
		from, to = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		b, total = b[header:], total-header
	case 6:
		if len(b) < 40 {
			return false
		}
		protocol, total = b[6], int(binary.BigEndian.Uint16(b[4:]))
		from, to = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		b = b[40:]
	default:
		return false
	}
	header := 8
	switch {
	case protocol == unix.IPPROTO_TCP && len(b) >= 20:
		header = int(b[12]>>4) * 4
		p.TCP, p.SYN = true, b[13]&0x02 != 0
	case protocol == unix.IPPROTO_UDP && len(b) >= 8:
	default:
		return false
	}
	p.From = netip.AddrPortFrom(from, binary.BigEndian.Uint16(b))
	p.To = netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:]))
	p.Length, p.Payload = total-header, b[min(header, len(b)):]
	return true
}
