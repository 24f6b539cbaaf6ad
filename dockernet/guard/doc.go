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
// phases as a rule. What tells ports from each other each has for itself: addresses, counters and limits.
package guard
