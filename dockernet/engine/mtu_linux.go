package engine

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// uplinkMTU returns the smallest number of bytes that packets may have on the ways out of the calling thread's namespace:
// by routes to everything, or to so much that they are meant for it. It is 0 if there are none.
func uplinkMTU() (least int, err error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return 0, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		bits := 0
		if r.Dst != nil {
			bits, _ = r.Dst.Mask.Size()
		}
		if bits >= shortestRoute || r.Type != unix.RTN_UNICAST {
			continue
		}
		for _, way := range append([]*netlink.NexthopInfo{{LinkIndex: r.LinkIndex}}, r.MultiPath...) {
			link, err := netlink.LinkByIndex(way.LinkIndex)
			if err != nil || link.Attrs().Flags&net.FlagLoopback != 0 {
				continue // it has gone meanwhile
			}
			for _, m := range []int{link.Attrs().MTU, r.MTU} {
				if m > 0 && (least == 0 || m < least) {
					least = m
				}
			}
		}
	}
	return least, nil
}
