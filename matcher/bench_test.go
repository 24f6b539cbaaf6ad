package matcher

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/policy"
)

// makeNames returns n different names of the shapes seen in host lists, sorted, 15 bytes on average, always the same ones.
func makeNames(n int) []string {
	r := rand.New(rand.NewPCG(1, 2))
	tops := []string{"com", "com", "com", "net", "org", "io", "de", "co.uk", "example", "test"}
	seen := make(map[string]bool, n)
	names := make([]string, 0, n)
	for len(names) < n {
		var b strings.Builder
		for range 1 + r.IntN(2) {
			for range 4 + r.IntN(9) {
				b.WriteByte("abcdefghijklmnopqrstuvwxyz0123456789"[r.IntN(36)])
			}
			b.WriteByte('.')
		}
		b.WriteString(tops[r.IntN(len(tops))])
		if s := b.String(); !seen[s] {
			seen[s] = true
			names = append(names, s)
		}
	}
	slices.Sort(names)
	return names
}

func allowNames(names []string) policy.Policy {
	p := policy.Policy{Mode: policy.Allowlist, Targets: make([]policy.Target, len(names))}
	for i, n := range names {
		p.Targets[i] = policy.Target{Host: n, Kind: policy.Hostname}
	}
	return p
}

// shuffled returns copies of the names in another order, laid out one after the other as requests would bring them.
func shuffled(names []string, prefix string) []string {
	out := make([]string, len(names))
	for i, j := range rand.New(rand.NewPCG(3, 4)).Perm(len(names)) {
		out[i] = prefix + strings.Clone(names[j])
	}
	return out
}

func heapBytes() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

const million = 1_000_000

// millionNames holds what the benchmarks of a million names compare.
type millionNames struct {
	names        []string
	ruleset      *Ruleset
	goMap        map[string]RuleID
	rulesetBytes float64 // a name
	goMapBytes   float64
}

var loadMillion = sync.OnceValue(func() *millionNames {
	m := &millionNames{names: makeNames(million)}
	p := allowNames(m.names)
	before := heapBytes()
	r, err := Compile(p, Options{})
	if err != nil {
		panic(err)
	}
	m.ruleset = r
	m.rulesetBytes = (heapBytes() - before) / million
	before = heapBytes()
	m.goMap = make(map[string]RuleID, million)
	for i, n := range m.names {
		m.goMap[strings.Clone(n)] = RuleID(i)
	}
	m.goMapBytes = (heapBytes() - before) / million
	runtime.KeepAlive(p)
	return m
})

// questions are asked of both: names that are there and names that are not.
var questions = []struct {
	name, prefix string
	there        bool
}{{"hit", "", true}, {"miss", "q-", false}}

func BenchmarkName1M(b *testing.B) {
	m := loadMillion()
	for _, q := range questions {
		asked := shuffled(m.names, q.prefix)
		b.Run(q.name, func(b *testing.B) {
			b.ReportAllocs()
			i, wrong := 0, 0
			for b.Loop() {
				if (m.ruleset.Name(asked[i], 443).Verdict == Allow) != q.there {
					wrong++
				}
				if i++; i == len(asked) {
					i = 0
				}
			}
			if wrong > 0 {
				b.Errorf("%d wrong answers", wrong)
			}
			b.ReportMetric(m.rulesetBytes, "B/name")
		})
	}
}

func BenchmarkGoMap1M(b *testing.B) {
	m := loadMillion()
	for _, q := range questions {
		asked := shuffled(m.names, q.prefix)
		b.Run(q.name, func(b *testing.B) {
			b.ReportAllocs()
			i, wrong := 0, 0
			for b.Loop() {
				if _, ok := m.goMap[asked[i]]; ok != q.there {
					wrong++
				}
				if i++; i == len(asked) {
					i = 0
				}
			}
			if wrong > 0 {
				b.Errorf("%d wrong answers", wrong)
			}
			b.ReportMetric(m.goMapBytes, "B/name")
		})
	}
}

// BenchmarkNameToGoMap1M asks both by turns, a thousand names at a time, and reports the median of the ratios, which
// other work on the machine disturbs little. One op is one name asked of both.
func BenchmarkNameToGoMap1M(b *testing.B) {
	m := loadMillion()
	const turn = 1000
	for _, q := range questions {
		asked := shuffled(m.names, q.prefix)
		b.Run(q.name, func(b *testing.B) {
			var ours, theirs, ratios []float64
			wrong := 0
			for at := 0; at < b.N; at += turn {
				// Both go through all names, but are half of them apart.
				i, j := at%len(asked), (at+len(asked)/2)%len(asked)
				t0 := time.Now()
				for _, n := range asked[i:][:turn] {
					if (m.ruleset.Name(n, 443).Verdict == Allow) != q.there {
						wrong++
					}
				}
				t1 := time.Now()
				for _, n := range asked[j:][:turn] {
					if _, ok := m.goMap[n]; ok != q.there {
						wrong++
					}
				}
				t2 := time.Now()
				ours = append(ours, float64(t1.Sub(t0))/turn)
				theirs = append(theirs, float64(t2.Sub(t1))/turn)
				ratios = append(ratios, ours[len(ours)-1]/theirs[len(theirs)-1])
			}
			if wrong > 0 {
				b.Errorf("%d wrong answers", wrong)
			}
			b.ReportMetric(median(ours), "ns/name")
			b.ReportMetric(median(theirs), "ns/map")
			b.ReportMetric(median(ratios), "of-map-time")
			b.ReportMetric(m.rulesetBytes/m.goMapBytes, "of-map-bytes")
		})
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// mixedPolicy has hosts, hosts with ports, wildcards, addresses and networks of both families.
func mixedPolicy(n int) policy.Policy {
	names := makeNames(n)
	p := policy.Policy{Mode: policy.Allowlist, Targets: make([]policy.Target, n)}
	r := rand.New(rand.NewPCG(5, 6))
	address := func(bits int) policy.Target {
		if r.IntN(2) == 0 {
			a := netip.AddrFrom4([4]byte{byte(1 + r.IntN(200)), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
			return prefixTarget(netip.PrefixFrom(a, bits).Masked())
		}
		b := [16]byte{0x20, 1, 0x0d, 0xb8}
		for i := 4; i < 16; i++ {
			b[i] = byte(r.Uint32())
		}
		return prefixTarget(netip.PrefixFrom(netip.AddrFrom16(b), 4*bits).Masked())
	}
	for i, name := range names {
		t := policy.Target{Host: name, Kind: policy.Hostname}
		switch i % 8 {
		case 0:
			t = policy.Target{Host: "*." + name, Kind: policy.Wildcard}
		case 1, 2:
			t.Port = 443
		case 3:
			t = address(32)
		case 4:
			t = address(16 + r.IntN(13))
		}
		p.Targets[i] = t
	}
	slices.SortFunc(p.Targets, policy.Target.Compare)
	return p
}

func prefixTarget(p netip.Prefix) policy.Target {
	t := policy.Target{Host: p.String(), Kind: policy.IPv4CIDR, Prefix: p}
	if p.Addr().Is6() {
		t.Kind = policy.IPv6CIDR
	}
	if p.IsSingleIP() {
		t.Host = p.Addr().String()
		t.Kind -= 2
	}
	return t
}

// BenchmarkAnswers asks a policy of ten thousand targets of all kinds.
func BenchmarkAnswers(b *testing.B) {
	p := mixedPolicy(10_000)
	r := compile(b, p, Options{})
	some := map[policy.Kind]string{}
	for _, t := range p.Targets {
		some[t.Kind] = strings.TrimPrefix(t.Host, "*.")
	}
	host, under := some[policy.Hostname], "a.b."+some[policy.Wildcard]
	nat64, loopback := netip.MustParseAddr("64:ff9b::cb00:7109"), netip.MustParseAddr("127.0.0.1")
	v4, v6 := netip.MustParseAddr(some[policy.IPv4Address]), netip.MustParseAddr(some[policy.IPv6Address])
	for _, c := range []struct {
		name string
		ask  func() Decision
	}{
		{"host", func() Decision { return r.Name(host, 443) }},
		{"host-in-upper-case", func() Decision { return r.Name("WWW.EXAMPLE.TEST", 443) }},
		{"under-wildcard", func() Decision { return r.Name(under, 443) }},
		{"unlisted-name", func() Decision { return r.Name("www.example.test", 443) }},
		{"query-service", func() Decision { return r.Query("_https._tcp.www.example.test") }},
		{"ipv4", func() Decision { return r.Addr(v4, 443) }},
		{"ipv6", func() Decision { return r.Addr(v6, 443) }},
		{"nat64", func() Decision { return r.Addr(nat64, 443) }},
		{"floor", func() Decision { return r.Addr(loopback, 443) }},
		{"host-at-address", func() Decision { return r.Resolved(r.Name(host, 443), v4, 443) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.ask()
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		addresses := policy.Policy{Mode: policy.Denylist}
		for _, t := range mixedPolicy(8 * n / 2).Targets {
			if !t.Kind.IsName() && len(addresses.Targets) < n {
				addresses.Targets = append(addresses.Targets, t)
			}
		}
		for _, c := range []struct {
			name string
			p    policy.Policy
		}{{"names", allowNames(makeNames(n))}, {"mixed", mixedPolicy(n)}, {"addresses", addresses}} {
			b.Run(fmt.Sprintf("%s-%d", c.name, n), func(b *testing.B) {
				best := time.Hour
				for b.Loop() {
					begin := time.Now()
					compile(b, c.p, Options{})
					best = min(best, time.Since(begin))
				}
				b.ReportMetric(float64(best)/1e6, "best-ms")
			})
		}
	}
}

func compile(tb testing.TB, p policy.Policy, o Options) *Ruleset {
	tb.Helper()
	r, err := Compile(p, o)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}
