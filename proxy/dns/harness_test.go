package dns

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// filter is a server under test, on one port of the loopback device.
type filter struct {
	*Server
	t     testing.TB
	addr  string
	rules atomic.Pointer[Rules]
	age   atomic.Int64 // added to the clock, in nanoseconds

	mu     sync.Mutex // guards events
	events []Event    // with names that may be kept
}

// newFilter starts a server with a policy in front of upstreams. Its other options are the defaults, changed by o.
func newFilter(t testing.TB, p policy.Policy, o Options, upstreams ...netip.AddrPort) *filter {
	t.Helper()
	f := &filter{t: t}
	f.set(p)
	o.Upstreams = upstreams
	o.Rules = func() Rules { return *f.rules.Load() }
	o.Observe = f.note
	f.Server = New(o)
	real := f.Server.now
	f.Server.now = func() time.Duration { return real() + time.Duration(f.age.Load()) }

	f.addr = serve(t, f.Server)
	return f
}

// serve serves s on one port, and closes it with the test.
func serve(t testing.TB, s *Server) (addr string) {
	t.Helper()
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(tcp.Addr().(*net.TCPAddr).AddrPort()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.ServeUDP(ctx, udp); err != nil {
			t.Errorf("ServeUDP: %v", err)
		}
	})
	serving.Go(func() {
		if err := s.ServeTCP(ctx, tcp); err != nil {
			t.Errorf("ServeTCP: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
		s.Close()
		udp.Close()
		tcp.Close()
	})
	return tcp.Addr().String()
}

func (f *filter) note(e *Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := *e
	kept.name = []byte(e.Name())
	f.events = append(f.events, kept)
}

// lastEvent returns the event of the last answer.
func (f *filter) lastEvent() Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) == 0 {
		f.t.Fatal("there was no event")
	}
	return f.events[len(f.events)-1]
}

// set puts a policy in force, and switchTo does all that a switch does.
func (f *filter) set(p policy.Policy) {
	f.t.Helper()
	rs, err := matcher.Compile(p, matcher.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	next := &Rules{Ruleset: rs, Options: p.Options, Budget: NewBudget(rs, p.Options), Generation: 1}
	if now := f.rules.Load(); now != nil {
		next.Generation = now.Generation + 1
	}
	f.rules.Store(next)
}

func (f *filter) switchTo(p policy.Policy) {
	f.t.Helper()
	f.set(p)
	f.Flush()
}

func (f *filter) advance(d time.Duration) { f.age.Add(int64(d)) }

// exchange sends a query and returns the answer.
func (f *filter) exchange(network string, m *dns.Msg) *dns.Msg {
	f.t.Helper()
	r := <-f.later(network, m)
	if r == nil {
		f.t.FailNow()
	}
	return r
}

// later is exchange in a goroutine of its own. The channel is closed without an answer if there is none.
func (f *filter) later(network string, m *dns.Msg) <-chan *dns.Msg {
	got := make(chan *dns.Msg, 1)
	go func() {
		defer close(got)
		c := dns.Client{Net: network, UDPSize: dns.MaxMsgSize, Timeout: 10 * time.Second}
		r, _, err := c.Exchange(m, f.addr)
		if err != nil {
			f.t.Errorf("%v over %s: %v", m.Question, network, err)
			return
		}
		got <- r
	}()
	return got
}

// ask asks for name by UDP, with EDNS.
func (f *filter) ask(name string, qtype uint16) *dns.Msg {
	f.t.Helper()
	return f.exchange("udp", question(name, qtype))
}

func question(name string, qtype uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype).SetEdns0(dns.DefaultMsgSize, false)
}

// The policies of tests. Targets are in short form.
var (
	public    = policy.Policy{Mode: policy.Public}
	noNetwork = policy.Policy{Mode: policy.NoNetwork}
)

func allow(targets ...string) policy.Policy {
	return policy.Policy{Mode: policy.Allowlist, Targets: parse(targets)}
}

func deny(targets ...string) policy.Policy {
	return policy.Policy{Mode: policy.Denylist, Targets: parse(targets)}
}

func parse(targets []string) []policy.Target {
	var list []policy.Target
	for _, s := range targets {
		t, err := policy.ParseTarget(s)
		if err != nil {
			panic(err) // a mistake in a test
		}
		list = append(list, t)
	}
	return list
}

// addresses answers A with 192.0.2.1, AAAA with 2001:db8::1 and everything else with no record.
func addresses(q dnstest.Query) *dns.Msg {
	switch q.Type {
	case dns.TypeA:
		return q.Records(q.Name + " 60 IN A 192.0.2.1")
	case dns.TypeAAAA:
		return q.Records(q.Name + " 60 IN AAAA 2001:db8::1")
	}
	return q.Records()
}

// zone answers with the records of a zone, following aliases as a resolver does, and NXDOMAIN for names that are not
// in it.
func zone(records ...string) func(dnstest.Query) *dns.Msg {
	var all []dns.RR
	for _, s := range records {
		rr, err := dns.NewRR(s)
		if err != nil {
			panic(err) // a mistake in a test
		}
		all = append(all, rr)
	}
	return func(q dnstest.Query) *dns.Msg {
		m := q.Records()
		name, known := q.Name, false
		for follow := true; follow; {
			follow = false
			for _, rr := range all {
				if !strings.EqualFold(rr.Header().Name, name) {
					continue
				}
				known = true
				cname, alias := rr.(*dns.CNAME)
				if rr.Header().Rrtype == q.Type || alias {
					m.Answer = append(m.Answer, dns.Copy(rr))
				}
				if alias && q.Type != dns.TypeCNAME {
					name, follow = cname.Target, true
					break
				}
			}
		}
		if !known {
			m.Rcode = dns.RcodeNameError
		}
		return m
	}
}

// blocked reports whether m is the answer to a name that is refused: NXDOMAIN, no record of any kind, and extended
// error 15 for those who can take it.
func blocked(m *dns.Msg) bool {
	extended := extendedError(m)
	return m.Rcode == dns.RcodeNameError && len(m.Answer) == 0 && len(m.Ns) == 0 &&
		(m.IsEdns0() == nil && len(m.Extra) == 0 || extended != nil && extended.InfoCode == dns.ExtendedErrorCodeBlocked)
}

func extendedError(m *dns.Msg) *dns.EDNS0_EDE {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return e
			}
		}
	}
	return nil
}

// values returns the records in the answer section, without owner, TTL and class, sorted.
func values(m *dns.Msg) string {
	var list []string
	for _, rr := range m.Answer {
		list = append(list, strings.TrimSpace(strings.TrimPrefix(rr.String(), rr.Header().String())))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// rawUpstream answers packets with what answer makes of them.
func rawUpstream(t testing.TB, answer func(query []byte) []byte) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		b := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if a := answer(b[:n]); a != nil {
				_, _ = conn.WriteToUDPAddrPort(a, from) // the filter may have gone
			}
		}
	})
	t.Cleanup(func() {
		conn.Close()
		serving.Wait()
	})
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}
