package guard

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice/dockernet/nft"
	"sluice/policy"
)

// benchLab is a host with so many veths that have rules for small policies already, and one that has none.
func benchLab(b *testing.B, others int) *lab {
	l := newLab(b, "abs")
	h := l.host.Handle(b)
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
		s := l.spec(b, "a", phaseXY(b), phaseXZ(b))
		s.Interface, s.Index, s.Hardware = name, link.Attrs().Index, nft.Hardware{2, 0, 0, 0, byte(i >> 8), byte(i)}
		if err := l.guard.Port(name).Install(s, policy.Baseline); err != nil {
			b.Fatal(err)
		}
	}
	return l
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
			l := benchLab(b, size.others)
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
			l := benchLab(b, size.others)
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
