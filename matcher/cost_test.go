package matcher

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// TestNoAllocations: no answer allocates, whatever is asked in whatever mode.
func TestNoAllocations(t *testing.T) {
	long := strings.Repeat("a-label.", 30) + "w.test"
	names := []string{"ok.test", "OK.Test.", "a.w.test", long, strings.ToUpper(long), "evil.test", "many.test", "x", "127.0.0.1", "a..b", strings.Repeat("x", 300), "_sip._tcp.ok.test", "é"}
	addrs := []netip.Addr{
		netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::9"), netip.MustParseAddr("64:ff9b:1::a00:1"),
		netip.MustParseAddr("2002:7f00:1::"), netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("::ffff:10.0.0.1"), {},
	}
	for _, text := range []string{
		"public", "no-network",
		"allowlist ok.test *.w.test many.test:1 many.test:2 many.test:3 203.0.113.0/24 203.0.113.9:80 2001:db8::/32 2001:db8::/64#80",
		"denylist ok.test *.w.test many.test:1 many.test:2 203.0.113.0/24 203.0.113.9:80 2001:db8::/32",
	} {
		r := compile(t, read(t, text), Options{ResolveForAddressRules: true, PrivateZones: []string{"zone.test", "w.test"}, Never: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
		for _, name := range names {
			bytes := []byte(name)
			d, q := r.Name(name, 443), r.Query(name)
			for what, f := range map[string]func(){
				"Name": func() { r.Name(name, 443) }, "NameBytes": func() { r.NameBytes(bytes, 443) },
				"Query": func() { r.Query(name) }, "QueryBytes": func() { r.QueryBytes(bytes) },
			} {
				if n := testing.AllocsPerRun(100, f); n != 0 {
					t.Errorf("%s\n%s(%q) allocates %v times", text, what, name, n)
				}
			}
			for _, a := range addrs {
				for what, f := range map[string]func(){
					"Addr": func() { r.Addr(a, 443) }, "Resolved": func() { r.Resolved(d, a, 443) }, "Answer": func() { r.Answer(q, a) },
				} {
					if n := testing.AllocsPerRun(20, f); n != 0 {
						t.Errorf("%s\n%s(%q, %v) allocates %v times", text, what, name, a, n)
					}
				}
			}
		}
	}
}

// TestBytesPerName keeps a name at its own length and 13 bytes more. (For a million names that is less than half of
// what a Go map needs, see BenchmarkNameToGoMap1M, as long as they have 33 bytes or less on average.)
func TestBytesPerName(t *testing.T) {
	for _, length := range []int{8, 15, 30, 60} {
		names := make([]string, 200_000)
		for i := range names {
			names[i] = fmt.Sprintf("%0*d.x", length-2, i)
		}
		r := compile(t, allowNames(names), Options{})
		bytes := float64(len(r.hosts.arena)+len(r.hosts.groups)*int(unsafe.Sizeof(group{}))+8*len(r.hosts.tags)+2*len(r.hosts.lists)) / float64(len(names))
		if bytes > float64(length+13) {
			t.Errorf("names of %d bytes take %.1f bytes each", length, bytes)
		}
	}
}

// TestConcurrentUse is for the race detector: a Ruleset is only read.
func TestConcurrentUse(t *testing.T) {
	r := compile(t, mixedPolicy(2000), Options{ResolveForAddressRules: true, PrivateZones: []string{"test"}})
	names := makeNames(400)
	want := make([]Decision, len(names))
	for i, n := range names {
		want[i] = r.Name(n, 443)
	}
	a := netip.MustParseAddr("64:ff9b::cb00:7109")
	wantAddr := r.Addr(a, 443)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i, n := range names {
				if got := r.Name(n, 443); got != want[i] {
					t.Errorf("%s: %+v; want %+v", n, got, want[i])
				}
				r.Query(strings.ToUpper(n))
				r.Resolved(want[i], a, 443)
				r.Target(want[i].Rule)
				r.Explain(want[i], n, 443)
				if got := r.Addr(a, 443); got != wantAddr {
					t.Errorf("%v: %+v; want %+v", a, got, wantAddr)
				}
			}
			for range r.Prefixes() {
			}
		})
	}
	wg.Wait()
}
