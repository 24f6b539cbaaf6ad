package engine

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"sluice/dockernet/netns"
)

// shortestRoute is the prefix length below which a route is taken for half a default route, as some VPNs have it, and
// not for a network of its own.
const shortestRoute = 8

// Routes returns the networks that the calling thread's namespace has routes to, without default routes: what a new
// subnet must keep clear of, since it would take their traffic.
func Routes() ([]netip.Prefix, error) {
	routes, err := netns.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var list []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		bits, _ := r.Dst.Mask.Size()
		a, ok := netip.AddrFromSlice(r.Dst.IP)
		if ok && bits >= shortestRoute {
			list = append(list, netip.PrefixFrom(a.Unmap(), bits))
		}
	}
	return list, nil
}
