package closed

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// makeNamespace makes a network namespace that a file stands for, as those of ip-netns(8) do. It lies in the lab's own
// directory: "ip netns add" mounts /run/netns onto itself, and what was there before can then not be removed.
func makeNamespace(path string) (*netns.Namespace, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	file.Close()
	err = netns.OnOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		return nil, fmt.Errorf("make network namespace %s: %w", path, err)
	}
	return netns.Open(path, nil)
}

// LinkName is the name of both ends of the link between the two namespaces.
const LinkName = "link"

// The link's addresses. The engine masquerades, so the internet sees nothing but the engine's end.
const (
	engine4   = "100.64.0.1/30"
	internet4 = "100.64.0.2/30"
	engine6   = "fd64::1/126"
	internet6 = "fd64::2/126"
)

// join makes the veth pair. It is created inside the engine's namespace with its other end in the internet's, so it
// is never to be seen anywhere else.
func (l *Lab) join() error {
	other, err := os.Open(l.path(internetNS))
	if err != nil {
		return err
	}
	defer other.Close()
	return l.engineNS.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = LinkName
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: LinkName, PeerNamespace: netlink.NsFd(other.Fd())})
		if err != nil {
			return fmt.Errorf("make the link: %w", err)
		}
		return nil
	})
}

// configure sets addresses up in the calling thread's namespace and makes the gateways its default routes.
func configure(addresses []string, gateways []string) error {
	for file, value := range map[string]string{
		// Addresses must work at once.
		"ipv6/conf/all/accept_dad":     "0",
		"ipv6/conf/default/accept_dad": "0",
		"ipv6/conf/link/accept_dad":    "0",
		// UDP answers come from the address that was asked, which is local by a route and not by an interface.
		"ipv6/ip_nonlocal_bind":    "1",
		"ipv6/conf/all/forwarding": "1",
		"ipv4/ip_forward":          "1",
	} {
		if err := os.WriteFile("/proc/sys/net/"+file, []byte(value), 0); err != nil {
			return err
		}
	}
	for _, name := range []string{"lo", LinkName} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		if name == LinkName {
			for _, address := range addresses {
				parsed, err := netlink.ParseAddr(address)
				if err != nil {
					return err
				}
				if err := netlink.AddrAdd(link, parsed); err != nil {
					return fmt.Errorf("address %s: %w", address, err)
				}
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
	}
	for _, gateway := range gateways {
		prefix, err := netip.ParsePrefix(gateway)
		if err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{Gw: prefix.Addr().AsSlice()}); err != nil {
			return fmt.Errorf("route to %s: %w", prefix.Addr(), err)
		}
	}
	return nil
}

// ownAll makes every address of the prefixes local to the calling thread's namespace.
func ownAll(prefixes []netip.Prefix) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, prefix := range prefixes {
		destination := &net.IPNet{
			IP:   prefix.Addr().AsSlice(),
			Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
		}
		err := netlink.RouteAdd(&netlink.Route{
			LinkIndex: lo.Attrs().Index,
			Dst:       destination,
			Table:     unix.RT_TABLE_LOCAL,
			Type:      unix.RTN_LOCAL,
			Scope:     unix.RT_SCOPE_HOST,
		})
		if err != nil {
			return fmt.Errorf("make %s local: %w", prefix, err)
		}
	}
	return nil
}
