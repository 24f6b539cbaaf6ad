//go:build !race

package dns

// Without the race detector, which lets pools forget on purpose.

import (
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"sluice/matcher"
)

// BenchmarkUDP measures a query and its answer over the loopback device, client and upstream included.
func BenchmarkUDP(b *testing.B) {
	for _, shape := range []string{"forwarded", "cached", "refused"} {
		b.Run(shape, func(b *testing.B) {
			b.ReportAllocs()
			ask := prepare(b, shape)
			for b.Loop() {
				ask()
			}
		})
	}
}

// TestAllocations: a query costs no memory, whichever way it goes.
func TestAllocations(t *testing.T) {
	for _, shape := range []string{"forwarded", "cached", "refused"} {
		t.Run(shape, func(t *testing.T) {
			ask := prepare(t, shape)
			const n = 2000
			for range 4 * countedNames { // fills pools, cache and the count of names
				ask()
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range n {
				ask()
			}
			runtime.ReadMemStats(&after)
			// A collection empties the pools, and the run-time system allocates a little for itself.
			if got := float64(after.Mallocs-before.Mallocs) / n; got > 0.2 {
				t.Errorf("%.2f allocations a query", got)
			}
		})
	}
}

// prepare returns a function that asks one question, without allocating itself: of a name that was not asked for
// before, of one that was, or of one that is refused.
func prepare(t testing.TB, shape string) (ask func()) {
	record := []byte("\xc0\x0c\x00\x01\x00\x01\x00\x00\x01\x2c\x00\x04\xc0\x00\x02\x01")
	reply := make([]byte, 0, 512)
	up := rawUpstream(t, func(query []byte) []byte {
		reply = append(append(reply[:0], query...), record...)
		reply[2], reply[3], reply[7] = 0x81, 0x80, 1
		return reply
	})
	rs, err := matcher.Compile(allow("*.ok.test"), matcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var allowed atomic.Int64
	addr := serve(t, New(Options{
		Rules:     func() Rules { return Rules{Ruleset: rs, Generation: 1} },
		Upstreams: []netip.AddrPort{up},
		Observe: func(e *Event) {
			if e.Decision.Verdict == matcher.Allow {
				allowed.Add(1)
			}
		},
	}))
	conn, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Cleanup(func() {
		if (allowed.Load() == 0) != (shape == "refused") {
			t.Errorf("%s: %d queries were allowed", shape, allowed.Load())
		}
	})
	name := "n000000.ok.test."
	if shape == "refused" {
		name = "n000000.no.test."
	}
	packed, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	number := packed[14:20]
	answer := make([]byte, 512)
	return func() {
		if shape == "forwarded" {
			for i := len(number) - 1; ; i-- {
				if number[i]++; number[i] <= '9' {
					break
				}
				number[i] = '0'
			}
		}
		if _, err := conn.Write(packed); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(answer); err != nil || n < len(packed) {
			t.Fatalf("read %d bytes, %v", n, err)
		}
	}
}
