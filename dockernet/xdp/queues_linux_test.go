package xdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
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
	link("eth2", "203.0.113.1/24")
	if err := q.Add(inside.Namespace); err != nil {
		t.Fatal(err)
	}
	free("eth2", false)
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
	if len(q.kept) != 2 {
		t.Errorf("sockets of %d interfaces are kept", len(q.kept))
	}
	q.Close()
	var again Queues
	t.Cleanup(again.Close)
	if err := again.Keep(inside.Namespace); err != nil { // a queue is let go a little later than its socket
		t.Fatal(err)
	}
	others := Queues{Patience: time.Millisecond}
	for _, keep := range []func(*netns.Namespace) error{others.Keep, others.Add} {
		if err := keep(inside.Namespace); !errors.Is(err, ErrTaken) {
			t.Errorf("a queue that another has: %v", err)
		}
	}
}

// Only where there is no queue to keep is it no error that none was kept. Whatever else keeps this process from it, a
// workload may have brought about, and may have sockets of its own.
func TestKeepOrFail(t *testing.T) {
	for _, of := range []struct {
		err  error
		want error
	}{
		{unix.EINVAL, nil}, {unix.ENODEV, nil}, {unix.EOPNOTSUPP, nil}, {unix.EAFNOSUPPORT, nil},
		{unix.EBUSY, ErrTaken},
		{unix.ENOBUFS, unix.ENOBUFS}, {unix.ENOMEM, unix.ENOMEM}, {unix.EMFILE, unix.EMFILE}, {unix.ENFILE, unix.ENFILE},
		{unix.EPERM, unix.EPERM}, {unix.EACCES, unix.EACCES},
	} {
		for first := range uint32(2) {
			t.Run(fmt.Sprint(unix.ErrnoName(of.err.(unix.Errno)), "-", first), func(t *testing.T) {
				sockets, err := keep(func(queue uint32) (int, error) {
					if queue < first {
						return -1, nil
					}
					return -1, of.err
				}, time.Time{})
				if !errors.Is(err, of.want) || err == nil && len(sockets) != int(first) || err != nil && sockets != nil {
					t.Errorf("%d sockets, %v", len(sockets), err)
				}
			})
		}
	}
}

// A workload that has a queue of its own must not hold up the controller for longer than it needs.
func TestPatience(t *testing.T) {
	var q Queues
	for _, at := range []struct{ after, want time.Duration }{
		{0, inheritance}, {inheritance - patience, inheritance}, {inheritance, inheritance + patience}, {time.Hour, time.Hour + patience},
	} {
		if got := q.deadline(began.Add(at.after)).Sub(began); got != at.want {
			t.Errorf("after %v it waits until %v, want %v", at.after, got, at.want)
		}
	}
	q.Patience = time.Millisecond
	if got := q.deadline(began).Sub(began); got != time.Millisecond {
		t.Errorf("a patience that was given: it waits %v", got)
	}
}

// A filter of a unit or a container gives the same answer as a kernel without such sockets.
func TestFiltered(t *testing.T) {
	if err := unsupported(os.ReadFile("/proc/net/protocols")); !errors.Is(err, errFiltered) {
		t.Errorf("of a kernel that has them: %v", err)
	}
	if err := unsupported([]byte("protocol  size\nXDPX  1\nTCP   2496\n"), nil); !errors.Is(err, unix.EAFNOSUPPORT) {
		t.Errorf("of one that has none: %v", err)
	}
	if err := unsupported(nil, os.ErrPermission); !errors.Is(err, os.ErrPermission) {
		t.Errorf("of one that does not tell: %v", err)
	}
}
