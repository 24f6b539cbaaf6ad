package nflog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

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

// Message is a packet that a rule has logged.
type Message struct {
	Prefix string
	// In is the index of the interface that it came from, 0 if it was sent here.
	In uint32
	// Payload is the beginning of the packet. It is valid while somebody is told of it.
	Payload []byte
}

// Logs reads what rules have logged in any number of network namespaces, on one goroutine with one buffer.
type Logs struct {
	loop    *poll.Loop
	running sync.WaitGroup
	end     context.CancelFunc
	buffer  [64 << 10]byte // belongs to the loop
}

// New makes Logs, which read until [Logs.Close].
func New() (*Logs, error) {
	loop, err := poll.New()
	if err != nil {
		return nil, fmt.Errorf("log of refusals: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Logs{loop: loop, end: cancel}
	l.running.Go(func() { _ = loop.Run(ctx) }) // it fails where the loop was closed, which nobody else does
	return l, nil
}

// Close ends it. Nobody is told anything any more.
func (l *Logs) Close() {
	l.end()
	l.running.Wait()
}

// Do runs f where nobody is told anything meanwhile.
func (l *Logs) Do(f func()) {
	if l.loop.Do(context.Background(), f) != nil {
		f() // it has ended
	}
}

// Open takes the messages of a group, in the network namespace that in runs functions in, and calls tell with each, one at
// a time, until stop has returned. tell must not block. What comes too fast is lost: the kernel's counters have it.
func (l *Logs) Open(in func(func() error) error, group uint16, tell func(Message)) (stop func(), err error) {
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
		l.Do(func() {
			l.loop.Remove(s.token)
			unix.Close(s.fd)
		})
	}, nil
}

// logSocket is what one group's messages come by.
type logSocket struct {
	logs  *Logs
	fd    int
	token poll.Token
	tell  func(Message)
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
			if l, err := parseMessage(m.Data[genHeader:]); err == nil {
				s.tell(l)
			}
		}
	}
}

func parseMessage(b []byte) (m Message, err error) {
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return m, err
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		switch d.Type() {
		case attributeIn:
			if m.In == 0 {
				m.In = d.Uint32()
			}
		case attributePhysicalIn:
			m.In = d.Uint32() // the port of a bridge
		case attributePayload:
			m.Payload = d.Bytes()
		case attributePrefix:
			m.Prefix = strings.TrimRight(string(d.Bytes()), "\x00")
		}
	}
	return m, d.Err()
}
