// Package udpbatch receives and sends UDP packets many at a time, by recvmmsg(2) and sendmmsg(2).
package udpbatch

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limits of one batch.
const (
	Size = 64 // packets
	// PacketSize is the longest packet that is received whole. Queries need less, and answers were asked to be
	// shorter (RFC 9715).
	PacketSize = 2048
	// scratchSize holds a refusal with the longest name, and most answers.
	scratchSize = 512
)

// control is room for one IPV6_PKTINFO or IP_PKTINFO message.
const controlSize = 40

// header is struct mmsghdr.
type header struct {
	hdr unix.Msghdr
	n   uint32
}

// Peer is where a packet came from and, on a socket that listens on every address, the local address that it was
// sent to, so that the answer leaves from there.
type Peer struct {
	addr       unix.RawSockaddrInet6 // or RawSockaddrInet4
	addrLen    uint32
	controlLen uint32
	control    [controlSize]byte
}

// AddrPort returns the peer's address, unmapped.
func (p *Peer) AddrPort() netip.AddrPort {
	switch {
	case p.addrLen >= unix.SizeofSockaddrInet6 && p.addr.Family == unix.AF_INET6:
		ip := netip.AddrFrom16(p.addr.Addr).Unmap()
		return netip.AddrPortFrom(ip, networkOrder(p.addr.Port))
	case p.addrLen >= unix.SizeofSockaddrInet4 && p.addr.Family == unix.AF_INET:
		a := (*unix.RawSockaddrInet4)(unsafe.Pointer(&p.addr))
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), networkOrder(a.Port))
	}
	return netip.AddrPort{}
}

func networkOrder(port uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], port)
	return binary.BigEndian.Uint16(b[:])
}

// WantLocal makes the socket fd tell the local address of every packet, see [Peer].
func WantLocal(fd int) error {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	if family == unix.AF_INET6 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
}

// Reader holds the packets of one read. It is large, so that readers are best kept in a pool while a socket is
// quiet. It is for one goroutine.
type Reader struct {
	headers [Size]header
	vectors [Size]unix.Iovec
	peers   [Size]Peer
	packets [Size][PacketSize]byte
	// ready is how many headers, the last ones, are as Read needs them; the kernel writes to those that it uses.
	ready int
}

// NewReader makes a reader.
func NewReader() *Reader {
	r := new(Reader)
	for i := range r.headers {
		v, h := &r.vectors[i], &r.headers[i].hdr
		v.Base = &r.packets[i][0]
		v.SetLen(PacketSize)
		h.Iov = v
		h.SetIovlen(1)
	}
	return r
}

// Read takes up to [Size] packets from the socket fd without blocking and returns how many. peers says whether
// they are from different peers; on a connected socket [Reader.Peer] is of no use. An error is a unix.Errno:
// EAGAIN if there is no packet.
func (r *Reader) Read(fd int, peers bool) (int, error) {
	for i := range Size - r.ready {
		h, p := &r.headers[i].hdr, &r.peers[i]
		if peers {
			h.Name, h.Namelen = (*byte)(unsafe.Pointer(&p.addr)), uint32(unsafe.Sizeof(p.addr))
			h.Control = &p.control[0]
			h.SetControllen(controlSize)
		} else {
			h.Name, h.Namelen, h.Control = nil, 0, nil
			h.SetControllen(0)
		}
	}
	r.ready = Size
	for {
		// Past the scheduler's book-keeping: it waits for nothing.
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.headers)), Size,
			unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			r.ready = Size - int(n)
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Packet returns packet i of the last read; it is overwritten by the next one.
func (r *Reader) Packet(i int) []byte { return r.packets[i][:r.headers[i].n] }

// Truncated reports whether packet i was longer than [PacketSize].
func (r *Reader) Truncated(i int) bool { return r.headers[i].hdr.Flags&unix.MSG_TRUNC != 0 }

// Peer returns where packet i came from; it is overwritten by the next read.
func (r *Reader) Peer(i int) *Peer {
	h, p := &r.headers[i].hdr, &r.peers[i]
	p.addrLen = h.Namelen
	p.controlLen = uint32(h.Controllen)
	p.forgetInterface()
	return p
}

// forgetInterface keeps the local address and lets the routes choose the interface, except for a link-local
// address, which is none without (ipv6(7), ip(7)).
func (p *Peer) forgetInterface() {
	if int(p.controlLen) < unix.SizeofCmsghdr {
		p.controlLen = 0
		return
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&p.control[0]))
	data := p.control[unix.CmsgLen(0):]
	switch {
	case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO:
		clear(data[:4]) // struct in_pktinfo: interface, local address, destination
		if [4]byte(data[4:8]) == [4]byte{} {
			copy(data[4:8], data[8:12]) // it came before WantLocal
		}
	case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO:
		if local := netip.AddrFrom16([16]byte(data[:16])); !local.IsLinkLocalUnicast() {
			clear(data[16:20]) // struct in6_pktinfo: local address, interface
		}
	default:
		p.controlLen = 0
	}
}

// Writer gathers packets and sends them together. Its zero value is ready. It is for one goroutine, which must
// [Writer.Flush] before what it has added changes.
type Writer struct {
	n       int
	headers [Size]header
	vectors [Size]unix.Iovec
	peers   [Size]Peer
	scratch [Size][scratchSize]byte
}

// Full reports whether the writer must be flushed before the next packet is added.
func (w *Writer) Full() bool { return w.n == Size }

// Empty reports whether there is nothing to flush.
func (w *Writer) Empty() bool { return w.n == 0 }

// Scratch returns an empty slice with some room in which the next packet may be built; it is taken by the next
// [Writer.Add].
func (w *Writer) Scratch() []byte { return w.scratch[w.n][:0] }

// Add gathers one packet, which must not be empty. The writer keeps packet until it is flushed, and a copy of to;
// to is nil on a connected socket.
func (w *Writer) Add(packet []byte, to *Peer) {
	h, v := &w.headers[w.n].hdr, &w.vectors[w.n]
	*h = unix.Msghdr{Iov: v}
	h.SetIovlen(1)
	v.Base = &packet[0]
	v.SetLen(len(packet))
	if to != nil {
		p := &w.peers[w.n]
		*p = *to
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&p.addr)), p.addrLen
		if p.controlLen > 0 {
			h.Control = &p.control[0]
			h.SetControllen(int(p.controlLen))
		}
	}
	w.n++
}

// Flush sends what was added to the socket fd, without blocking: like any UDP packet, one that cannot be sent is
// lost. It returns the last error, a unix.Errno, that a packet was lost for.
func (w *Writer) Flush(fd int) error {
	var lost error
	again := false
	for at := 0; at < w.n; {
		// It waits for nothing either, and takes some tenths of a millisecond at most.
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&w.headers[at])),
			uintptr(w.n-at), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == 0:
			at += int(n)
			again = false
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			lost = errno
			at = w.n // the socket's buffer is full
		case !again:
			// On a connected socket it may be the report of an earlier packet's fate, and this one was not tried.
			again = true
		default:
			lost = errno
			at++
			again = false
		}
	}
	w.Reset()
	return lost
}

// Reset forgets what was added.
func (w *Writer) Reset() {
	for i := range w.n {
		w.vectors[i].Base = nil
	}
	w.n = 0
}
