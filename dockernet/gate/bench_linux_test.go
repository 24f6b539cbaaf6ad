package gate

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/dockernet/netns/netnstest"
	"sluice/policy"
)

// report gives the median and the 99th percentile.
func report(b *testing.B, name string, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, name+"-p50-ms")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, name+"-p99-ms")
}

func BenchmarkInstall(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			netnstest.Require(b)
			s := example(true, manyPhases(b, n))
			var times []time.Duration
			for b.Loop() {
				b.StopTimer()
				ns := netnstest.New(b)
				g := newGate(b, ns)
				b.StartTimer()
				start := time.Now()
				if err := g.Install(s, policy.Baseline); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(start))
			}
			report(b, "install", times)
		})
	}
}

func BenchmarkSwitch(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			g := newGate(b, netnstest.New(b))
			if err := g.Install(example(true, manyPhases(b, n)), policy.Baseline); err != nil {
				b.Fatal(err)
			}
			var both, one []time.Duration
			for i := 0; b.Loop(); i++ {
				next := policy.Phase((i + 1) % policy.PhaseCount)
				start := time.Now()
				if err := g.Both(next); err != nil {
					b.Fatal(err)
				}
				middle := time.Now()
				if err := g.Switch(next); err != nil {
					b.Fatal(err)
				}
				both, one = append(both, middle.Sub(start)), append(one, time.Since(middle))
			}
			report(b, "both", both)
			report(b, "switch", one)
		})
	}
}

func BenchmarkQuarantine(b *testing.B) {
	g := newGate(b, netnstest.New(b))
	if err := g.Install(example(true, manyPhases(b, 100)), policy.Baseline); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := g.Quarantine(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMemory is what the rules for a small policy take of the kernel's memory, in each of many namespaces.
func BenchmarkMemory(b *testing.B) {
	for _, family := range []string{"ipv4", "ipv6"} {
		b.Run(family, func(b *testing.B) {
			const namespaces = 100
			phases := threeOf(b, phaseOf(b, "public"), phaseOf(b, "allowlist", "ok.test", "192.0.2.0/24", "192.0.2.1:443", "198.51.100.7:5432"))
			s := example(family == "ipv6", phases)
			for b.Loop() {
				var gates []*Gate
				for range namespaces {
					gates = append(gates, newGate(b, netnstest.New(b)))
				}
				before := slabBytes(b)
				for _, g := range gates {
					if err := g.Install(s, policy.Baseline); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(slabBytes(b)-before)/1024/namespaces, "KiB-slab/gate")
			}
		})
	}
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

// What the rules cost a packet of the direct plane: a datagram of 64 bytes, from the system call to the other end of
// the link, where it is dropped.
func BenchmarkSend(b *testing.B) {
	targets := []string{"192.0.2.5", "192.0.2.64/26", "192.0.2.7:443", "192.0.2.128/25:8080", "2001:db8:2::5", "2001:db8:2:1::/64", "ok.test"}
	for _, tt := range []struct {
		name   string
		phases []direct.Phase
	}{
		{"no_rules", nil},
		{"public", []direct.Phase{phaseOf(b, "public")}},
		{"allowlist", []direct.Phase{phaseOf(b, "allowlist", targets...)}},
		{"denylist", []direct.Phase{phaseOf(b, "denylist", "203.0.113.0/24", "203.0.113.1:443", "2001:db8:3::/64")}},
	} {
		for _, to := range []string{"192.0.2.5", "2001:db8:2::5"} {
			b.Run(fmt.Sprintf("%s_ipv%s", tt.name, version(kindOf(netip.MustParseAddr(to)))), func(b *testing.B) {
				l := newLab(b, false)
				if tt.phases != nil {
					if err := l.gate.Install(l.spec(b, l.listen(b), tt.phases...), policy.Baseline); err != nil {
						b.Fatal(err)
					}
				}
				l.workload.Run(b, func() error {
					family, address := socketAddress(netip.AddrPortFrom(netip.MustParseAddr(to), 9))
					fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					if err := unix.Connect(fd, address); err != nil {
						return err
					}
					payload := make([]byte, 64)
					before := threadTime()
					for b.Loop() {
						if _, err := unix.Write(fd, payload); err != nil {
							return err
						}
					}
					b.ReportMetric(float64(threadTime()-before)/float64(b.N), "cpu-ns/op")
					return nil
				})
			})
		}
	}
}

// threadTime is the processor time of the calling thread, in nanoseconds.
func threadTime() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		panic(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
