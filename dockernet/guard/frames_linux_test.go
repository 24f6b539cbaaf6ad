package guard

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice/dockernet/nft"
	"sluice/dockernet/nft/rawip"
)

// Frames made by hand, as a workload with raw sockets can.

// station is a source or destination of frames.
type station struct {
	hardware   nft.Hardware
	ip4, ip6   netip.Addr
	linkLocal6 netip.Addr
}

var broadcast = nft.Hardware{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ethernet is a frame of Ethernet II, or of IEEE 802.3 if kind is a length.
func ethernet(to, from nft.Hardware, kind uint16, payload []byte) []byte {
	b := append(to[:], from[:]...)
	b = binary.BigEndian.AppendUint16(b, kind)
	return append(b, payload...)
}

// tagged puts a VLAN tag (IEEE 802.1Q) into a frame.
func tagged(frame []byte, kind, vlan uint16) []byte {
	b := append([]byte{}, frame[:12]...)
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint16(b, vlan)
	return append(b, frame[12:]...)
}

// ip is an IP header of either family, RFC 791 §3.1 and RFC 8200 §3.
type ip struct {
	from, to netip.Addr
	proto    byte
	fragment uint16 // flags and offset, of IPv4
	options  []byte // of IPv4, padded to four bytes
	hops     byte   // 64 if it is 0
}

func (h ip) packet(payload []byte) []byte {
	return rawip.Header{From: h.from, To: h.to, Protocol: h.proto, ID: 4711, Fragment: h.fragment, Options: h.options, Hops: h.hops}.Packet(payload)
}

// segment is a TCP segment, RFC 9293 §3.1, with so many words of options.
func (h ip) segment(from, to uint16, flags byte, words int, payload string) []byte {
	b := make([]byte, 20+4*words, 20+4*words+len(payload))
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint32(b[4:], 1000)
	if flags&ack != 0 {
		binary.BigEndian.PutUint32(b[8:], 1001) // what answers a first segment of this function
	}
	b[12], b[13] = byte(5+words)<<4, flags
	binary.BigEndian.PutUint16(b[14:], 500)
	for i := 20; i < len(b); i++ {
		b[i] = 1 // no operation
	}
	b = append(b, payload...)
	h.proto = unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(b[16:], rawip.TransportChecksum(h.from, h.to, h.proto, b))
	return h.packet(b)
}

const (
	fin, syn, rst, ack = 1, 2, 4, 16
)

// datagram is one of UDP, RFC 768.
func (h ip) datagram(from, to uint16, payload string) []byte {
	b := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(payload)))
	b = append(b, payload...)
	h.proto = unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[6:], rawip.TransportChecksum(h.from, h.to, h.proto, b))
	return h.packet(b)
}

// message is one of ICMP or ICMPv6: type and code, and what follows the checksum.
func (h ip) message(kind, code byte, body []byte) []byte {
	b := append([]byte{kind, code, 0, 0}, body...)
	if h.to.Is6() {
		h.proto = unix.IPPROTO_ICMPV6
		binary.BigEndian.PutUint16(b[2:], rawip.TransportChecksum(h.from, h.to, h.proto, b))
	} else {
		h.proto = unix.IPPROTO_ICMP
		binary.BigEndian.PutUint16(b[2:], rawip.Checksum(b))
	}
	return h.packet(b)
}

// echo is a message with an identifier and a number.
func (h ip) echo(kind byte, payload string) []byte {
	return h.message(kind, 0, append([]byte{0, 7, 0, 1}, payload...))
}

// arpPacket is ARP for IPv4 on Ethernet, RFC 826.
func arpPacket(operation uint16, fromHardware nft.Hardware, from netip.Addr, toHardware nft.Hardware, to netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4}
	b = binary.BigEndian.AppendUint16(b, operation)
	b = append(append(b, fromHardware[:]...), from.AsSlice()...)
	return append(append(b, toHardware[:]...), to.AsSlice()...)
}

// neighbour is the body of a message of neighbour discovery, RFC 4861 §4.3: flags or reserved bytes, the target, and
// an option with a hardware address, unless its type is 0.
func neighbour(flags uint32, target netip.Addr, option byte, h nft.Hardware) []byte {
	b := binary.BigEndian.AppendUint32(nil, flags)
	b = append(b, target.AsSlice()...)
	if option != 0 {
		b = append(append(b, option, 1), h[:]...)
	}
	return b
}

// solicitedNodeOf is the group that an address belongs to, RFC 4291 §2.7.1.
func solicitedNodeOf(a netip.Addr) netip.Addr {
	b, of := netip.MustParseAddr("ff02::1:ff00:0").As16(), a.As16()
	copy(b[13:], of[13:])
	return netip.AddrFrom16(b)
}

// groupHardware is where frames to an IPv6 group go, RFC 2464 §7.
func groupHardware(group netip.Addr) nft.Hardware {
	b := group.As16()
	return nft.Hardware{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
