package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice/controller"
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

// logged is a packet that a rule has logged.
type logged struct {
	prefix  string
	in      uint32 // the index of the interface that it came from, 0 if it was sent here
	payload []byte
}

// openLog takes the messages of a group, in the network namespace that in runs functions in.
func openLog(in func(func() error) error, group uint16) (*netlink.Conn, error) {
	var c *netlink.Conn
	err := in(func() (err error) {
		c, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("log of refusals: %w", err)
	}
	for _, a := range []netlink.Attribute{
		{Type: configCommand, Data: []byte{commandBind}},
		{Type: configMode, Data: append(binary.BigEndian.AppendUint32(nil, 0xffff), copyPacket, 0)}, // as much as rules let through
		{Type: configThreshold, Data: binary.BigEndian.AppendUint32(nil, 1)},                        // tell each at once
	} {
		data, err := netlink.MarshalAttributes([]netlink.Attribute{a})
		if err == nil {
			header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, group)
			_, err = c.Execute(netlink.Message{
				Header: netlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | logConfig, Flags: netlink.Request | netlink.Acknowledge},
				Data:   append(header, data...),
			})
		}
		if err != nil {
			if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) {
				err = fmt.Errorf("%w: another program reads this group of NFLOG there", err)
			}
			return nil, errors.Join(fmt.Errorf("log of refusals: group %d: %w", group, err), c.Close())
		}
	}
	return c, nil
}

// readLog calls do for what is logged, until ctx is done, and closes the connection. What comes too fast is lost: the
// kernel's counters have it.
func readLog(ctx context.Context, c *netlink.Conn, do func(logged)) error {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Now()) })
	defer stop()
	for ctx.Err() == nil {
		messages, err := c.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			continue
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("log of refusals: %w", err)
		}
		for _, m := range messages {
			if m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|logPacket || len(m.Data) < genHeader {
				continue
			}
			if l, err := parseLogged(m.Data[genHeader:]); err == nil {
				do(l)
			}
		}
	}
	return nil
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
	return controller.Refused{Time: time.Now(), By: strings.TrimPrefix(l.prefix, "sluice "), Protocol: protocol, Destination: p.destination}
}
