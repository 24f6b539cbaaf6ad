package nft

import "fmt"

// Kind is what a packet is on its link, by its ethertype.
type Kind uint8

const (
	AnyKind Kind = iota
	IPv4
	IPv6
	ARP
)

func (k Kind) String() string { return [...]string{"any", "ip", "ip6", "arp"}[k] }

// Source and Destination are the addresses of a packet of the kind, which is an IP version.
func (k Kind) Source() *Field {
	if k == IPv4 {
		return IPSource
	}
	return IP6Source
}

func (k Kind) Destination() *Field {
	if k == IPv4 {
		return IPDestination
	}
	return IP6Destination
}

// base says where a field is found.
type base uint8

const (
	inLink base = iota
	inNetwork
	inTransport
	inMeta  // key is one of enum nft_meta_keys
	inCT    // key is one of enum nft_ct_keys
	inRoute // key is one of enum nft_rt_keys
	inFib   // key is one of enum nft_fib_flags: the address whose kind is asked for
)

// Field is a piece of a packet or of what the kernel knows about it.
type Field struct {
	name string
	base base
	key  uint32 // of inMeta and inCT
	// offset and size in bytes; size is how much of a register the field takes.
	offset, size uint32
	native       bool // byte order of the host
	bits         byte // of the first byte that are the field, if they are fewer
	flipped      bool // all bits are inverted
	silent       bool // nft has no word for it
	// A rule that reads the field tests first that the packet is of this kind and protocol.
	kind  Kind
	proto Word
}

func (f *Field) String() string { return f.name }

// Fields of the link's header. The kernel takes a VLAN tag out of the frame; EtherType still shows it.
var (
	EtherDestination = &Field{name: "ether daddr", base: inLink, offset: 0, size: 6}
	EtherSource      = &Field{name: "ether saddr", base: inLink, offset: 6, size: 6}
	// EtherGroup is the destination but for its last byte.
	EtherGroup = &Field{name: "@ll,0,40", base: inLink, offset: 0, size: 5}
	// EtherFrom is EtherSource and EtherType.
	EtherFrom = &Field{name: "@ll,48,64", base: inLink, offset: 6, size: 8}
	EtherType = &Field{name: "ether type", base: inLink, offset: 12, size: 2}
)

// What the kernel knows of a packet. Length is that of all from the network header on, in bytes.
var (
	Length = &Field{name: "meta length", base: inMeta, key: 0, size: 4, native: true}
	Mark   = &Field{name: "meta mark", base: inMeta, key: 3, size: 4, native: true}
	// etherProtocol is EtherType without VLAN tags.
	etherProtocol = &Field{name: "meta protocol", base: inMeta, key: 1, size: 2}

	// InIndex and OutIndex are numbers of interfaces. That of the loopback is always 1.
	InIndex  = &Field{name: "iif", base: inMeta, key: 4, size: 4, native: true}
	OutIndex = &Field{name: "oif", base: inMeta, key: 5, size: 4, native: true}
	InName   = &Field{name: "iifname", base: inMeta, key: 6, size: 16}
	OutName  = &Field{name: "oifname", base: inMeta, key: 7, size: 16}
	Family   = &Field{name: "meta nfproto", base: inMeta, key: 15, size: 1}
	Protocol = &Field{name: "meta l4proto", base: inMeta, key: 16, size: 1}

	// SocketOwner and SocketGroup are the user and the group by which the socket was opened that has sent it. They are not
	// there if none has, or if nobody has that socket open any more.
	SocketOwner = &Field{name: "meta skuid", base: inMeta, key: 10, size: 4, native: true}
	SocketGroup = &Field{name: "meta skgid", base: inMeta, key: 11, size: 4, native: true}

	// RouteClass is there only if the packet has a route, as all have that the kernel made. The kernel knows no more of
	// it than zero where nobody has given routes a class.
	RouteClass = &Field{name: "meta rtclassid", base: inMeta, key: 13, size: 4, native: true}

	// RouteSegment is how many bytes of data a TCP segment of usual headers may have on a packet's way and back. The kernel
	// says 536 for more than 65,535. It looks for the way back, which takes a while.
	RouteSegment = &Field{name: "rt mtu", base: inRoute, key: 3, size: 2, native: true}

	CTState     = &Field{name: "ct state", base: inCT, key: 0, size: 4, native: true}
	CTDirection = &Field{name: "ct direction", base: inCT, key: 1, size: 1}
	CTStatus    = &Field{name: "ct status", base: inCT, key: 2, size: 4, native: true}
	CTMark      = &Field{name: "ct mark", base: inCT, key: 3, size: 4, native: true}

	// What kind of address it is for this host.
	FibSource      = &Field{name: "fib saddr type", base: inFib, key: 1, size: 4, native: true}
	FibDestination = &Field{name: "fib daddr type", base: inFib, key: 2, size: 4, native: true}
)

// Fields of headers: RFC 826, RFC 791 §3.1, RFC 8200 §3, RFC 9293 §3.1, RFC 768, RFC 792, RFC 4443 §2.1.
var (
	ARPSource      = &Field{name: "arp saddr ip", base: inNetwork, offset: 14, size: 4, kind: ARP}
	ARPTargetEther = &Field{name: "arp daddr ether", base: inNetwork, offset: 18, size: 6, kind: ARP}
	ARPTarget      = &Field{name: "arp daddr ip", base: inNetwork, offset: 24, size: 4, kind: ARP}

	IPHeaderLength = &Field{name: "ip hdrlength", base: inNetwork, offset: 0, size: 1, bits: 0x0f, kind: IPv4}
	// IPFragments has what fragments have, and the packet's number before it, for chains of IPv4. The kernel reads bits of
	// four bytes faster than bits of one byte or two.
	IPFragments   = InNetwork(4, 4)
	IPProtocol    = &Field{name: "ip protocol", base: inNetwork, offset: 9, size: 1, kind: IPv4}
	IPSource      = &Field{name: "ip saddr", base: inNetwork, offset: 12, size: 4, kind: IPv4}
	IPDestination = &Field{name: "ip daddr", base: inNetwork, offset: 16, size: 4, kind: IPv4}

	IP6Next        = &Field{name: "ip6 nexthdr", base: inNetwork, offset: 6, size: 1, kind: IPv6}
	IP6HopLimit    = &Field{name: "ip6 hoplimit", base: inNetwork, offset: 7, size: 1, kind: IPv6}
	IP6Source      = &Field{name: "ip6 saddr", base: inNetwork, offset: 8, size: 16, kind: IPv6}
	IP6Destination = &Field{name: "ip6 daddr", base: inNetwork, offset: 24, size: 16, kind: IPv6}

	// AnyPort is the destination port of TCP and UDP. Other protocols have something else there.
	AnyPort = &Field{name: "th dport", base: inTransport, offset: 2, size: 2}
	// AnySource is the source port of TCP and UDP, and of other protocols what they have there.
	AnySource = &Field{name: "th sport", base: inTransport, offset: 0, size: 2}

	TCPSource = &Field{name: "tcp sport", base: inTransport, offset: 0, size: 2, proto: "tcp"}
	TCPPort   = &Field{name: "tcp dport", base: inTransport, offset: 2, size: 2, proto: "tcp"}
	TCPOffset = &Field{name: "tcp doff", base: inTransport, offset: 12, size: 1, bits: 0xf0, proto: "tcp"}
	TCPFlags  = &Field{name: "tcp flags", base: inTransport, offset: 13, size: 1, proto: "tcp"}
	// TCPOffsetOn is TCPOffset, TCPFlags and the window, for chains of TCP.
	TCPOffsetOn = InTransport(12, 4)
	UDPSource   = &Field{name: "udp sport", base: inTransport, offset: 0, size: 2, proto: "udp"}
	UDPPort     = &Field{name: "udp dport", base: inTransport, offset: 2, size: 2, proto: "udp"}
	ICMPType    = &Field{name: "icmp type", base: inTransport, offset: 0, size: 1, kind: IPv4, proto: "icmp"}
	ICMP6Type   = &Field{name: "icmpv6 type", base: inTransport, offset: 0, size: 1, kind: IPv6, proto: "ipv6-icmp"}
	ICMP6Code   = &Field{name: "icmpv6 code", base: inTransport, offset: 1, size: 1, kind: IPv6, proto: "ipv6-icmp"}
	// NDTarget is whom neighbour discovery is about, RFC 4861 §4.3, §4.4. Older releases of nft have no word for it.
	NDTarget = &Field{name: "icmpv6 taddr", base: inTransport, offset: 8, size: 16, silent: true, kind: IPv6, proto: "ipv6-icmp"}
)

// InNetwork is a field that nft has no name for, so many bytes of the network header; InTransport is one of the
// transport header.
func InNetwork(offset, size uint32) *Field {
	return &Field{name: fmt.Sprintf("@nh,%d,%d", 8*offset, 8*size), base: inNetwork, offset: offset, size: size}
}

func InTransport(offset, size uint32) *Field {
	return &Field{name: fmt.Sprintf("@th,%d,%d", 8*offset, 8*size), base: inTransport, offset: offset, size: size}
}

// EmbeddedIPv4 is an IPv4 address that starts at a byte of an IPv6 packet's destination, with its bits inverted if
// flipped is set.
func EmbeddedIPv4(name string, at int, flipped bool) *Field {
	return &Field{name: name + " in ip6 daddr", base: inNetwork, offset: IP6Destination.offset + uint32(at), size: 4,
		flipped: flipped, silent: true, kind: IPv6}
}
