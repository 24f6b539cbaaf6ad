package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice/controller"
	"sluice/dockernet/gate"
	"sluice/proxy/poll"
)

// Of linux/netfilter/nfnetlink_log.h.
const (
	logPacket, logConfig = 0, 1

	configCommand, configMode, configThreshold = 1, 2, 5
	commandBind, copyPacket                    = 1, 2

	attributeIn, attributePhysicalIn, attributePayload, attributePrefix = 4, 6, 9, 10
)

// genHeader is what messages of netfilter begin with: family, version and the group.
const genHeader = 4

// logged is a packet that a rule has logged. The payload is valid while somebody is told of it.
type logged struct {
	prefix  string
	in      uint32 // the index of the interface that it came from, 0 if it was sent here
	payload []byte
}

// logs reads what rules have logged in any number of network namespaces, on one goroutine with one buffer.
type logs struct {
	loop    *poll.Loop
	running sync.WaitGroup
	end     context.CancelFunc
	buffer  [64 << 10]byte // belongs to the loop
}

func newLogs() (*logs, error) {
	loop, err := poll.New()
	if err != nil {
		return nil, fmt.Errorf("log of refusals: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &logs{loop: loop, end: cancel}
	l.running.Go(func() { _ = loop.Run(ctx) }) // it fails where the loop was closed, which nobody else does
	return l, nil
}

// close ends it. Nobody is told anything any more.
func (l *logs) close() {
	l.end()
	l.running.Wait()
}

// do runs f where nobody is told anything meanwhile.
func (l *logs) do(f func()) {
	if l.loop.Do(context.Background(), f) != nil {
		f() // it has ended
	}
}

// open takes the messages of a group, in the network namespace that in runs functions in, and calls tell with each, one at
// a time, until stop has returned. tell must not block. What comes too fast is lost: the kernel's counters have it.
func (l *logs) open(in func(func() error) error, group uint16, tell func(logged)) (stop func(), err error) {
	s := &logSocket{logs: l, tell: tell}
	err = in(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, fmt.Errorf("log of refusals: %w", err)
	}
	if err := s.bind(group); err != nil {
		unix.Close(s.fd)
		return nil, fmt.Errorf("log of refusals: group %d: %w", group, err)
	}
	if ended := l.loop.Do(context.Background(), func() { s.token, err = l.loop.Add(s.fd, s, 0, poll.Readable) }); ended != nil {
		err = ended
	}
	if err != nil {
		unix.Close(s.fd)
		return nil, fmt.Errorf("log of refusals: %w", err)
	}
	return func() {
		l.do(func() {
			l.loop.Remove(s.token)
			unix.Close(s.fd)
		})
	}, nil
}

// logSocket is what one group's messages come by.
type logSocket struct {
	logs  *logs
	fd    int
	token poll.Token
	tell  func(logged)
}

// bind asks for the messages of a group.
func (s *logSocket) bind(group uint16) error {
	// Then nobody but the kernel, which is port 0, can send to it.
	if err := unix.Connect(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("connect", err)
	}
	for i, a := range []netlink.Attribute{
		{Type: configCommand, Data: []byte{commandBind}},
		{Type: configMode, Data: append(binary.BigEndian.AppendUint32(nil, 0xffff), copyPacket, 0)}, // as much as rules let through
		{Type: configThreshold, Data: binary.BigEndian.AppendUint32(nil, 1)},                        // tell each at once
	} {
		data, err := netlink.MarshalAttributes([]netlink.Attribute{a})
		if err != nil {
			return err
		}
		data = append(binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, group), data...)
		m := netlink.Message{Data: data, Header: netlink.Header{Length: uint32(unix.SizeofNlMsghdr + len(data)), Sequence: uint32(i + 1),
			Type: unix.NFNL_SUBSYS_ULOG<<8 | logConfig, Flags: netlink.Request | netlink.Acknowledge}}
		b, err := m.MarshalBinary()
		if err == nil {
			_, err = unix.Write(s.fd, b)
		}
		if err == nil {
			err = s.acknowledged(m.Header.Sequence)
		}
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("%w: another program reads this group of NFLOG there", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// acknowledged reads the kernel's answer, which is there when the question was sent. Messages of the group may be before
// it, and are lost.
func (s *logSocket) acknowledged(sequence uint32) error {
	b := make([]byte, unix.Getpagesize())
	for {
		n, _, err := unix.Recvfrom(s.fd, b, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		messages, err := syscall.ParseNetlinkMessage(b[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			if m.Header.Type != unix.NLMSG_ERROR || m.Header.Seq != sequence {
				continue
			}
			if len(m.Data) < 4 {
				return io.ErrUnexpectedEOF
			}
			if errno := -int32(binary.NativeEndian.Uint32(m.Data)); errno != 0 {
				return syscall.Errno(errno)
			}
			return nil
		}
	}
}

// fairReads is how many datagrams are read of one socket before others have their turn.
const fairReads = 16

// Ready implements [poll.Handler].
func (s *logSocket) Ready(uint8, uint32) {
	for range fairReads {
		n, _, err := unix.Recvfrom(s.fd, s.logs.buffer[:], 0)
		switch {
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return // nothing is there any more
		}
		messages, err := syscall.ParseNetlinkMessage(s.logs.buffer[:n])
		if err != nil {
			continue
		}
		for _, m := range messages {
			if m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|logPacket || len(m.Data) < genHeader {
				continue
			}
			if l, err := parseLogged(m.Data[genHeader:]); err == nil {
				s.tell(l)
			}
		}
	}
}

func parseLogged(b []byte) (l logged, err error) {
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return l, err
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		switch d.Type() {
		case attributeIn:
			if l.in == 0 {
				l.in = d.Uint32()
			}
		case attributePhysicalIn:
			l.in = d.Uint32() // the port of a bridge
		case attributePayload:
			l.payload = d.Bytes()
		case attributePrefix:
			l.prefix = strings.TrimRight(string(d.Bytes()), "\x00")
		}
	}
	return l, d.Err()
}

// packet is what the headers of an IP packet say.
type packet struct {
	protocol    uint8
	destination netip.AddrPort // without a port where the protocol has none
}

// parsePacket reads as much of a packet as there is; ok is false for what is no IP packet.
func parsePacket(b []byte) (p packet, ok bool) {
	var to netip.Addr
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		header := 4 * int(b[0]&0x0f)
		to, _ = netip.AddrFromSlice(b[16:20])
		p.protocol = b[9]
		if first := binary.BigEndian.Uint16(b[6:])&0x1fff == 0; !first || header < 20 || len(b) < header {
			b = nil
		} else {
			b = b[header:]
		}
	case len(b) >= 40 && b[0]>>4 == 6:
		to, _ = netip.AddrFromSlice(b[24:40])
		p.protocol = b[6]
		b = b[40:]
	default:
		return p, false
	}
	port := uint16(0)
	if (p.protocol == unix.IPPROTO_TCP || p.protocol == unix.IPPROTO_UDP) && len(b) >= 4 {
		port = binary.BigEndian.Uint16(b[2:])
	}
	p.destination = netip.AddrPortFrom(to, port)
	return p, true
}

// refused is a packet as the controller wants it. What is no IP packet has no destination.
func (l *logged) refused() controller.Refused {
	p, _ := parsePacket(l.payload)
	protocol := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "icmp"}[p.protocol]
	if protocol == "" {
		protocol = strconv.Itoa(int(p.protocol))
	}
	by, observed := strings.CutSuffix(strings.TrimPrefix(l.prefix, "sluice "), " "+gate.Observed)
	return controller.Refused{Time: time.Now(), By: by, Observed: observed, Protocol: protocol, Destination: p.destination}
}
