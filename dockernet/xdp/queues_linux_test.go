package xdp

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
)

// All queues are kept, of interfaces that come later too, until they are let go. [sluice/dockernet/guard.TestChecksumsOfXDP]
// tells why.
func TestQueues(t *testing.T) {
	inside, outside := netnstest.New(t), netnstest.New(t)
	link := func(name, address string) {
		netnstest.Link(t, netnstest.End{In: inside, Name: name, Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}, netnstest.End{In: outside, Name: name})
	}
	free := func(device string, want bool) {
		t.Helper()
		inside.Run(t, func() error {
			i, err := net.InterfaceByName(device)
			if err != nil {
				return err
			}
			fd, err := open(i.Index, 0)
			if err == nil {
				err = unix.Close(fd)
			}
			if want && err != nil || !want && !errors.Is(err, unix.EBUSY) {
				t.Errorf("%s: %v, want it free: %v", device, err, want)
			}
			return nil
		})
	}
	var q Queues
	t.Cleanup(q.Close)
	keep := func() {
		t.Helper()
		if err := q.Keep(inside.Namespace); err != nil {
			t.Fatal(err)
		}
	}
	keep() // nothing
	link("eth0", "192.0.2.1/24")
	free("eth0", true)
	keep()
	free("eth0", false)
	link("eth1", "198.51.100.1/24")
	free("eth1", true)
	keep()
	free("eth1", false)
	free("eth0", false)

	h := inside.Handle(t)
	eth1, err := h.LinkByName("eth1")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkDel(eth1); err != nil { // although its queue is kept
		t.Fatal(err)
	}
	if _, err := h.LinkByName("eth1"); !errors.As(err, new(netlink.LinkNotFoundError)) {
		t.Errorf("eth1 is still there: %v", err)
	}
	keep()
	if len(q.kept) != 1 {
		t.Errorf("sockets of %d interfaces are kept", len(q.kept))
	}
	q.Close()
	var again Queues
	t.Cleanup(again.Close)
	if err := again.Keep(inside.Namespace); err != nil { // a queue is let go a little later than its socket
		t.Fatal(err)
	}
	others := Queues{Patience: time.Millisecond}
	if err := others.Keep(inside.Namespace); !errors.Is(err, ErrTaken) {
		t.Errorf("a queue that another has: %v", err)
	}
}
