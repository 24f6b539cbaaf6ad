package nflog

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// packet is what the headers of an IP packet say.
type packet struct {
	protocol    uint8
	destination netip.AddrPort // without a port where the protocol has none
}

// Packet says what the message's packet is: "tcp", "udp", "icmp" or a number, and where it goes, without a port where the
// protocol has none. What is no IP packet goes nowhere, by the protocol "0".
func (m *Message) Packet() (protocol string, to netip.AddrPort) {
	p, _ := parsePacket(m.Payload)
	protocol = map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "icmp"}[p.protocol]
	if protocol == "" {
		protocol = strconv.Itoa(int(p.protocol))
	}
	return protocol, p.destination
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
