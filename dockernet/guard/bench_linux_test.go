package guard

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice/dockernet/nft"
	"sluice/policy"
)

// benchLab is a host with so many veths that have rules for small policies already, and a container that has none. If
// they are many, it reports how much memory of the kernel each takes.
func benchLab(b *testing.B, others int, withIPv6 bool) *lab {
	l := newLab(b, "abs")
	h := l.host.Handle(b)
	phase := phaseOf(b, "allowlist", "ok.test", "192.0.2.0/24", "192.0.2.1:443", "198.51.100.7:5432")
	var specs []*Spec
	for i := range others {
		name := fmt.Sprintf("d%d", i)
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("e%d", i)}); err != nil {
			b.Fatal(err)
		}
		link, err := h.LinkByName(name)
		if err != nil {
			b.Fatal(err)
		}
		s := l.spec(b, "a", phaseOf(b, "public"), phase)
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
	if others >= 1000 {
		b.ReportMetric(float64(slabBytes(b)-before)/1024/float64(others), "KiB-slab/port")
	}
	return l
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
	}{{10, 10, false}, {10, 10, true}, {10, 100, true}, {2000, 10, false}, {2000, 100, true}} {
		b.Run(fmt.Sprintf("others_%d/targets_%d/ipv6_%v", size.others, size.targets, size.withIPv6), func(b *testing.B) {
			l := benchLab(b, size.others, size.withIPv6)
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
		})
	}
}

// BenchmarkSwitch is the guard's part of a switch, both steps of it.
func BenchmarkSwitch(b *testing.B) {
	for _, size := range []struct{ others, targets int }{{10, 10}, {10, 1000}, {10, 10000}, {2000, 10}} {
		b.Run(fmt.Sprintf("others_%d/targets_%d", size.others, size.targets), func(b *testing.B) {
			l := benchLab(b, size.others, false)
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
