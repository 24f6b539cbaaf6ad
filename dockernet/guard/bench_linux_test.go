package guard

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// The kernel looks at all tables for every change, so that many of them cost something.
var ports = flag.Int("ports", 200, "how many veths have rules in the larger benchmarks; 2000 takes minutes")

// benchLab is a host with so many veths that have rules for small policies already, and a container that has none. It
// returns how much memory of the kernel each of them takes, which is only exact if they are many.
func benchLab(b *testing.B, others int, withIPv6 bool) (l *lab, bytes int) {
	l = newLab(b, "abs")
	h := l.host.Handle(b)
	var specs []*Spec
	for i := range others {
		name, bridge := fmt.Sprintf("d%d", i), netlink.NewLinkAttrs()
		if bridge.Name = fmt.Sprintf("br%d", i/500); i%500 == 0 { // a bridge has 1023 ports at most
			if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: bridge}); err != nil {
				b.Fatal(err)
			}
			if err := l.guard.AddBridge(bridge.Name, false); err != nil {
				b.Fatal(err)
			}
		}
		master, err := h.LinkByName(bridge.Name)
		if err != nil {
			b.Fatal(err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = name, master.Attrs().Index
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("e%d", i)}); err != nil {
			b.Fatal(err)
		}
		link, err := h.LinkByName(name)
		if err != nil {
			b.Fatal(err)
		}
		// Ports share what is equal, so each has a policy of its own.
		own := fmt.Sprintf("10.9.%d.%d:443", i>>8, i&0xff)
		s := l.spec(b, "a", phaseOf(b, "public"), phaseOf(b, "allowlist", "ok.test", "192.0.2.0/24", own, "198.51.100.7:5432"))
		s.Interface, s.Index, s.Hardware = name, link.Attrs().Index, nft.Hardware{2, 0, 0, 0, byte(i >> 8), byte(i)}
		if !withIPv6 {
			s.Addresses = s.Addresses[:1]
		}
		specs = append(specs, s)
	}
	before := slabBytes(b)
	for _, s := range specs {
		if err := l.guard.Port(s.Interface).Install(s, policy.Baseline); err != nil {
			b.Fatal(err)
		}
	}
	return l, (slabBytes(b) - before) / others
}

// slabBytes is what the kernel's allocators have given away, to all.
func slabBytes(b *testing.B) (n int) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "SUnreclaim: %d kB", &n); err == nil {
			return n << 10
		}
	}
	b.Fatal("no SUnreclaim in /proc/meminfo")
	return 0
}

// report gives the median, the 99th percentile and the longest of some times.
func report(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	at := func(q float64) float64 {
		return float64(times[min(int(q*float64(len(times))), len(times)-1)].Microseconds()) / 1000
	}
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(at(1), "max-ms")
}

// targets is an allowlist of n addresses, of both families, half of them with a port.
func targets(n int) (list []string) {
	for i := range n {
		address := fmt.Sprintf("10.%d.%d.%d", i>>14, i>>7&0x7f, 2*(i&0x7f))
		if i%4 == 3 {
			address = fmt.Sprintf("2001:db8:9::%x", 2*i)
		}
		switch {
		case i%2 == 0:
		case i%4 == 3:
			address = "[" + address + "]:443"
		default:
			address += ":443"
		}
		list = append(list, address)
	}
	return list
}

// BenchmarkInstall is the guard's part of an attach, beside other veths with rules, by number of targets.
func BenchmarkInstall(b *testing.B) {
	for _, size := range []struct {
		others, targets int
		withIPv6        bool
	}{{10, 10, false}, {10, 10, true}, {10, 100, true}, {*ports, 10, false}, {*ports, 100, true}} {
		b.Run(fmt.Sprintf("others_%d/targets_%d/ipv6_%v", size.others, size.targets, size.withIPv6), func(b *testing.B) {
			l, memory := benchLab(b, size.others, size.withIPv6)
			phase := phaseOf(b, "allowlist", targets(size.targets)...)
			s := l.spec(b, "a", phaseOf(b, "public"), phase, phaseOf(b, "no-network"))
			if !size.withIPv6 {
				s.Addresses = s.Addresses[:1]
			}
			var times []time.Duration
			for b.Loop() {
				start := time.Now()
				if err := l.port("a").Install(s, policy.Baseline); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(start))
				if err := l.port("a").Remove(); err != nil {
					b.Fatal(err)
				}
			}
			report(b, times)
			if size.others >= 100 {
				b.ReportMetric(float64(memory)/1024, "KiB-slab/other")
			}
		})
	}
}

// BenchmarkSwitch is the guard's part of a switch, both steps of it.
func BenchmarkSwitch(b *testing.B) {
	for _, size := range []struct{ others, targets int }{{10, 10}, {10, 1000}, {10, 10000}, {*ports, 10}} {
		b.Run(fmt.Sprintf("others_%d/targets_%d", size.others, size.targets), func(b *testing.B) {
			l, _ := benchLab(b, size.others, false)
			phase := phaseOf(b, "allowlist", targets(size.targets)...)
			s := l.spec(b, "a", phase, phaseOf(b, "public"), phase)
			p := l.port("a")
			if err := p.Install(s, policy.Baseline); err != nil {
				b.Fatal(err)
			}
			var times []time.Duration
			next := policy.Run
			for b.Loop() {
				start := time.Now()
				if err := p.Both(next); err != nil {
					b.Fatal(err)
				}
				if err := p.Switch(next); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(start))
				next = policy.Run - next
			}
			report(b, times)
		})
	}
}

// BenchmarkPacket is what a packet costs from the container's socket to the outside, through the bridge and the host's
// routing, with the guard and without.
func BenchmarkPacket(b *testing.B) {
	for name, phase := range map[string]func(b *testing.B) direct.Phase{
		"no_guard":       nil,
		"public":         func(b *testing.B) direct.Phase { return phaseOf(b, "public") },
		"allowlist_10":   func(b *testing.B) direct.Phase { return phaseOf(b, "allowlist", append(targets(10), "192.0.2.1")...) },
		"allowlist_1000": func(b *testing.B) direct.Phase { return phaseOf(b, "allowlist", append(targets(1000), "192.0.2.1")...) },
	} {
		b.Run(name, func(b *testing.B) {
			l := newLab(b, "abs")
			if phase != nil {
				l.install(b, "a", phase(b))
			}
			a := l.containers["a"]
			to := letters4["x"]
			frame := l.fromA(to, ip{from: a.ip4, to: to}.datagram(1000, 443, strings.Repeat("x", 1000)))
			onOneCPU(b, func() error {
				for b.Loop() {
					if err := send(a.fd, frame); err != nil && !errors.Is(err, unix.ENOBUFS) {
						return err
					}
				}
				return nil
			})
		})
	}
}
