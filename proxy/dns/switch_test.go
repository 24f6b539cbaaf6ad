package dns

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/policy"
	"sluice/proxy/dnstest"
)

// TestTTLs: what is kept, and for how long. [L-25]
func TestTTLs(t *testing.T) {
	soa := " IN SOA ns.test. root.test. 1 2 3 4 %d"
	tests := []struct {
		name    string
		answer  func(dnstest.Query) *dns.Msg
		ttl     uint32        // of the answer
		kept    time.Duration // it is there a second before, and gone then; 0 if it is not kept
		rcode   int
		nothing bool // no record in the answer section
	}{
		{"usual", ttls(60), 60, 60 * time.Second, 0, false},
		{"zero", ttls(0), 0, 0, 0, false},
		{"one-week", ttls(7 * 24 * 3600), 3600, time.Hour, 0, false},
		{"top-bit", ttls(1<<31 + 5), 0, 0, 0, false},
		{"two-records", ttls(60, 20), 20, 20 * time.Second, 0, false},
		{"no-such-name", negative(dns.RcodeNameError, "test. 3600"+fmt.Sprintf(soa, 10)), 0, 10 * time.Second, dns.RcodeNameError, true},
		{"no-such-name-for-long", negative(dns.RcodeNameError, "test. 3600"+fmt.Sprintf(soa, 86400)), 0, negativeMax, dns.RcodeNameError, true},
		{"no-such-record", negative(dns.RcodeSuccess, "test. 5"+fmt.Sprintf(soa, 3600)), 0, 5 * time.Second, 0, true},
		{"no-such-name-without-soa", negative(dns.RcodeNameError, ""), 0, 0, dns.RcodeNameError, true},
		{"failure", negative(dns.RcodeServerFailure, "test. 5"+fmt.Sprintf(soa, 3600)), 0, 0, dns.RcodeServerFailure, true},
	}
	for _, p := range []policy.Policy{public, allow("ok.test")} {
		for _, tt := range tests {
			t.Run(p.Mode.String()+"/"+tt.name, func(t *testing.T) {
				up := dnstest.New(t, tt.answer)
				f := newFilter(t, p, Options{}, up.Addr)
				ask := func(wantTTL uint32) {
					t.Helper()
					m := f.ask("ok.test", dns.TypeA)
					if m.Rcode != tt.rcode || (len(m.Answer) == 0) != tt.nothing {
						t.Errorf("got %v", m)
					}
					for _, rr := range m.Answer {
						if rr.Header().Ttl != wantTTL {
							t.Errorf("TTL %d, want %d", rr.Header().Ttl, wantTTL)
						}
					}
				}
				ask(tt.ttl)
				if tt.kept == 0 {
					ask(tt.ttl)
					if got := up.Count(); got != 2 {
						t.Errorf("the upstream was asked %d times, want 2", got)
					}
					return
				}
				f.advance(tt.kept - time.Second)
				ask(1)
				if got := up.Count(); got != 1 {
					t.Errorf("the upstream was asked %d times, want 1", got)
				}
				f.advance(time.Second)
				ask(tt.ttl)
				if got := up.Count(); got != 2 {
					t.Errorf("the upstream was asked %d times, want 2", got)
				}
				f.switchTo(p)
				ask(tt.ttl)
				if got := up.Count(); got != 3 {
					t.Errorf("after a switch the upstream was asked %d times, want 3", got)
				}
			})
		}
	}
}

// ttls answers with records of these TTLs.
func ttls(list ...uint32) func(dnstest.Query) *dns.Msg {
	return func(q dnstest.Query) *dns.Msg {
		m := q.Records()
		for i, ttl := range list {
			hdr := dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}
			m.Answer = append(m.Answer, &dns.A{Hdr: hdr, A: net.IPv4(192, 0, 2, byte(i))})
		}
		return m
	}
}

func negative(rcode int, soa string) func(dnstest.Query) *dns.Msg {
	return func(q dnstest.Query) *dns.Msg {
		m := q.Code(rcode)
		if soa != "" {
			rr, err := dns.NewRR(soa)
			if err != nil {
				panic(err) // a mistake in a test
			}
			m.Ns = append(m.Ns, rr)
		}
		return m
	}
}

// TestCacheIsBounded: and what is in it stays right.
func TestCacheIsBounded(t *testing.T) {
	c := newCache()
	key := func(i int) []byte { return fmt.Appendf(nil, "key %d", i) }
	const n = 10 * cacheSets * cacheWays
	for i := range n {
		c.put(key(i), 1, fmt.Appendf(nil, "answer %d", i), nil, 0, time.Minute)
	}
	found := 0
	for i := range n {
		msg, ok := c.appendTo(nil, key(i), 1, 0)
		if ok {
			found++
		}
		if ok && string(msg) != fmt.Sprintf("answer %d", i) {
			t.Errorf("key %d has %q", i, msg)
		}
		if _, ok := c.appendTo(nil, key(i), 2, 0); ok {
			t.Errorf("key %d is there for other rules", i)
		}
	}
	if found == 0 || found > cacheSets*cacheWays {
		t.Errorf("%d answers are kept", found)
	}
	c.put(key(0), 1, make([]byte, cachedMax+1), nil, 0, time.Minute)
	if msg, _ := c.appendTo(nil, key(0), 1, 0); len(msg) > cachedMax {
		t.Error("an answer that is too long was kept")
	}
}

// TestSwitch: names that the new policy refuses are refused from then on, also those under way, and nobody is asked
// about them any more; the others are answered.
func TestSwitch(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			release := make(chan struct{})
			up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
				if q.Name != "cached.test." {
					<-release
				}
				return addresses(q)
			})
			var once sync.Once
			freed := func() { once.Do(func() { close(release) }) }
			t.Cleanup(freed)
			f := newFilter(t, allow("kept.test", "gone.test", "cached.test"), Options{}, up.Addr)
			if m := f.exchange(network, question("cached.test", dns.TypeA)); len(m.Answer) != 1 {
				t.Fatalf("got %v", m)
			}
			kept := f.later(network, question("kept.test", dns.TypeA))
			gone := f.later(network, question("gone.test", dns.TypeA))
			up.Wait(t, 3)
			f.switchTo(allow("kept.test"))
			asked := up.Count()
			if m := <-gone; m == nil || !blocked(m) {
				t.Errorf("under way: %v", m)
			}
			if m := f.exchange(network, question("cached.test", dns.TypeA)); !blocked(m) {
				t.Errorf("cached: %v", m)
			}
			if m := f.exchange(network, question("gone.test", dns.TypeA)); !blocked(m) {
				t.Errorf("new: %v", m)
			}
			if up.Count() != asked {
				t.Error("the upstream was asked")
			}
			freed()
			if m := <-kept; m == nil || len(m.Answer) != 1 {
				t.Errorf("allowed by both: %v", m)
			}
		})
	}
}

// TestAnswerAfterSwitch is judged by the new rules, even if nobody has called Flush yet.
func TestAnswerAfterSwitch(t *testing.T) {
	tests := []struct {
		name string
		to   policy.Policy
		want string // "" for a refusal
	}{
		{"still-allowed", deny("evil.test"), "10.0.0.1 192.0.2.1"},
		{"address-denied", deny("10.0.0.0/8"), "192.0.2.1"},
		{"private-under-wildcard", allow("*.ok.test"), "192.0.2.1"},
		{"name-denied", deny("a.ok.test"), ""},
		{"not-listed", allow("ok.test"), ""},
		{"no-network", noNetwork, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			release := make(chan struct{})
			up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
				<-release
				return q.Records(q.Name+" 60 IN A 192.0.2.1", q.Name+" 60 IN A 10.0.0.1")
			})
			f := newFilter(t, public, Options{}, up.Addr)
			got := f.later("udp", question("a.ok.test", dns.TypeA))
			up.Wait(t, 1)
			f.set(tt.to)
			close(release)
			m := <-got
			if m == nil {
				t.FailNow()
			}
			if tt.want == "" && !blocked(m) || tt.want != "" && values(m) != tt.want {
				t.Errorf("got %v", m)
			}
			if e := f.lastEvent(); e.Generation != 2 {
				t.Errorf("event of generation %d", e.Generation)
			}
		})
	}
}

// TestOtherRulesOfOneGeneration are other rules: so is a session blocked whose policy file went bad.
func TestOtherRulesOfOneGeneration(t *testing.T) {
	release := make(chan struct{})
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		<-release
		return addresses(q)
	})
	f := newFilter(t, public, Options{}, up.Addr)
	got := f.later("udp", question("ok.test", dns.TypeTXT))
	up.Wait(t, 1)
	f.set(noNetwork)
	f.rules.Store(&Rules{Ruleset: f.rules.Load().Ruleset, Generation: 1})
	close(release)
	if m := <-got; m == nil || !blocked(m) {
		t.Errorf("got %v", m)
	}
}

// TestNoRetryAfterSwitch: a question that nobody answers is not asked again once its name is refused.
func TestNoRetryAfterSwitch(t *testing.T) {
	up := dnstest.New(t, func(dnstest.Query) *dns.Msg { return nil })
	f := newFilter(t, public, Options{}, up.Addr)
	got := f.later("udp", question("ok.test", dns.TypeA))
	up.Wait(t, 1)
	f.set(noNetwork) // without Flush, so that only the client's own question counts
	if m := <-got; m == nil || !blocked(m) {
		t.Errorf("got %v", m)
	}
	if got := up.Count(); got != 1 {
		t.Errorf("the upstream was asked %d times", got)
	}
}

// TestConnectionsAtSwitch: no-network closes connections; otherwise they live on, under the new rules. [I-58]
func TestConnectionsAtSwitch(t *testing.T) {
	up := dnstest.New(t, addresses)
	f := newFilter(t, public, Options{}, up.Addr)
	conn := f.dial()
	query := framed(t, question("ok.test", dns.TypeA))
	ask := func() *dns.Msg {
		if _, err := conn.Write(query); err != nil {
			t.Fatal(err)
		}
		return answer(t, conn)
	}
	if m := ask(); len(m.Answer) != 1 {
		t.Errorf("got %v", m)
	}
	f.switchTo(allow("other.test"))
	if m := ask(); !blocked(m) {
		t.Errorf("got %v", m)
	}
	f.switchTo(noNetwork)
	closed(t, conn)
}

// TestSwitchUnderLoad: whole policies only; when Flush has returned, no question leaves about a name that is refused.
func TestSwitchUnderLoad(t *testing.T) {
	// The upstream handles its packets in the order in which they were sent. A mark names what is refused from then on.
	const mark = "mark "
	refused := ""
	marked := make(chan struct{}, 1)
	up := rawUpstream(t, func(packet []byte) []byte {
		if name, ok := strings.CutPrefix(string(packet), mark); ok {
			refused = name
			marked <- struct{}{}
			return nil
		}
		q := new(dns.Msg)
		if err := q.Unpack(packet); err != nil {
			t.Errorf("the upstream got %x: %v", packet, err)
			return nil
		}
		if q.Question[0].Name == refused {
			t.Errorf("asked for %s after the switch", refused)
		}
		m, err := ttls(0)(dnstest.Query{Msg: q, Name: q.Question[0].Name}).Pack()
		if err != nil {
			t.Errorf("packing an answer: %v", err)
		}
		return m
	})
	marker, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(up))
	if err != nil {
		t.Fatal(err)
	}
	defer marker.Close()
	setMark := func(name string) {
		if _, err := marker.Write([]byte(mark + name)); err != nil {
			t.Fatal(err)
		}
		<-marked
	}
	f := newFilter(t, allow("a.test"), Options{}, up)
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for _, name := range []string{"a.test", "b.test"} {
		for _, network := range []string{"udp", "tcp"} {
			asking.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					<-f.later(network, question(name, dns.TypeA))
				}
			})
		}
	}
	for i := range 200 {
		name, other := "a.test", "b.test"
		if i%2 == 0 {
			name, other = other, name
		}
		setMark("")
		f.switchTo(allow(name))
		setMark(dns.Fqdn(other))
		if m := f.ask(other, dns.TypeA); !blocked(m) {
			t.Errorf("switch %d: %s is allowed: %v", i, other, m)
		}
		if m := f.ask(name, dns.TypeA); len(m.Answer) != 1 {
			t.Errorf("switch %d: %s is refused: %v", i, name, m)
		}
	}
	close(stop)
	asking.Wait()
}
