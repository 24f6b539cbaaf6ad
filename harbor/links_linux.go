package harbor

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// network is what rules depend on: interfaces, and addresses but for those of the link.
type network map[string]bool

// networkOf is what the namespace has now.
func networkOf(ns *netns.Namespace) (network, error) {
	n := make(network)
	err := ns.Do(func() error {
		links, err := netns.Interfaces()
		if err != nil {
			return err
		}
		for _, l := range links {
			n[fmt.Sprintf("%d %s", l.Index, l.Name)] = true
		}
		addresses, err := netns.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		for _, a := range addresses {
			if !a.IP.IsLinkLocalUnicast() {
				n[fmt.Sprintf("%d %v", a.LinkIndex, a.IPNet)] = true
			}
		}
		return nil
	})
	return n, err
}

// within reports whether n is a part of the other.
func (n network) within(other network) bool {
	for name := range n {
		if !other[name] {
			return false
		}
	}
	return true
}

// watch calls changed each time that the namespace has more than it had, beginning with what known was, until ctx is done.
// An engine that connects the container with a further network makes it so.
func watch(ctx context.Context, ns *netns.Namespace, known network, changed func()) error {
	var news *os.File
	err := ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		news = os.NewFile(uintptr(fd), "netlink")
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
			Groups: 1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1)})
	})
	if news != nil {
		defer news.Close()
	}
	if err != nil {
		return fmt.Errorf("watch the network: %w", err)
	}
	defer context.AfterFunc(ctx, func() { news.Close() })()
	buffer := make([]byte, 1<<15)
	for {
		now, err := networkOf(ns)
		if err != nil {
			return fmt.Errorf("watch the network: %w", err)
		}
		if !now.within(known) {
			changed()
		}
		known = now
		// What it says does not matter, nor whether some of it was lost.
		_, err = news.Read(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("watch the network: %w", err)
		}
	}
}
