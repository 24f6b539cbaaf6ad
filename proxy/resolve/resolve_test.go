package resolve

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"sluice/proxy/dnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// resolver is one under test, whose clock can be advanced.
type resolver struct {
	*Resolver
	t   testing.TB
	age atomic.Int64
}

func start(t testing.TB, o Options) *resolver {
	t.Helper()
	r := &resolver{Resolver: New(o), t: t}
	r.now = func() time.Time { return time.Now().Add(time.Duration(r.age.Load())) }
	t.Cleanup(r.Close)
	return r
}

func (r *resolver) advance(d time.Duration) { r.age.Add(int64(d)) }

// lookup returns the addresses in one line, or the error.
func (r *resolver) lookup(name string) string {
	r.t.Helper()
	a, err := r.Lookup(r.t.Context(), name)
	if err != nil {
		return err.Error()
	}
	return line(a)
}

func line(a Answer) string {
	var list []string
	for _, addr := range a.Addrs {
		list = append(list, addr.String())
	}
	for _, name := range a.Chain {
		list = append(list, "via "+name)
	}
	return strings.Join(list, " ")
}

// records answers with those records that have the type asked for, and with aliases.
func records(list ...string) func(dnstest.Query) *dns.Msg {
	return func(q dnstest.Query) *dns.Msg {
		m := q.Records(list...)
		m.Answer = slices.DeleteFunc(m.Answer, func(rr dns.RR) bool {
			return rr.Header().Rrtype != q.Type && rr.Header().Rrtype != dns.TypeCNAME
		})
		return m
	}
}

func upstreams1(s *dnstest.Server) Options { return Options{Upstreams: []netip.AddrPort{s.Addr}} }

func TestLookup(t *testing.T) {
	tests := []struct {
		name    string
		records []string
		want    string
	}{
		{"v4", []string{"ok.test. 60 IN A 192.0.2.1"}, "192.0.2.1"},
		{"v6", []string{"ok.test. 60 IN AAAA 2001:db8::1"}, "2001:db8::1"},
		{"both", []string{"ok.test. 60 IN A 192.0.2.1", "ok.test. 60 IN AAAA 2001:db8::1", "ok.test. 60 IN A 192.0.2.2"}, "2001:db8::1 192.0.2.1 192.0.2.2"},
		{"mapped", []string{"ok.test. 60 IN AAAA ::ffff:192.0.2.7"}, "192.0.2.7"},
		{"chain", []string{"ok.test. 60 IN CNAME A.cdn.test.", "a.CDN.test. 60 IN CNAME b.cdn.test.", "b.cdn.test. 60 IN A 192.0.2.1"}, "192.0.2.1 via a.cdn.test via b.cdn.test"},
		{"chain-out-of-order", []string{"b.cdn.test. 60 IN A 192.0.2.1", "a.cdn.test. 60 IN CNAME b.cdn.test.", "ok.test. 60 IN CNAME a.cdn.test."}, "192.0.2.1 via a.cdn.test via b.cdn.test"},
		{"other-names", []string{"ok.test. 60 IN A 192.0.2.1", "evil.test. 60 IN A 192.0.2.2"}, "192.0.2.1"},
		{"alias-of-others", []string{"evil.test. 60 IN CNAME x.test.", "ok.test. 60 IN A 192.0.2.1"}, "192.0.2.1"},
		{"loop", []string{"ok.test. 60 IN CNAME a.test.", "a.test. 60 IN CNAME ok.test."}, `looking up "ok.test": no such host`},
		{"empty", nil, `looking up "ok.test": no such host`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			up := dnstest.New(t, records(tt.records...))
			r := start(t, upstreams1(up))
			for _, name := range []string{"ok.test", "OK.test."} {
				if got := r.lookup(name); got != tt.want {
					t.Errorf("%s: got %s, want %s", name, got, tt.want)
				}
			}
			if got := up.Count(); got != 2 {
				t.Errorf("the upstream was asked %d times, want one A and one AAAA", got)
			}
			answer, ok := r.Cached("ok.test")
			if ok != !strings.Contains(tt.want, "no such") || ok && line(answer) != tt.want {
				t.Errorf("remembered: %s, %v", line(answer), ok)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	code := func(rcode int) func(dnstest.Query) *dns.Msg {
		return func(q dnstest.Query) *dns.Msg { return q.Code(rcode) }
	}
	tests := []struct {
		name   string
		answer func(dnstest.Query) *dns.Msg
		ask    string
		want   error
	}{
		{"no-such-name", code(dns.RcodeNameError), "ok.test", ErrNotFound},
		{"servfail", code(dns.RcodeServerFailure), "ok.test", ErrServer},
		{"refused", code(dns.RcodeRefused), "ok.test", ErrServer},
		{"formerr", code(dns.RcodeFormatError), "ok.test", ErrServer},
		{"empty-name", nil, "", ErrBadName},
		{"empty-label", nil, "a..test", ErrBadName},
		{"long-label", nil, strings.Repeat("a", 64) + ".test", ErrBadName},
		{"long-name", nil, strings.Repeat("a.", 127) + "test", ErrBadName},
		{"blank", nil, "a b.test", ErrBadName},
		{"non-ascii", nil, "ä.test", ErrBadName},
		{"address", nil, "192.0.2.1", ErrBadName},
		{"address-v6", nil, "2001:db8::1", ErrBadName},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			up := dnstest.New(t, tt.answer)
			r := start(t, upstreams1(up))
			if _, err := r.Lookup(t.Context(), tt.ask); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if tt.want == ErrBadName && up.Count() > 0 {
				t.Error("the upstream was asked")
			}
		})
	}
	t.Run("no-upstream", func(t *testing.T) {
		r := start(t, Options{})
		if _, err := r.Lookup(t.Context(), "ok.test"); !errors.Is(err, ErrNoUpstream) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("closed-upstream", func(t *testing.T) {
		r := start(t, Options{Upstreams: []netip.AddrPort{dnstest.Closed(t)}})
		if _, err := r.Lookup(t.Context(), "ok.test"); !errors.Is(err, ErrServer) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		up := dnstest.New(t, func(dnstest.Query) *dns.Msg { return nil })
		r := start(t, upstreams1(up))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			up.Wait(t, 2)
			cancel()
		}()
		if _, err := r.Lookup(ctx, "ok.test"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		up := dnstest.New(t, func(dnstest.Query) *dns.Msg { return nil })
		r := start(t, upstreams1(up))
		go func() {
			up.Wait(t, 2)
			r.Close()
		}()
		if _, err := r.Lookup(t.Context(), "ok.test"); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
		if _, err := r.Lookup(t.Context(), "ok.test"); !errors.Is(err, ErrClosed) {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestTimeout(t *testing.T) {
	r := newResolver(Options{Upstreams: []netip.AddrPort{dnstest.Silent(t)}}, 10*time.Millisecond)
	defer r.Close()
	if _, err := r.Lookup(t.Context(), "ok.test"); !errors.Is(err, ErrTimeout) {
		t.Errorf("got %v", err)
	}
}

// TestSecondFamily: a family that fails or is late does not spoil the other. [L-14]
func TestSecondFamily(t *testing.T) {
	release := make(chan struct{})
	tests := []struct {
		name string
		aaaa func(dnstest.Query) *dns.Msg
	}{
		{"servfail", func(q dnstest.Query) *dns.Msg { return q.Code(dns.RcodeServerFailure) }},
		{"no-such-name", func(q dnstest.Query) *dns.Msg { return q.Code(dns.RcodeNameError) }},
		{"late", func(q dnstest.Query) *dns.Msg {
			<-release
			return q.Records(q.Name + " 60 IN AAAA 2001:db8::1")
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
				if q.Type == dns.TypeAAAA {
					return tt.aaaa(q)
				}
				return q.Records(q.Name + " 60 IN A 192.0.2.1")
			})
			r := start(t, upstreams1(up))
			r.delay = time.Millisecond
			if got := r.lookup("ok.test"); got != "192.0.2.1" {
				t.Errorf("got %s", got)
			}
			_, remembered := r.Cached("ok.test")
			if remembered != (tt.name != "late") {
				t.Errorf("remembered: %v", remembered)
			}
			if tt.name != "late" {
				return
			}
			if got := r.lookup("ok.test"); got != "192.0.2.1" || up.Count() != 2 {
				t.Errorf("meanwhile: %s, asked %d times", got, up.Count())
			}
			close(release)
			for range 10_000 {
				var a Answer
				if a, remembered = r.Cached("ok.test"); remembered {
					if line(a) != "2001:db8::1 192.0.2.1" {
						t.Errorf("later: %s", line(a))
					}
					return
				}
				time.Sleep(time.Millisecond)
			}
			t.Error("the whole answer is never remembered")
		})
	}
}

func TestTTLs(t *testing.T) {
	soa := func(rcode int, ttl int) func(dnstest.Query) *dns.Msg {
		return func(q dnstest.Query) *dns.Msg {
			m := q.Code(rcode)
			rr, err := dns.NewRR(fmt.Sprintf("test. 3600 IN SOA ns.test. root.test. 1 2 3 4 %d", ttl))
			if err != nil {
				panic(err) // a mistake in the test
			}
			m.Ns = append(m.Ns, rr)
			return m
		}
	}
	tests := []struct {
		name   string
		answer func(dnstest.Query) *dns.Msg
		kept   time.Duration // 0: not at all
	}{
		{"usual", records("ok.test. 60 IN A 192.0.2.1"), time.Minute},
		{"shortest-of-both", records("ok.test. 60 IN A 192.0.2.1", "ok.test. 20 IN AAAA 2001:db8::1"), 20 * time.Second},
		{"shortest-of-the-chain", records("ok.test. 3600 IN CNAME a.test.", "a.test. 9 IN A 192.0.2.1"), 9 * time.Second},
		{"zero", records("ok.test. 0 IN A 192.0.2.1"), 0},
		{"a-week", records("ok.test. 604800 IN A 192.0.2.1"), ttlMax},
		{"top-bit", records("ok.test. 4000000000 IN A 192.0.2.1"), 0},
		{"no-such-name", soa(dns.RcodeNameError, 5), 5 * time.Second},
		{"no-such-name-for-long", soa(dns.RcodeNameError, 3600), negativeMax},
		{"no-address", soa(dns.RcodeSuccess, 5), 5 * time.Second},
		{"no-such-name-without-soa", func(q dnstest.Query) *dns.Msg { return q.Code(dns.RcodeNameError) }, negativeTTL},
		{"failure", func(q dnstest.Query) *dns.Msg { return q.Code(dns.RcodeServerFailure) }, failureTTL},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			up := dnstest.New(t, tt.answer)
			r := start(t, upstreams1(up))
			first := r.lookup("ok.test")
			if tt.kept > 0 {
				// The clock goes on by itself, a little.
				r.advance(tt.kept - tt.kept/2)
				if got := r.lookup("ok.test"); got != first || up.Count() != 2 {
					t.Errorf("before the end: %s, asked %d times", got, up.Count())
				}
				r.advance(tt.kept / 2)
			}
			if got := r.lookup("ok.test"); got != first || up.Count() != 4 {
				t.Errorf("at the end: %s, asked %d times", got, up.Count())
			}
		})
	}
}

// TestSingleFlight: those who ask for a name at the same time share the questions, and who leaves does not end them.
func TestSingleFlight(t *testing.T) {
	release := make(chan struct{})
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		<-release
		return records("ok.test. 0 IN A 192.0.2.1")(q)
	})
	r := start(t, upstreams1(up))
	ctx, cancel := context.WithCancel(t.Context())
	var first, others sync.WaitGroup
	first.Go(func() {
		if _, err := r.Lookup(ctx, "ok.test"); !errors.Is(err, context.Canceled) {
			t.Errorf("the one who leaves: %v", err)
		}
	})
	up.Wait(t, 2)
	const n = 50
	var waiting atomic.Int32
	for range n {
		others.Go(func() {
			waiting.Add(1)
			if got := r.lookup("ok.test"); got != "192.0.2.1" {
				t.Errorf("got %s", got)
			}
		})
	}
	for waiting.Load() < n {
		time.Sleep(time.Millisecond)
	}
	cancel()
	first.Wait()
	close(release)
	others.Wait()
	// A few may have come when the first flight had landed: with a TTL of 0, they ask again.
	if got := up.Count(); got > 4 {
		t.Errorf("the upstream was asked %d times", got)
	}
}

// Name servers are not asked, or not again, for look-ups that nobody waits for any more; who comes later asks anew.
func TestNobodyWaits(t *testing.T) {
	for name, c := range map[string]struct{ before, others bool }{"before": {true, false}, "meanwhile": {false, false}, "others-wait": {false, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := dnstest.New(t, func(dnstest.Query) *dns.Msg { return nil })
			r := newResolver(Options{Upstreams: []netip.AddrPort{up.Addr}}, 500*time.Millisecond)
			defer r.Close()
			ctx, cancel := context.WithCancel(t.Context())
			var waiting sync.WaitGroup
			want := 2
			if c.before {
				cancel()
				want = 0
			}
			waiting.Go(func() {
				if _, err := r.Lookup(ctx, "ok.test"); !errors.Is(err, context.Canceled) {
					t.Errorf("the one who leaves: %v", err)
				}
			})
			if c.others {
				want = 8
				waiting.Go(func() {
					if _, err := r.Lookup(t.Context(), "ok.test"); !errors.Is(err, ErrTimeout) {
						t.Errorf("the one who stays: %v", err)
					}
				})
				for joined := 0; joined < 2; time.Sleep(time.Millisecond) {
					if r.mu.Lock(); r.flights["ok.test"] != nil {
						joined = len(r.flights["ok.test"].asked)
					}
					r.mu.Unlock()
				}
			}
			up.Wait(t, min(want, 2))
			cancel()
			r.Settle()
			waiting.Wait()
			for r.client.Outstanding() > 0 {
				time.Sleep(time.Millisecond)
			}
			// Who leaves may do so late, but not after the last time.
			if n := up.Count(); n != want && (want != 2 || n >= 8) {
				t.Errorf("the name server was asked %d times, want %d", n, want)
			}
			if c.others {
				return
			}
			later, leave := context.WithCancel(t.Context())
			waiting.Go(func() { _, _ = r.Lookup(later, "ok.test") })
			up.Wait(t, want+2)
			leave()
			waiting.Wait()
		})
	}
}

func TestFlush(t *testing.T) {
	release := make(chan struct{})
	var slow atomic.Bool
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		if slow.Load() {
			<-release
		}
		return records("ok.test. 60 IN A 192.0.2.1")(q)
	})
	r := start(t, upstreams1(up))
	r.lookup("ok.test")
	r.Flush()
	if _, ok := r.Cached("ok.test"); ok {
		t.Error("it is still remembered")
	}
	slow.Store(true)
	got := make(chan string)
	go func() { got <- r.lookup("ok.test") }()
	up.Wait(t, 4)
	r.Flush()
	close(release)
	if got := <-got; got != "192.0.2.1" {
		t.Errorf("under way: %s", got)
	}
	if _, ok := r.Cached("ok.test"); ok {
		t.Error("what was under way is remembered")
	}
}

func TestHosts(t *testing.T) {
	up := dnstest.New(t, records("ok.test. 60 IN A 192.0.2.1"))
	o := upstreams1(up)
	o.Hosts = func(name string) []netip.Addr {
		if name != "db" {
			return nil
		}
		return []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("::ffff:172.18.0.3")}
	}
	r := start(t, o)
	if got := r.lookup("DB."); got != "fd00::2 172.18.0.2 172.18.0.3" || up.Count() != 0 {
		t.Errorf("got %s, asked %d times", got, up.Count())
	}
	if got := r.lookup("ok.test"); got != "192.0.2.1" {
		t.Errorf("got %s", got)
	}
}

func TestBounded(t *testing.T) {
	r := start(t, Options{})
	now := r.now()
	r.mu.Lock()
	for i := range 2 * maxEntries {
		expires := now.Add(time.Minute)
		if i%2 == 0 {
			expires = now
		}
		r.rememberLocked(fmt.Sprintf("n%d.test", i), entry{answer: Answer{Expires: expires}}, now)
	}
	kept := len(r.entries)
	_, last := r.entries[fmt.Sprintf("n%d.test", 2*maxEntries-1)]
	r.mu.Unlock()
	if kept != maxEntries || !last {
		t.Errorf("%d names are remembered, the last one: %v", kept, last)
	}
}

func TestCachedDoesNotAllocate(t *testing.T) {
	r := start(t, upstreams1(dnstest.New(t, records("ok.test. 60 IN A 192.0.2.1"))))
	r.lookup("ok.test")
	got := testing.AllocsPerRun(100, func() {
		if a, ok := r.Cached("ok.test"); !ok || len(a.Addrs) != 1 {
			t.Fatal("not remembered")
		}
	})
	if got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkCached(b *testing.B) {
	r := start(b, upstreams1(dnstest.New(b, records("ok.test. 60 IN A 192.0.2.1"))))
	r.Resolver.now = time.Now
	if _, err := r.Lookup(b.Context(), "ok.test"); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := r.Cached("ok.test"); !ok {
			b.Fatal("not remembered")
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, list := range [][]string{
		{"ok.test. 60 IN A 192.0.2.1"},
		{"ok.test. 60 IN CNAME a.test.", "a.test. 60 IN A 192.0.2.1", "a.test. 60 IN CNAME ok.test."},
	} {
		m := new(dns.Msg).SetQuestion("ok.test.", dns.TypeA)
		packed, err := records(list...)(dnstest.Query{Msg: m, Name: "ok.test.", Type: dns.TypeA}).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed[:12], packed[25:])
	}
	f.Fuzz(func(t *testing.T, header, rest []byte) {
		if len(header) < 12 {
			return
		}
		fl, err := newFlight("ok.test")
		if err != nil {
			t.Fatal(err)
		}
		h := &fl.halves[1]
		msg := append(slices.Clone(header[:12]), h.query.Msg[12:h.query.Question.End]...)
		h.read(append(msg, rest...))
		if h.err == nil && (h.ttl < 0 || h.ttl > ttlMax) {
			t.Errorf("TTL %v", h.ttl)
		}
		for _, a := range h.addrs {
			if !a.Is4() {
				t.Errorf("an A record gives %v", a)
			}
		}
	})
}
