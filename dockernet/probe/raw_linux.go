package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// echo sends an echo request from a raw socket. The error is what the kernel's rules make of it: a packet that they
// refuse is not sent, and the call says so.
func echo(to netip.Addr, n nonce) error {
	family, protocol, kind := unix.AF_INET, unix.IPPROTO_ICMP, byte(8) // RFC 792
	if to.Is6() {
		family, protocol, kind = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128 // RFC 4443 §4.1
	}
	request := append([]byte{kind, 0, 0, 0, 0, 0, 0, 1}, n[:]...)
	if to.Is4() {
		binary.BigEndian.PutUint16(request[2:], checksum(request)) // the kernel writes that of IPv6
	}
	return raw(family, protocol, func(fd int) error { return unix.Sendto(fd, request, 0, sockaddr(to)) })
}

// checksum is that of an even number of bytes (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}

// rawPacket sends a UDP packet with a false source.
func rawPacket(to netip.Addr, n nonce) error {
	return raw(unix.AF_INET, unix.IPPROTO_RAW, func(fd int) error { return unix.Sendto(fd, falsePacket(to, n), 0, sockaddr(to)) })
}

func raw(family, protocol int, do func(fd int) error) error {
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	return os.NewSyscallError("sendto", do(fd))
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

// falsePacket is an IPv4 packet (RFC 791 §3.1) from [Stranger4] with a nonce in a datagram (RFC 768) for the discard
// service. The header's checksum is right, or the bridge would drop the packet where rules have not.
func falsePacket(to netip.Addr, n nonce) []byte {
	const length = 28 + uint16(len(n))
	b := make([]byte, length)
	copy(b[28:], n[:])
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], length)
	from, at := Stranger4.As4(), to.As4()
	copy(b[12:], from[:])
	copy(b[16:], at[:])
	binary.BigEndian.PutUint16(b[20:], 9)
	binary.BigEndian.PutUint16(b[22:], 9)
	binary.BigEndian.PutUint16(b[24:], length-20)
	binary.BigEndian.PutUint16(b[10:], checksum(b[:20]))
	return b
}

// falseRequest is an ARP request (RFC 826) in which nothing is wrong but that the sender has [Stranger4]. It asks for the
// container's own address, for which nobody else answers.
func falseRequest(i net.Interface) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	b = append(b, i.HardwareAddr...)
	b = append(b, Stranger4.AsSlice()...)
	b = append(b, make([]byte, 6)...)
	return append(b, ownAddress(i).AsSlice()...)
}

// ownAddress is an IPv4 address of an interface, or that of nobody if none is seen.
func ownAddress(i net.Interface) netip.Addr {
	list, _ := i.Addrs()
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			return netip.AddrFrom4([4]byte(n.IP.To4()))
		}
	}
	return Nobody4
}

// nowhere is a station that is not there: one by which the frame is known again, if it is to be.
func (n nonce) nowhere() []byte {
	if n == (nonce{}) {
		return []byte{2, 0, 0, 0, 0, 1}
	}
	n[0] = 2 // locally administered, and no group (IEEE 802 §8.2)
	return n[:]
}

// frames sends the frame of a probe on every interface, to a station that is not there. It has no padding, for the kernel's
// own ones have none on such links.
func frames(p Probe) (sent, stopped int, err error) {
	list, err := interfaces()
	if err != nil {
		return 0, 0, fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range list {
		kind, payload := uint16(unix.ETH_P_IP), []byte(nil)
		if p.Kind == ARP {
			kind, payload = unix.ETH_P_ARP, falseRequest(i)
		} else {
			payload = falsePacket(p.To.Addr(), p.nonce)
		}
		frame := append(p.nonce.nowhere(), i.HardwareAddr...)
		frame = append(binary.BigEndian.AppendUint16(frame, kind), payload...)
		err := raw(unix.AF_PACKET, 0, func(fd int) error {
			return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: i.Index, Protocol: bigEndian(kind), Halen: 6})
		})
		// The call says so if rules on the way out have dropped it.
		switch {
		case errors.Is(err, unix.ENOBUFS):
			stopped++
		case err != nil:
			return sent, stopped, fmt.Errorf("interface %s: %w", i.Name, err)
		}
		sent++
	}
	return sent, stopped, nil
}
