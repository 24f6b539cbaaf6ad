package gate

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice/dockernet/nft/rawip"
)

// Packets made by hand, as a workload with raw sockets can.

// ip4 is an IPv4 header, RFC 791 §3.1.
type ip4 struct {
	from, to netip.Addr
	protocol byte
	fragment uint16 // flags and offset
	options  []byte // padded to four bytes
}

func (h ip4) packet(payload []byte) []byte {
	return rawip.Header{From: h.from, To: h.to, Protocol: h.protocol, ID: 4711, Fragment: h.fragment, Options: h.options}.Packet(payload)
}

// ip6 is an IPv6 header, RFC 8200 §3.
type ip6 struct {
	from, to netip.Addr
	next     byte
	hops     byte
}

func (h ip6) packet(payload []byte) []byte {
	return rawip.Header{From: h.from, To: h.to, Protocol: h.next, Hops: h.hops}.Packet(payload)
}

// udp is without a checksum, which is allowed over IPv4.
func udp(from, to uint16, payload string) []byte {
	b := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(payload)))
	return append(b, payload...)
}

// udp6 has one.
func udp6(from, to netip.Addr, fromPort, toPort uint16, payload string) []byte {
	b := udp(fromPort, toPort, payload)
	binary.BigEndian.PutUint16(b[6:], rawip.TransportChecksum(from, to, unix.IPPROTO_UDP, b))
	return b
}

// tcp4 and tcp6 are TCP segments.
func tcp4(from, to netip.AddrPort, seq, ack uint32, flags byte, payload string) []byte {
	return ip4{from: from.Addr(), to: to.Addr(), protocol: unix.IPPROTO_TCP}.packet(rawip.Segment(from, to, seq, ack, flags, payload))
}

func tcp6(from, to netip.AddrPort, seq, ack uint32, flags byte, payload string) []byte {
	return ip6{from: from.Addr(), to: to.Addr(), next: unix.IPPROTO_TCP, hops: 64}.packet(rawip.Segment(from, to, seq, ack, flags, payload))
}

// icmp6 is an ICMPv6 message, RFC 4443 §2.1.
func icmp6Message(h ip6, kind byte, body []byte) []byte {
	b := append([]byte{kind, 0, 0, 0}, body...)
	binary.BigEndian.PutUint16(b[2:], rawip.TransportChecksum(h.from, h.to, unix.IPPROTO_ICMPV6, b))
	h.next = unix.IPPROTO_ICMPV6
	return h.packet(b)
}

func icmp4Message(from, to netip.Addr, kind byte, body string) []byte {
	b := append([]byte{kind, 0, 0, 0, 0, 7, 0, 1}, body...)
	binary.BigEndian.PutUint16(b[2:], rawip.Checksum(b))
	return ip4{from: from, to: to, protocol: unix.IPPROTO_ICMP}.packet(b)
}

// sendRaw sends a whole IP packet from the namespace of the calling thread. Options may be set on the socket first.
func sendRaw(packet []byte, prepare func(fd int) error) error {
	family, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(packet[16:20])})
	if packet[0]>>4 == 6 {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte(packet[24:40])}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if prepare != nil {
		if err := prepare(fd); err != nil {
			return err
		}
	}
	return unix.Sendto(fd, packet, 0, to)
}

// socketAddress returns the family and the address for a socket.
func socketAddress(a netip.AddrPort) (family int, address unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func toDevice(name string) func(int) error {
	return func(fd int) error { return unix.BindToDevice(fd, name) }
}
