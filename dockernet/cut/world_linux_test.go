package cut

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
)

// world is a container, its host, which translates addresses as an engine's does, and what lies beyond.
//
//	inside ── eth0 10.77.0.2 ── host 10.77.0.1 · 192.0.2.1 ── outside 192.0.2.2, .3, .4
type world struct {
	inside, host, outside *netnstest.Namespace
}

var (
	// container's addresses, one a family; the two beyond that tests refuse and allow.
	own     = []netip.Addr{netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("fd77::2")}
	allowed = []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
	refused = []netip.Addr{netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("2001:db8::3")}
	// neighbour is another address on the container's link.
	neighbour = []netip.Addr{netip.MustParseAddr("10.77.0.3"), netip.MustParseAddr("fd77::3")}
)

var (
	loopback = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	beyond   = slices.Concat(allowed, refused)
	inside   = slices.Concat(own, loopback)
)

const (
	servicePort  = 8080 // everywhere
	listenerPort = 999  // of the proxy, inside
	proxiedPort  = 443  // what the gate redirects there
)

// gateRules make conntrack look at what leaves, and redirect.
const gateRules = `
table inet gate {
	chain steer {
		type nat hook output priority -110
		meta l4proto { tcp, udp } th dport 443 redirect to :999
	}
	chain output {
		type filter hook output priority 0
		ct state established counter
	}
}`

const hostRules = `
table inet nat {
	chain prerouting {
		type nat hook prerouting priority -100
		iifname "out" ip daddr 192.0.2.1 tcp dport 80 dnat ip to 10.77.0.2:8080
		iifname "out" ip6 daddr 2001:db8::1 tcp dport 80 dnat ip6 to [fd77::2]:8080
	}
	chain postrouting {
		type nat hook postrouting priority 100
		oifname "out" masquerade
	}
}`

func newWorld(t testing.TB) *world {
	w := &world{inside: netnstest.New(t), host: netnstest.New(t), outside: netnstest.New(t)}
	// Link-local addresses must be usable at once: who forwards asks for neighbours from them.
	w.host.Run(t, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
	})
	netnstest.Link(t,
		netnstest.End{In: w.inside, Name: "eth0", Addresses: prefixes("10.77.0.2/24", "fd77::2/64")},
		netnstest.End{In: w.host, Name: "in", Addresses: prefixes("10.77.0.1/24", "10.77.0.3/24", "fd77::1/64", "fd77::3/64")})
	netnstest.Link(t,
		netnstest.End{In: w.host, Name: "out", Addresses: prefixes("192.0.2.1/24", "2001:db8::1/64")},
		netnstest.End{In: w.outside, Name: "eth0", Addresses: prefixes("192.0.2.2/24", "192.0.2.3/24", "192.0.2.4/24",
			"2001:db8::2/64", "2001:db8::3/64", "2001:db8::4/64")})
	for _, gateway := range []string{"10.77.0.1", "fd77::1"} {
		if err := w.inside.Handle(t).RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}); err != nil {
			t.Fatal(err)
		}
	}
	w.host.Run(t, func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	})
	nft(t, w.host, hostRules)
	return w
}

func prefixes(list ...string) []netip.Prefix {
	var p []netip.Prefix
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

func nft(t testing.TB, ns *netnstest.Namespace, rules string) {
	t.Helper()
	ns.Run(t, func() error {
		var problems bytes.Buffer
		c := exec.Command("nft", "-f", "-")
		c.Stdin, c.Stderr = strings.NewReader(rules), &problems
		if err := c.Run(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, problems.String())
		}
		return nil
	})
}

// spec refuses the addresses that tests refuse, both ways if inbound is set.
func (w *world) spec(inbound bool) Spec {
	isRefused := func(a netip.Addr) bool { return a == refused[0] || a == refused[1] }
	s := Spec{
		Refused:   func(to netip.AddrPort, _ uint8) bool { return isRefused(to.Addr()) },
		Addresses: own,
		Host:      w.host.Namespace,
	}
	if inbound {
		s.RefusedInbound = isRefused
	}
	return s
}

func (w *world) cut(t testing.TB, s Spec) Report {
	t.Helper()
	r, err := Cut(w.inside.Namespace, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// want fails unless the reports are equal.
func want(t testing.TB, got, want Report) {
	t.Helper()
	if got != want {
		t.Errorf("report %+v, want %+v", got, want)
	}
}

// serve echoes what comes to the port of any of the addresses, until the test ends.
func serve(t testing.TB, ns *netnstest.Namespace, port uint16, addresses ...netip.Addr) {
	t.Helper()
	for _, a := range addresses {
		var l net.Listener
		var u net.PacketConn
		ns.Run(t, func() (err error) {
			at := netip.AddrPortFrom(a, port).String()
			if l, err = net.Listen("tcp", at); err == nil {
				u, err = net.ListenPacket("udp", at)
			}
			return err
		})
		t.Cleanup(func() { l.Close(); u.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); io.Copy(c, c) }()
			}
		}()
		go func() {
			b := make([]byte, 1500)
			for {
				n, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				u.WriteTo(b[:n], from)
			}
		}()
	}
}

// connect opens a connection from the namespace and exchanges bytes.
func connect(t testing.TB, ns *netnstest.Namespace, network string, to netip.Addr, port uint16) net.Conn {
	t.Helper()
	var c net.Conn
	ns.Run(t, func() (err error) {
		c, err = net.Dial(network, netip.AddrPortFrom(to, port).String())
		return err
	})
	t.Cleanup(func() { c.Close() })
	if err := ping(c); err != nil {
		t.Fatalf("%s %v:%d: %v", network, to, port, err)
	}
	return c
}

var pings atomic.Uint32

// ping exchanges bytes. A datagram may be lost while neighbours are looked for, so it is sent again until one is answered.
// pair is a TCP connection from one namespace into another, with the end that was accepted first.
func pair(t testing.TB, server *netnstest.Namespace, listen string, client *netnstest.Namespace, dial string) (accepted, dialled net.Conn) {
	t.Helper()
	var l net.Listener
	server.Run(t, func() (err error) {
		l, err = net.Listen("tcp", listen)
		return err
	})
	t.Cleanup(func() { l.Close() })
	client.Run(t, func() (err error) {
		dialled, err = net.Dial("tcp", dial)
		return err
	})
	t.Cleanup(func() { dialled.Close() })
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return accepted, dialled
}

func ping(c net.Conn) error {
	question, answer := make([]byte, 4), make([]byte, 4)
	end := time.Now().Add(10 * time.Second)
	for {
		until := end
		if _, ok := c.(*net.UDPConn); ok && time.Until(end) > time.Second {
			until = time.Now().Add(time.Second)
		}
		c.SetDeadline(until)
		binary.BigEndian.PutUint32(question, pings.Add(1))
		_, err := c.Write(question)
		for err == nil && !bytes.Equal(answer, question) {
			_, err = io.ReadFull(c, answer)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(end) {
			return err
		}
	}
}

func survives(t testing.TB, what string, c net.Conn) {
	t.Helper()
	if err := ping(c); err != nil {
		t.Errorf("%s: %v, want it to go on", what, err)
	}
}

// aborted waits for the end of a connection, without sending anything.
func aborted(t testing.TB, what string, c net.Conn) {
	t.Helper()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("%s: %v, want %v", what, err, unix.ECONNABORTED)
	}
}

// entriesTo counts conntrack's entries to an address in the namespace.
func entriesTo(t testing.TB, ns *netnstest.Namespace, to netip.Addr) int {
	t.Helper()
	n := 0
	ns.Run(t, func() error {
		c, err := dial(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer c.close()
		return c.all(func(e entry) {
			if e.original.destination.Addr() == to {
				n++
			}
		})
	})
	return n
}
