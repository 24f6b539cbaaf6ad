package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/dockernet/netns"
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

// slabBytes is what the kernel's allocators have given away, to all, once that stays nearly the same: what was freed goes
// back after a while.
func slabBytes(b *testing.B) int {
	last := 0
	for range 50 {
		text, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			b.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "SUnreclaim:")
		var now int
		if _, err := fmt.Sscanf(rest, "%d kB", &now); err != nil {
			b.Fatalf("SUnreclaim in /proc/meminfo: %v", err)
		}
		if last-64 < now && now < last+64 {
			return now << 10
		}
		last = now
		time.Sleep(200 * time.Millisecond)
	}
	return last << 10
}

// BenchmarkSend is what the rules cost a packet of the direct plane: a datagram of 64 bytes, from the system call to the
// other end of the link, where it is dropped. The ways to send take turns, and the medians of the rounds count.
func BenchmarkSend(b *testing.B) {
	targets := []string{"192.0.2.5", "192.0.2.64/26", "192.0.2.7:443", "192.0.2.128/25:8080", "2001:db8:2::5", "2001:db8:2:1::/64", "ok.test"}
	for _, to := range addrs("192.0.2.5", "2001:db8:2::5") {
		b.Run("ipv"+version(kindOf(to)), func(b *testing.B) {
			phases := map[string]direct.Phase{
				"public": phaseOf(b, "public"), "allowlist": phaseOf(b, "allowlist", targets...),
				"denylist": phaseOf(b, "denylist", "203.0.113.0/24", "203.0.113.1:443", "2001:db8:3::/64"),
			}
			names := []string{"none", "public", "allowlist", "denylist"}
			sockets := make(map[string]int)
			for _, name := range names {
				l := newLab(b, false)
				l.neighbours(b)
				if phase, ok := phases[name]; ok {
					if err := l.gate.Install(l.spec(b, l.listen(b), phase), policy.Baseline); err != nil {
						b.Fatal(err)
					}
				}
				l.workload.Run(b, func() error {
					family, address := socketAddress(netip.AddrPortFrom(to, 9))
					fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					b.Cleanup(func() { unix.Close(fd) })
					sockets[name] = fd
					return unix.Connect(fd, address)
				})
				l.answer(b, sockets[name], to)
			}
			const packets = 500
			payload := make([]byte, 64)
			costs := make(map[string][]float64)
			onOneCPU(b, func() error {
				for b.Loop() {
					for _, name := range names {
						before := threadTime()
						for range packets {
							if _, err := unix.Write(sockets[name], payload); err != nil {
								return err
							}
						}
						costs[name] = append(costs[name], float64(threadTime()-before)/packets)
					}
				}
				return nil
			})
			median := func(name string) float64 {
				slices.Sort(costs[name])
				return costs[name][len(costs[name])/2]
			}
			b.ReportMetric(median("none"), "none-ns")
			for _, name := range names[1:] {
				b.ReportMetric(median(name)-median("none"), name+"-more-ns")
			}
		})
	}
}

// answer makes a datagram's socket part of a connection that both ends have used.
func (l *lab) answer(b *testing.B, fd int, from netip.Addr) {
	b.Helper()
	name, err := unix.Getsockname(fd)
	if err != nil {
		b.Fatal(err)
	}
	var packet []byte
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		packet = ip4{from: from, to: own4, protocol: unix.IPPROTO_UDP}.packet(udp(9, uint16(a.Port), "answer"))
	case *unix.SockaddrInet6:
		packet = ip6{from: from, to: own6, next: unix.IPPROTO_UDP, hops: 64}.packet(udp6(from, own6, 9, uint16(a.Port), "answer"))
	}
	if _, err := unix.Write(fd, []byte("question")); err != nil {
		b.Fatal(err)
	}
	l.neighboursOf(b, map[bool]netip.Addr{true: own4, false: own6}[from.Is4()])
	l.outside.Run(b, func() error { return sendRaw(packet, nil) })
	buffer := make([]byte, 64)
	if n, err := unix.Read(fd, buffer); err != nil || string(buffer[:n]) != "answer" {
		b.Fatalf("got %q, %v", buffer[:n], err)
	}
}

// threadTime is the processor time of the calling thread, in nanoseconds.
func threadTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// onOneCPU runs f on a thread that stays on one processor, so that all that its packets cause is done by it.
func onOneCPU(t testing.TB, f func() error) {
	t.Helper()
	err := netns.OnOwnThread(func() error {
		var one unix.CPUSet
		one.Set(0)
		return errors.Join(unix.SchedSetaffinity(0, &one), f())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// BenchmarkOwn tells the rules of a connection of the sidecar's, and takes it back: what each costs beyond connect.
func BenchmarkOwn(b *testing.B) {
	l := newLab(b, false)
	s := l.spec(b, l.listen(b), phaseOf(b, "allowlist", "ok.test", "192.0.2.0/24"))
	s.Shared = &Shared{Mark: secret, Group: secretGroup}
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		b.Fatal(err)
	}
	own := NewOwn(l.workload.Namespace)
	defer own.Close()
	to := netip.AddrPortFrom(bad4, 443)
	for b.Loop() {
		if err := errors.Join(own.Open(to, 40000), own.Opened(to, 40000)); err != nil {
			b.Fatal(err)
		}
	}
}
