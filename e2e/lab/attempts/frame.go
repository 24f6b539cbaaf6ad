package attempts

import (
	"encoding/binary"
	"net"
	"net/netip"

	"sluice/dockernet/nft/rawip"
)

// Packets and frames made by hand, as a workload with raw sockets can.

// header is an IP header of either family, RFC 791 §3.1 and RFC 8200 §3.
type header struct {
	from, to netip.Addr
	protocol byte
	id       uint16 // of IPv4
	fragment uint16 // flags and offset, of IPv4
	options  []byte // of IPv4; whole words
	hops     byte   // 64 if it is 0
}

func (h header) packet(payload []byte) []byte {
	return rawip.Header{From: h.from, To: h.to, Protocol: h.protocol, ID: h.id, Fragment: h.fragment, Options: h.options, Hops: h.hops}.Packet(payload)
}

// The flags of TCP, RFC 9293 §3.1.
const (
	finFlag, synFlag, rstFlag, ackFlag = 1, 2, 4, 16
)

// Protocol numbers, as IANA has them.
const (
	icmp4, tcp, udp, icmp6 = 1, 6, 17, 58
)

// segment is the payload of a packet of TCP, RFC 9293 §3.1.
func (h header) segment(from, to uint16, flags byte, payload []byte) []byte {
	ack := uint32(0)
	if flags&ackFlag != 0 {
		ack = 1001
	}
	return rawip.Segment(netip.AddrPortFrom(h.from, from), netip.AddrPortFrom(h.to, to), 1000, ack, flags, string(payload))
}

// datagram is the payload of a packet of UDP, RFC 768.
func (h header) datagram(from, to uint16, payload []byte) []byte {
	b := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(payload)))
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[6:], h.checksum(udp, b))
	return b
}

// message is one of ICMP or ICMPv6, by the family of the header: type and code, and what follows the checksum.
func (h header) message(kind, code byte, body []byte) []byte {
	b := append([]byte{kind, code, 0, 0}, body...)
	if h.to.Is6() {
		binary.BigEndian.PutUint16(b[2:], h.checksum(icmp6, b))
	} else {
		binary.BigEndian.PutUint16(b[2:], rawip.Checksum(b))
	}
	return b
}

// with is the header for another protocol.
func (h header) with(protocol byte) header {
	h.protocol = protocol
	return h
}

func (h header) tcp(to uint16, flags byte, payload []byte) []byte {
	return h.with(tcp).packet(h.segment(40000, to, flags, payload))
}

func (h header) udp(to uint16, payload []byte) []byte {
	return h.with(udp).packet(h.datagram(40000, to, payload))
}

func (h header) icmp(kind, code byte, body []byte) []byte {
	protocol := byte(icmp4)
	if h.to.Is6() {
		protocol = icmp6
	}
	return h.with(protocol).packet(h.message(kind, code, body))
}

// echo is what ping sends.
func (h header) echo(payload []byte) []byte {
	kind := byte(8)
	if h.to.Is6() {
		kind = 128
	}
	return h.icmp(kind, 0, echoBody(payload))
}

// echoBody is an identifier that no other attempt uses, a number and payload, RFC 792. Of two that are sent at once with
// one identifier, the kernel's connection tracking may drop one, whatever the rules say.
func echoBody(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, port()), append([]byte{0, 1}, payload...)...)
}

func (h header) checksum(protocol byte, b []byte) uint16 {
	return rawip.TransportChecksum(h.from, h.to, protocol, b)
}

// Ethernet types, as IANA and IEEE have them.
const (
	typeIPv4, typeARP, typeVLAN, typeIPv6, typeQinQ = 0x0800, 0x0806, 0x8100, 0x86dd, 0x88a8
)

// ethernet is a frame of Ethernet II, or of IEEE 802.3 if kind is a length.
func ethernet(to, from net.HardwareAddr, kind uint16, payload []byte) []byte {
	b := append(append([]byte{}, to...), from...)
	b = binary.BigEndian.AppendUint16(b, kind)
	return append(b, payload...)
}

// tagged puts a tag of IEEE 802.1Q before the payload.
func tagged(vlan, kind uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, vlan)
	b = binary.BigEndian.AppendUint16(b, kind)
	return append(b, payload...)
}

// arp is a packet of RFC 826 for IPv4 on Ethernet.
func arp(operation uint16, fromHardware net.HardwareAddr, from netip.Addr, toHardware net.HardwareAddr, to netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4}
	b = binary.BigEndian.AppendUint16(b, operation)
	b = append(append(b, fromHardware...), from.AsSlice()...)
	return append(append(b, toHardware...), to.AsSlice()...)
}

// extension is an IPv6 extension header of one unit, RFC 8200 §4, with the token's bytes left out: next is what
// follows it.
func extension(next byte, body [6]byte, rest []byte) []byte {
	return append(append([]byte{next, 0}, body[:]...), rest...)
}
