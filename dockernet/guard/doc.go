// Package guard keeps the nftables rules on the host's side of containers' links: they hold whatever a container
// sends, raw frames too, and before its own gate is there.
//
// Every veth that a container hangs on has rules of its own ([Port]). They drop frames that are not what they claim to
// be, judge the destination of the others as the gate does, and mark them: new connections are allowed, or those that
// are open already, or replies only. A few rules for the whole host ([Host]) read that mark, where conntrack knows which
// packet is a reply, and drop what comes without a mark on networks where that may not be.
//
// # How a frame goes
//
// From the veth it passes the port's chain "ingress", and from there others:
//
//	ingress         its own hardware address; IP, or else ARP that is true, on the link, short and not too often
//	ip4, ip6        no fragments, options or extension headers; TCP, UDP or ICMP; its own address; neighbours as ARP
//	judge4, judge6  a chain for each phase in force, which refuses or returns
//
// A refused packet may still be the reply to something that came in, so it is marked as one and goes on. The host's
// chain "prerouting" sees it after conntrack and before every NAT, also if it is only bridged, see [Host.AddBridge].
//
// # Tables
//
// What a change costs the kernel grows with the number of tables, for it goes through their list for every message, with
// the number of all chains, which it looks at when a transaction ends, and with what is in the same table, which it
// checks for loops. So a few ports share a table, and in it the sets and chains that are equal, which are those of the
// phases as a rule, and what logs. What tells ports from each other each has for itself: addresses, counters and limits of
// neighbours.
//
// # What is left
//
// Some frames pass whatever the policy, since no link works without them. They say little, and only to others on the
// link who listen for it, or with [policy.InboundNone] to gateways and allowed neighbours. At most, for each veth:
//
//   - ARP requests, 10 a second after 256 at once: the hardware address that the frame goes to, and the choice of an
//     address on the link, 2 bytes in a /16. 80 bytes a second.
//   - ARP answers, 50 a second after 512 at once: the same, and the hardware address of who is meant. 700 bytes a second.
//   - Neighbour solicitations, 10 a second after 256 at once: a hardware address, and two addresses on the link, of which
//     8 bytes each are free. 220 bytes a second.
//   - Neighbour advertisements, 50 a second after 512 at once: a hardware address, one such address and two flags. 710
//     bytes a second.
//   - Resets, 20 bytes each that are free, to the other end of a connection that is open on the host: one that is allowed
//     or has come in. They are not bounded, and end it.
//   - Answers to what has come in, with errors that quote it, as [policy.Inbound] says. They are not bounded. What comes in
//     may be a segment of a TCP connection that the host's conntrack has forgotten, after which nobody here knows who opened
//     it. The gate does, and lets no frame past it where the kernel can refuse them.
//
// # Checksums
//
// With CAP_NET_RAW a workload can make frames that ask for a checksum at a place of its choice (PACKET_VNET_HDR of
// packet(7)). The kernel or the network card writes these two bytes when the frame leaves the host, after everything was
// judged: two bytes of an IPv6 destination, or the port of either family. In an IPv4 address they would make the
// header's own checksum wrong, so that the next router drops it. No rule on the host sees where that place is, and to
// fill in all checksums on the way would cost every container its segmentation offload. So package gate does not let
// such frames out: at its interfaces in the container only what has a route may leave, which the kernel gives to all that
// its sockets send, and to none that a packet socket sends. If all phases are public, that is so for IPv6 only: of IPv4
// there is nothing then that such a frame could reach and others could not.
//
// That does not hold where the kernel is older than Linux 5.16. And since Linux 6.8 sockets of AF_XDP can ask
// for checksums too (XDP_TXMD_FLAGS_CHECKSUM), and pass all hooks of the container's: package xdp keeps them out, as long as
// the controller runs. Answers to such packets do not
// come back through address translation. A container without CAP_NET_RAW can do none of this.
package guard
