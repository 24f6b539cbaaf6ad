package closed

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespaceDir is where named namespaces are kept, as "ip netns" expects (ip-netns(8)).
const namespaceDir = "/run/netns/"

// onOwnThread runs f on a thread that ends with it, so that f may change the thread's namespaces.
func onOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine. The main thread cannot end, so it must not be used.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			result <- onOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		result <- f()
	}()
	return <-result
}

// inNamespace runs f on a thread inside the named namespace. Sockets that f opens, and programs that it starts and
// waits for, belong to that namespace.
func inNamespace(name string, f func() error) error {
	return onOwnThread(func() error {
		ns, err := netns.GetFromName(name)
		if err != nil {
			return fmt.Errorf("network namespace %s: %w", name, err)
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", name, err)
		}
		return f()
	})
}

func makeNamespace(name string) error {
	return onOwnThread(func() error {
		ns, err := netns.NewNamed(name)
		if err != nil {
			return fmt.Errorf("make network namespace %s: %w", name, err)
		}
		return ns.Close()
	})
}

// removeNamespace is done when the namespace is gone or never was.
func removeNamespace(name string) error {
	if err := unix.Unmount(namespaceDir+name, unix.MNT_DETACH); err != nil &&
		!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // not a mount point; no such file
		return fmt.Errorf("remove network namespace %s: %w", name, err)
	}
	if err := os.Remove(namespaceDir + name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// The link between the two namespaces. The engine masquerades, so the internet sees nothing but the engine's end.
const (
	linkName  = "link"
	engine4   = "100.64.0.1/30"
	internet4 = "100.64.0.2/30"
	engine6   = "fd64::1/126"
	internet6 = "fd64::2/126"
)

// join makes the veth pair. It is created inside the engine's namespace with its other end in the internet's, so it
// is never to be seen anywhere else.
func join(engineNS, internetNS string) error {
	other, err := netns.GetFromName(internetNS)
	if err != nil {
		return err
	}
	defer other.Close()
	return inNamespace(engineNS, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = linkName
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: linkName, PeerNamespace: netlink.NsFd(other)})
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
	for _, name := range []string{"lo", linkName} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		if name == linkName {
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
