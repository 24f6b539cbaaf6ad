// Package guard keeps the nftables rules on the host's side of containers' links: they hold whatever a container
// sends, raw frames too, and before its own gate is there.
//
// Every veth that a container hangs on has a table of its own ([Port]), so that the cost of one does not grow with
// their number. It drops frames that are not what they claim to be, judges the destination of the others as the gate
// does, and marks them: new connections are allowed, or those that are open already, or replies only. A few rules for
// the whole host ([Host]) read that mark, where conntrack knows which packet is a reply, and drop what comes without a
// mark on networks where that may not be.
//
// # How a frame goes
//
// From the veth it passes the chain "ingress" of its table, and from there others:
//
//	ingress         its own hardware address; IP, or else ARP that is true, on the link, short and not too often
//	ip4, ip6        its own address, no fragments, options or extension headers; TCP, UDP or ICMP, neighbours as ARP
//	judge4, judge6  a chain for each phase in force, which refuses or returns
//
// A refused packet may still be the reply to something that came in, so it is marked as one and goes on. The host's
// chain "prerouting" sees it after conntrack and before every NAT, also if it is only bridged, see [Host.AddBridge].
package guard
