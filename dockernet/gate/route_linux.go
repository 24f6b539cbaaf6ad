package gate

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// routeMetric is behind every metric that the engine uses, so that its own default route can still be added.
const routeMetric = 4_000_000

// addRoutes adds, in the namespace of the calling thread, a default route to the loopback interface for each family
// that has addresses but no default route, as on the engine's internal networks. Without it a connection fails before
// any rule sees it; with it nothing leaves that is not redirected.
func addRoutes() error {
	return inNetlink(func(h *netlink.Handle, lo netlink.Link) error {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			needed, err := lacksDefault(h, lo, family)
			if err != nil {
				return err
			}
			if !needed {
				continue
			}
			if err := h.RouteAdd(loopbackRoute(lo, family)); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add default route: %w", err)
			}
		}
		return nil
	})
}

func removeRoutes() error {
	return inNetlink(func(h *netlink.Handle, lo netlink.Link) error {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			if err := h.RouteDel(loopbackRoute(lo, family)); err != nil &&
				!errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
				return fmt.Errorf("remove default route: %w", err)
			}
		}
		return nil
	})
}

func inNetlink(f func(*netlink.Handle, netlink.Link) error) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback interface: %w", err)
	}
	return f(h, lo)
}

func loopbackRoute(lo netlink.Link, family int) *netlink.Route {
	bits := 32
	if family == unix.AF_INET6 {
		bits = 128
	}
	return &netlink.Route{
		Family: family, LinkIndex: lo.Attrs().Index, Priority: routeMetric, Scope: netlink.SCOPE_LINK,
		Dst: &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)},
	}
}

func lacksDefault(h *netlink.Handle, lo netlink.Link, family int) (bool, error) {
	addresses, err := netns.Whole(func() ([]netlink.Addr, error) { return h.AddrList(nil, family) })
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	usable := false
	for _, a := range addresses {
		usable = usable || a.LinkIndex != lo.Attrs().Index && a.IP.IsGlobalUnicast()
	}
	if !usable {
		return false, nil
	}
	routes, err := netns.Whole(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	})
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	return len(routes) == 0, nil
}
