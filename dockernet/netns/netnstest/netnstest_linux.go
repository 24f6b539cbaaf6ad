// Package netnstest makes network namespaces for tests. They have no way out but the links that a test makes between
// them, have no name, and are gone when the test binary is, however it ends.
//
// Tests that call it need root. With -run-kernel they fail without it, otherwise they are skipped and say so:
//
//	sudo go test ./dockernet/... -run-kernel
package netnstest

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

var runKernel = flag.Bool("run-kernel", false, "fail instead of skip where tests in network namespaces cannot run; needs root")

// Namespace is a network namespace whose only interface is a loopback that is up.
type Namespace struct {
	*netns.Namespace
	// Path leads to the namespace until the test ends.
	Path string
	file *os.File
}

// mayUnshare is the reason why this process cannot make namespaces.
var mayUnshare = sync.OnceValue(func() error {
	return netns.OnOwnThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) })
})

// Require skips the test where namespaces cannot be made, or fails it if -run-kernel is given.
func Require(t testing.TB) {
	t.Helper()
	switch err := mayUnshare(); {
	case err == nil:
	case *runKernel:
		t.Fatalf("cannot make a network namespace: %v: run this as root", err)
	default:
		t.Skipf("DID NOT RUN: cannot make a network namespace: %v: run it as root, with -run-kernel", err)
	}
}

// New makes a namespace that lives as long as the test.
func New(t testing.TB) *Namespace {
	t.Helper()
	Require(t)
	n := new(Namespace)
	err := netns.OnOwnThread(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		n.file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() { n.file.Close() })
	n.Path = fmt.Sprintf("/proc/self/fd/%d", n.file.Fd())
	if n.Namespace, err = netns.Open(n.Path, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Namespace.Close() })
	n.Run(t, func() error {
		// No duplicate address detection: addresses are usable at once.
		err := os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // no IPv6 in this kernel
		}
		return err
	})
	h := n.Handle(t)
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatalf("set the loopback up: %v", err)
	}
	return n
}

// Handle returns netlink's way into the namespace, open until the test ends.
func (n *Namespace) Handle(t testing.TB) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandleAt(vnetns.NsHandle(n.file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatalf("netlink in a namespace: %v", err)
	}
	t.Cleanup(h.Close)
	return h
}

// Run runs f inside the namespace, see [netns.Namespace.Do].
func (n *Namespace) Run(t testing.TB, f func() error) {
	t.Helper()
	if err := n.Do(f); err != nil {
		t.Fatal(err)
	}
}

// End is one end of a link.
type End struct {
	In        *Namespace
	Name      string         // of the interface
	Addresses []netip.Prefix // each with the length of the on-link prefix
}

var linkNumber atomic.Int32

// Link joins two namespaces by a veth pair that is up, with its addresses ready for use.
func Link(t testing.TB, a, b End) {
	t.Helper()
	h := a.In.Handle(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = a.Name
	// Where both ends had the same number, the kernel would take up to a second to see that the link is up
	// (linkwatch_urgent_event in net/core/link_watch.c), and IPv6 waits for that.
	attrs.Index = 1000 + int(linkNumber.Add(1))
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerNamespace: netlink.NsFd(b.In.file.Fd())}
	if err := h.LinkAdd(veth); err != nil {
		t.Fatalf("make link %s to %s: %v", a.Name, b.Name, err)
	}
	for _, e := range []End{a, b} {
		if err := e.up(t); err != nil {
			t.Fatalf("set up %s: %v", e.Name, err)
		}
	}
}

func (e End) up(t testing.TB) error {
	h := e.In.Handle(t)
	link, err := h.LinkByName(e.Name)
	if err != nil {
		return err
	}
	for _, p := range e.Addresses {
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: IPNet(p), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("address %v: %w", p, err)
		}
	}
	return h.LinkSetUp(link)
}

// IPNet is the prefix as package netlink wants it.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
