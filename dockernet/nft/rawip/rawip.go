// Package rawip makes IP packets by hand, for tests that send what no kernel would.
package rawip

import (
	"encoding/binary"
	"net/netip"
)

// Header is an IP header of either family, which is that of To: RFC 791 §3.1 and RFC 8200 §3.
type Header struct {
	From, To netip.Addr
	Protocol byte
	ID       uint16 // of IPv4
	Fragment uint16 // flags and offset, of IPv4
	Options  []byte // of IPv4, in whole words
	Hops     byte   // 64 if it is 0
}

// Packet is the header with a payload behind it.
func (h Header) Packet(payload []byte) []byte {
	if h.Hops == 0 {
		h.Hops = 64
	}
	if h.To.Is6() {
		b := make([]byte, 40, 40+len(payload))
		b[0] = 6 << 4
		binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
		b[6], b[7] = h.Protocol, h.Hops
		copy(b[8:], h.From.AsSlice())
		copy(b[24:], h.To.AsSlice())
		return append(b, payload...)
	}
	length := 20 + len(h.Options)
	b := make([]byte, 20, length+len(payload))
	b[0] = 4<<4 | byte(length/4)
	binary.BigEndian.PutUint16(b[2:], uint16(length+len(payload)))
	binary.BigEndian.PutUint16(b[4:], h.ID)
	binary.BigEndian.PutUint16(b[6:], h.Fragment)
	b[8], b[9] = h.Hops, h.Protocol
	copy(b[12:], h.From.AsSlice())
	copy(b[16:], h.To.AsSlice())
	b = append(b, h.Options...)
	binary.BigEndian.PutUint16(b[10:], Checksum(b))
	return append(b, payload...)
}

// Checksum is that of RFC 1071.
func Checksum(b []byte) uint16 {
	sum := uint32(0)
	for i, x := range b {
		sum += uint32(x) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Segment is the payload of a packet of TCP, RFC 9293 §3.1.
func Segment(from, to netip.AddrPort, seq, ack uint32, flags byte, payload string) []byte {
	b := make([]byte, 20, 20+len(payload))
	binary.BigEndian.PutUint16(b, from.Port())
	binary.BigEndian.PutUint16(b[2:], to.Port())
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 500) // the window
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[16:], TransportChecksum(from.Addr(), to.Addr(), 6, b))
	return b
}

// TransportChecksum has the addresses in it, RFC 9293 §3.1 and RFC 8200 §8.1.
func TransportChecksum(from, to netip.Addr, protocol byte, b []byte) uint16 {
	pseudo := append(from.AsSlice(), to.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(b)))
	pseudo = append(pseudo, 0, 0, 0, protocol)
	return Checksum(append(pseudo, b...))
}
