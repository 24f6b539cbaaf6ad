package harbor

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice/dockernet/netns/netnstest"
)

// What comes to a network later is seen, what goes is not, and nothing is seen twice.
func TestWatch(t *testing.T) {
	inside, outside := netnstest.New(t), netnstest.New(t)
	link := func(name, address string) {
		t.Helper()
		netnstest.Link(t, netnstest.End{In: inside, Name: name, Addresses: []netip.Prefix{netip.MustParsePrefix(address)}},
			netnstest.End{In: outside, Name: name})
	}
	link("eth0", "192.0.2.2/24")
	known, err := networkOf(inside.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	link("eth1", "198.51.100.2/24") // before anybody looks
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan network, 16), make(chan error, 1)
	go func() {
		ended <- watch(ctx, inside.Namespace, known, func() {
			now, err := networkOf(inside.Namespace)
			if err != nil {
				t.Error(err)
			}
			changed <- now
		})
	}()
	limit := time.After(20 * time.Second)
	until := func(what string, is func(network) bool) {
		t.Helper()
		for {
			select {
			case now := <-changed:
				if is(now) {
					return
				}
			case err := <-ended:
				t.Fatalf("the watch has ended: %v", err)
			case <-limit:
				t.Fatalf("waited for %s in vain", what)
			}
		}
	}
	until("the second interface and its address", func(n network) bool { return len(n) == len(known)+2 })
	link("eth2", "203.0.113.2/24")
	until("the third interface and its address", func(n network) bool { return len(n) == len(known)+4 })

	h := inside.Handle(t)
	third, err := h.LinkByName("eth2")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkDel(third); err != nil {
		t.Fatal(err)
	}
	address, err := netlink.ParseAddr("2001:db8::7/64")
	if err != nil {
		t.Fatal(err)
	}
	first, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.AddrAdd(first, address); err != nil {
		t.Fatal(err)
	}
	until("the address", func(n network) bool { return n[fmt.Sprintf("%d %v", first.Attrs().Index, address.IPNet)] })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	close(changed)
	for now := range changed {
		t.Errorf("seen twice: %v", now)
	}
}
