package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft/nfttest"
	"sluice/policy"
)

// A host between the workload and the outside: it routes, and its rules are as an engine's.
const hostRules = `
table inet engine {
	chain forward {
		type filter hook forward priority 0; policy drop;
		ct state established,related accept
		iifname "inside" accept
	}
	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		oifname "outside" masquerade
	}
}
`

// piece fits into the sockets' buffers.
const piece = 1 << 17

// source is more than the processor's nearer caches hold.
var source, sink = make([]byte, 8<<20), make([]byte, piece)

// routed is a connection from a workload by way of a host to the outside, in a single thread's hands.
type routed struct{ client, server int }

func newRouted(b *testing.B, f string, phase *direct.Phase) *routed {
	b.Helper()
	w, host, outside := netnstest.New(b), netnstest.New(b), netnstest.New(b)
	netnstest.Link(b, netnstest.End{In: w, Name: "eth0", Addresses: prefixes("198.51.100.2/24", "2001:db8:1::2/64")},
		netnstest.End{In: host, Name: "inside", Addresses: prefixes("198.51.100.1/24", "2001:db8:1::1/64")})
	netnstest.Link(b, netnstest.End{In: host, Name: "outside", Addresses: prefixes("192.0.2.1/24", "2001:db8:2::1/64")},
		netnstest.End{In: outside, Name: "eth0", Addresses: prefixes("192.0.2.5/24", "2001:db8:2::5/64")})
	writeSysctl(b, host, "net/ipv4/ip_forward", "1")
	writeSysctl(b, host, "net/ipv6/conf/all/forwarding", "1")
	nfttest.Run(b, host, hostRules, "-f", "-")
	for _, via := range addrs("198.51.100.1", "2001:db8:1::1") {
		if err := w.Handle(b).RouteAdd(&netlink.Route{Gw: via.AsSlice()}); err != nil {
			b.Fatal(err)
		}
	}
	if phase != nil {
		s := example(true, threeOf(b, *phase))
		if err := newGate(b, w).Install(s, policy.Baseline); err != nil {
			b.Fatal(err)
		}
	}
	to := netip.MustParseAddrPort(map[string]string{"ipv4": "192.0.2.5:443", "ipv6": "[2001:db8:2::5]:443"}[f])
	family, address := socketAddress(to)
	listener, r := -1, &routed{-1, -1}
	b.Cleanup(func() {
		for _, fd := range []int{listener, r.client, r.server} {
			unix.Close(fd)
		}
	})
	outside.Run(b, func() (err error) {
		if listener, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			err = errors.Join(unix.Bind(listener, address), unix.Listen(listener, 1))
		}
		return err
	})
	w.Run(b, func() (err error) {
		if r.client, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			// The kernel takes a moment to see that the links are up.
			wait(b, "a connection", func() bool { return unix.Connect(r.client, address) == nil })
		}
		return err
	})
	var err error
	if r.server, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC); err != nil {
		b.Fatal(err)
	}
	return r
}

// carry sends so many bytes and takes them out at the other end, as a program with buffers of its own does: one piece
// after another, so that nobody waits while the processor runs.
func (r *routed) carry(bytes int) error {
	for at := 0; at < bytes; at += piece {
		for sent := 0; sent < piece; {
			n, err := unix.Write(r.client, source[at%(8<<20):][sent:piece])
			if err != nil {
				return fmt.Errorf("send: %w", err)
			}
			sent += n
		}
		for got := 0; got < piece; {
			n, err := unix.Read(r.server, sink)
			if err != nil {
				return fmt.Errorf("receive: %w", err)
			}
			got += n
		}
	}
	return nil
}

// BenchmarkBulk is what a byte of a direct connection costs of the processor, in the workload, the host and outside
// together, as a multiple of what it costs without a gate: the median of rounds that take turns.
func BenchmarkBulk(b *testing.B) {
	targets := []string{"192.0.2.5", "192.0.2.64/26", "192.0.2.7:443", "2001:db8:2::5", "2001:db8:2:1::/64", "ok.test"}
	for _, f := range []string{"ipv4", "ipv6"} {
		b.Run(f, func(b *testing.B) {
			names := []string{"none", "public", "allowlist"}
			public, list := phaseOf(b, "public"), phaseOf(b, "allowlist", targets...)
			var connections []*routed
			for _, phase := range []*direct.Phase{nil, &public, &list} {
				connections = append(connections, newRouted(b, f, phase))
			}
			const rounds, bytes = 60, 32 << 20
			ratios := make([][]float64, len(names))
			onOneCPU(b, func() error {
				for b.Loop() {
					for round := range rounds {
						cost := make([]float64, len(names))
						for turn := range names {
							i := (round + turn) % len(names)
							before := threadTime()
							if err := connections[i].carry(bytes); err != nil {
								return err
							}
							cost[i] = float64(threadTime() - before)
						}
						for i := range names {
							ratios[i] = append(ratios[i], cost[i]/cost[0])
						}
					}
				}
				return nil
			})
			for i, name := range names[1:] {
				slices.Sort(ratios[i+1])
				b.ReportMetric(ratios[i+1][len(ratios[i+1])/2], name+"/none")
			}
		})
	}
}
