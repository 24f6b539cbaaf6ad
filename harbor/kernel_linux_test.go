package harbor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/gate"
	"sluice/dockernet/netns"
	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft/nfttest"
	"sluice/dockernet/xdp"
	"sluice/policy"
)

// A network with interfaces that only a host has is the host's.
func TestOfContainer(t *testing.T) {
	ns, peer := netnstest.New(t), netnstest.New(t)
	netnstest.Link(t,
		netnstest.End{In: ns, Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24")}},
		netnstest.End{In: peer, Name: "peer", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
	if err := ofContainer(ns.Namespace); err != nil {
		t.Error(err)
	}
	if err := ns.Handle(t).LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}); err != nil {
		t.Fatal(err)
	}
	if err := ofContainer(ns.Namespace); !errors.Is(err, netns.ErrHost) || !strings.Contains(err.Error(), "br0 (bridge)") {
		t.Errorf("%v, want that it is the host's", err)
	}
}

// TestKernel goes through a sidecar's switches, with rules in the kernel and nobody behind the listeners.
func TestKernel(t *testing.T) {
	ns, peer := netnstest.New(t), netnstest.New(t)
	netnstest.Link(t,
		netnstest.End{In: ns, Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24")}},
		netnstest.End{In: peer, Name: "peer", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.9/24")}})
	var servers []net.Listener
	for _, at := range []string{"192.0.2.1:80", "192.0.2.9:80"} {
		peer.Run(t, func() error {
			l, err := net.Listen("tcp", at)
			servers = append(servers, l)
			return err
		})
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	ended := make(chan struct{})
	defer close(ended)
	for _, l := range servers {
		defer l.Close()
		serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				serving.Go(func() { _, _ = io.Copy(c, c) })
				serving.Go(func() {
					<-ended
					c.Close()
				})
			}
		})
	}
	sockets, err := ns.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close()
	mark, group := secretNumber(), secretNumber()
	k := &kernel{ns: ns.Namespace, gate: gate.New(ns.Namespace), mark: mark, group: group,
		listeners: gate.Listeners{TCP4: sockets.TCP4.Port, UDP4: sockets.UDP4.Port, TCP6: sockets.TCP6.Port, UDP6: sockets.UDP6.Port}}
	defer k.close()

	dial := func(to string) (c net.Conn, err error) {
		t.Helper()
		ns.Run(t, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			c, err = (&net.Dialer{}).DialContext(ctx, "tcp", to)
			return nil
		})
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return c, err
	}
	echoes := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	change := func(p policy.Policy) {
		t.Helper()
		_, cutErr := Cut{}, error(nil)
		err := k.Stage(p)
		if err == nil {
			err = k.Both()
		}
		if err == nil {
			err = k.Switch()
		}
		if err == nil {
			_, cutErr = k.Cut()
		}
		if err := errors.Join(err, cutErr); err != nil {
			t.Fatal(err)
		}
	}
	before, err := dial("192.0.2.1:80")
	if err != nil || echoes(before) != nil {
		t.Fatalf("without rules: %v", err)
	}
	if err := k.Install(refuseAll()); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Cut(); err != nil {
		t.Fatal(err)
	}
	if err := echoes(before); err == nil {
		t.Error("LEAK: what was open before goes on")
	}
	if _, err := dial("192.0.2.1:80"); err == nil {
		t.Error("LEAK: no-network lets a connection out")
	}
	only, err := allowlist([]string{"192.0.2.9"})
	if err != nil {
		t.Fatal(err)
	}
	change(public())
	first, err := dial("192.0.2.1:80")
	if err != nil || echoes(first) != nil {
		t.Errorf("public: %v", err)
	}
	second, err := dial("192.0.2.9:80")
	if err != nil || echoes(second) != nil {
		t.Errorf("public: %v", err)
	}
	change(only)
	if err := echoes(second); err != nil {
		t.Errorf("what both policies allow was cut: %v", err)
	}
	if err := echoes(first); err == nil {
		t.Error("LEAK: what the new policy refuses goes on")
	}
	text, err := k.Listing()
	for _, secret := range []string{fmt.Sprintf("%x ", mark), fmt.Sprintf("%d ", group)} {
		if err != nil || !strings.Contains(text, "table inet") || strings.Contains(text, secret) {
			t.Errorf("the listing shows a secret, or nothing: %v\n%s", err, text)
		}
	}
	if err := k.Quarantine(); err != nil {
		t.Fatal(err)
	}
	if _, err := dial("192.0.2.9:80"); err == nil {
		t.Error("LEAK: a quarantine lets a connection out")
	}
	if n, err := k.Refused(); err != nil || n == 0 {
		t.Errorf("%d packets refused, %v", n, err)
	}
	change(only)
	if c, err := dial("192.0.2.9:80"); err != nil || echoes(c) != nil {
		t.Errorf("after the quarantine: %v", err)
	}
}

// The group is one that nobody can guess, of as many as there are.
func TestSecretGroup(t *testing.T) {
	for name, tt := range map[string]struct {
		groups int
		err    error
	}{"all": {1 << 31, nil}, "user_namespace": {1 << 16, nil}, "not_allowed": {0, unix.EPERM}} {
		t.Run(name, func(t *testing.T) {
			seen := make(map[uint32]bool)
			for range 10 {
				var group int
				got, err := secretGroup(func(g int) error {
					if tt.err == nil && g >= tt.groups {
						return unix.EINVAL
					}
					group = g
					return tt.err
				})
				if !errors.Is(err, tt.err) {
					t.Fatalf("%v, want %v", err, tt.err)
				}
				if err != nil {
					if text := rights(err).Error(); got != 0 || !strings.Contains(text, "NET_ADMIN") || !strings.Contains(text, "SETGID") {
						t.Errorf("%d, %s: want to be told what it takes", got, text)
					}
					return
				}
				if group <= 0 || int(got) != group || tt.groups == 1<<16 && group >= 1<<16-2 {
					t.Errorf("group %d, set %d", got, group)
				}
				seen[got] = true
			}
			if len(seen) < 5 {
				t.Errorf("of 10 groups only %d differ", len(seen))
			}
		})
	}
}

// A second sidecar in a network changes nothing there.
func TestSecondSidecar(t *testing.T) {
	ns, peer := netnstest.New(t), netnstest.New(t)
	netnstest.Link(t,
		netnstest.End{In: ns, Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24")}},
		netnstest.End{In: peer, Name: "peer", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
	sidecar := func() *kernel {
		sockets, err := ns.Listen()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sockets.Close() })
		k := &kernel{ns: ns.Namespace, gate: gate.New(ns.Namespace), mark: secretNumber(), group: secretNumber(),
			listeners: gate.Listeners{TCP4: sockets.TCP4.Port, UDP4: sockets.UDP4.Port, TCP6: sockets.TCP6.Port, UDP6: sockets.UDP6.Port}}
		k.queues.Patience = time.Millisecond
		t.Cleanup(k.close)
		return k
	}
	rules := func() string {
		return nfttest.Run(t, ns, "", "--stateless", "list", "ruleset")
	}
	first, second := sidecar(), sidecar()
	if there, err := first.gate.Installed(); err != nil || there {
		t.Errorf("rules before there are any: %v, %v", there, err)
	}
	if err := first.Install(refuseAll()); err != nil {
		t.Fatal(err)
	}
	before := rules()
	if err := second.Install(public()); !errors.Is(err, xdp.ErrTaken) || second.installed {
		t.Errorf("%v, installed %v: want it to leave the first one's rules alone", err, second.installed)
	}
	if after := rules(); after != before {
		t.Errorf("the rules have changed, from\n%s\nto\n%s", before, after)
	}
	// Where a program has the queues and nobody has made rules, everything is refused: that is up to who ends it.
	if err := first.gate.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := second.Install(public()); !errors.Is(err, xdp.ErrTaken) || !second.installed {
		t.Errorf("%v, installed %v: want rules and an error", err, second.installed)
	}
}
