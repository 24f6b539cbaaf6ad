package dns

import (
	"context"
	"fmt"
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
	next := &Rules{Ruleset: rs, Options: p.Options, Generation: 1}
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

// TestNames is the rule book: which names are asked for, and which are answered by the filter itself. [I-04, I-09,
// L-16, L-17, L-18]
func TestNames(t *testing.T) {
	allowlist := allow("ok.test", "*.wild.test", "port.test:443", "192.0.2.0/24")
	denylist := deny("evil.test", "*.bad.test", "port.test:443", "198.51.100.0/24")
	tests := []struct {
		name      string
		policy    policy.Policy
		ask       string
		qtype     uint16
		forwarded bool
	}{
		{"no-network", noNetwork, "ok.test", dns.TypeA, false},
		{"no-network-reverse", noNetwork, "1.0.0.10.in-addr.arpa", dns.TypePTR, false},
		{"no-network-root", noNetwork, ".", dns.TypeNS, false},
		{"public", public, "any.test", dns.TypeA, true},
		{"public-odd-name", public, `a\.b.\000.test`, dns.TypeA, true},
		{"public-root", public, ".", dns.TypeNS, true},
		{"public-any", public, "any.test", dns.TypeANY, true},
		{"public-null", public, "any.test", dns.TypeNULL, true},
		{"public-reverse", public, "1.2.0.192.in-addr.arpa", dns.TypePTR, true},

		{"host", allowlist, "ok.test", dns.TypeA, true},
		{"host-upper-case", allowlist, "oK.TeSt", dns.TypeA, true},
		{"host-aaaa", allowlist, "ok.test", dns.TypeAAAA, true},
		{"host-cname", allowlist, "ok.test", dns.TypeCNAME, true},
		{"host-https", allowlist, "ok.test", dns.TypeHTTPS, true},
		{"host-srv", allowlist, "ok.test", dns.TypeSRV, true},
		{"host-txt", allowlist, "ok.test", dns.TypeTXT, true},
		{"host-mx", allowlist, "ok.test", dns.TypeMX, true},
		{"host-port", allowlist, "port.test", dns.TypeA, true},
		{"service", allowlist, "_ldap._tcp.ok.test", dns.TypeSRV, true},
		{"service-https", allowlist, "_8443._https.ok.test", dns.TypeHTTPS, true},
		{"half-a-service", allowlist, "_tcp.ok.test", dns.TypeSRV, false},
		{"service-of-other", allowlist, "_ldap._tcp.evil.test", dns.TypeSRV, false},
		{"wildcard", allowlist, "a.wild.test", dns.TypeA, true},
		{"wildcard-deep", allowlist, "a.b.c.wild.test", dns.TypeA, true},
		{"wildcard-apex", allowlist, "wild.test", dns.TypeA, false},
		{"below-host", allowlist, "a.ok.test", dns.TypeA, false},
		{"other", allowlist, "evil.test", dns.TypeA, false},
		{"other-aaaa", allowlist, "evil.test", dns.TypeAAAA, false},
		{"other-txt", allowlist, "c2VjcmV0.evil.test", dns.TypeTXT, false},
		{"other-null", allowlist, "c2VjcmV0.evil.test", dns.TypeNULL, false},
		{"other-https", allowlist, "evil.test", dns.TypeHTTPS, false},
		{"other-svcb", allowlist, "evil.test", dns.TypeSVCB, false},
		{"other-any", allowlist, "evil.test", dns.TypeANY, false},
		{"other-ns", allowlist, "test", dns.TypeNS, false},
		{"other-ds", allowlist, "test", dns.TypeDS, false},
		{"root", allowlist, ".", dns.TypeNS, false},
		{"dot-in-label", allowlist, `a\.ok.test`, dns.TypeA, false},
		{"dot-in-wildcard-label", allowlist, `x\.a.wild.test`, dns.TypeA, false},
		{"whole-name-in-label", allowlist, `ok\.test`, dns.TypeA, false},
		{"address-as-name", allowlist, "192.0.2.1", dns.TypeA, false},
		{"reverse-of-target", allowlist, "1.2.0.192.in-addr.arpa", dns.TypePTR, false},
		{"look-alike", allowlist, "evilok.test", dns.TypeA, false},
		{"suffix", allowlist, "ok.test.evil.test", dns.TypeA, false},

		{"not-denied", denylist, "ok.test", dns.TypeA, true},
		{"not-denied-null", denylist, "ok.test", dns.TypeNULL, true},
		{"not-denied-ns", denylist, "test", dns.TypeNS, true},
		{"denied", denylist, "evil.test", dns.TypeA, false},
		{"denied-upper-case", denylist, "EVIL.test", dns.TypeA, false},
		{"denied-txt", denylist, "evil.test", dns.TypeTXT, false},
		{"denied-wildcard", denylist, "a.b.bad.test", dns.TypeA, false},
		{"denied-wildcard-apex", denylist, "bad.test", dns.TypeA, true},
		{"denied-on-one-port", denylist, "port.test", dns.TypeA, true},
		{"denied-service", denylist, "_ldap._tcp.evil.test", dns.TypeSRV, false},
		{"denied-in-one-label", denylist, `evil\.test`, dns.TypeA, false},
		{"denied-behind-nul", denylist, `a\000.bad.test`, dns.TypeA, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			up := dnstest.New(t, addresses)
			f := newFilter(t, tt.policy, Options{}, up.Addr)
			for i, network := range []string{"udp", "tcp"} {
				m := f.exchange(network, question(tt.ask, tt.qtype))
				if blocked(m) == tt.forwarded {
					t.Errorf("over %s: %v", network, m)
				}
				if got := m.Question[0].Name; got != dns.Fqdn(tt.ask) {
					t.Errorf("over %s: the question came back as %q", network, got)
				}
				want := 0
				if tt.forwarded {
					want = 1 + i
				}
				if got := up.Count(); got > want || tt.forwarded && got == 0 {
					t.Errorf("over %s: the upstream was asked %d times", network, got)
				}
				e := f.lastEvent()
				if verdict := e.Decision.Verdict == matcher.Allow; verdict != tt.forwarded {
					t.Errorf("over %s: event %+v", network, e)
				}
				if e.Proto.String() != network || e.Type != tt.qtype || e.Client.Addr().String() != "127.0.0.1" {
					t.Errorf("over %s: event %+v", network, e)
				}
			}
		})
	}
}

// TestRefusalTellsNothing: existing and other names get the same bytes, but for the name. [I-05]
func TestRefusalTellsNothing(t *testing.T) {
	up := dnstest.New(t, zone("n1.test. 60 IN A 192.0.2.1"))
	f := newFilter(t, noNetwork, Options{}, up.Addr)
	for _, network := range []string{"udp", "tcp"} {
		var first []byte
		for i := range 100 {
			q := question(fmt.Sprintf("n%d.test", i%10), dns.TypeA)
			q.Id = 1
			m := f.exchange(network, q)
			if !blocked(m) {
				t.Fatalf("%s: %v", network, m)
			}
			m.Question[0].Name = "n0.test."
			packed, err := m.Pack()
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = packed
			}
			if string(first) != string(packed) {
				t.Errorf("%s: %x differs from %x", network, packed, first)
			}
		}
	}
	if got := up.Count(); got != 0 {
		t.Errorf("the upstream was asked %d times", got)
	}
	plain := f.exchange("udp", new(dns.Msg).SetQuestion("n1.test.", dns.TypeA))
	if plain.IsEdns0() != nil || !blocked(plain) {
		t.Errorf("a client without EDNS gets %v", plain)
	}
}

// TestTypes: an allowed name gets an answer for every type, at once. [L-15, L-16, L-17]
func TestTypes(t *testing.T) {
	up := dnstest.New(t, addresses)
	f := newFilter(t, allow("ok.test"), Options{}, up.Addr)
	for _, qtype := range []uint16{dns.TypeNS, dns.TypeSOA, dns.TypeCAA, dns.TypePTR, dns.TypeANY, dns.TypeSVCB, dns.TypeNULL, dns.TypeDNSKEY, dns.TypeDS} {
		if m := f.ask("ok.test", qtype); m.Rcode != dns.RcodeSuccess || len(m.Answer) > 0 {
			t.Errorf("%s: %v", dns.Type(qtype), m)
		}
		if got := f.lastEvent().Decision.Reason; got != ReasonType {
			t.Errorf("%s: reason %q", dns.Type(qtype), got)
		}
	}
	if got := up.Count(); got != 0 {
		t.Errorf("the upstream was asked %d times", got)
	}
	for _, qtype := range []uint16{dns.TypeAXFR, dns.TypeIXFR, dns.TypeTSIG, dns.TypeOPT} {
		if m := f.ask("ok.test", qtype); m.Rcode != dns.RcodeRefused {
			t.Errorf("%s: %v", dns.Type(qtype), m)
		}
	}
	chaos := question("ok.test", dns.TypeTXT)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	if m := f.exchange("udp", chaos); m.Rcode != dns.RcodeRefused {
		t.Errorf("class CHAOS: %v", m)
	}
	if got := up.Count(); got != 0 {
		t.Errorf("the upstream was asked %d times", got)
	}
}

// TestPrivateReverse: the reverse of private addresses stays here. [L-17]
func TestPrivateReverse(t *testing.T) {
	tests := []struct {
		name  string
		local bool
	}{
		{"4.3.2.10.in-addr.arpa", true},
		{"10.in-addr.arpa", true},
		{"1.0.16.172.in-addr.arpa", true},
		{"1.0.32.172.in-addr.arpa", false},
		{"1.1.168.192.in-addr.arpa", true},
		{"lb._dns-sd._udp.0.1.168.192.in-addr.arpa", true},
		{"1.0.0.127.in-addr.arpa", true},
		{"1.0.254.169.in-addr.arpa", true},
		{"1.0.64.100.in-addr.arpa", true},
		{"8.8.8.8.in-addr.arpa", false},
		{"in-addr.arpa", false},
		{"x.in-addr.arpa", false},
		{strings.Repeat("0.", 30) + "d.f.ip6.arpa", true},
		{strings.Repeat("0.", 28) + "0.8.e.f.ip6.arpa", true},
		{"1." + strings.Repeat("0.", 31) + "ip6.arpa", true},
		{"0.0.ip6.arpa", false},
		{strings.Repeat("0.", 24) + "8.b.d.0.1.0.0.2.ip6.arpa", false},
		{"ip6.arpa", false},
	}
	up := dnstest.New(t, addresses)
	f := newFilter(t, public, Options{}, up.Addr)
	for _, tt := range tests {
		before := up.Count()
		m := f.ask(tt.name, dns.TypePTR)
		if asked := up.Count() > before; asked == tt.local {
			t.Errorf("%s: asked the upstream: %v", tt.name, asked)
		}
		if (m.Rcode == dns.RcodeNameError) != tt.local || extendedError(m) != nil {
			t.Errorf("%s: %v", tt.name, m)
		}
	}
}

// TestAddresses: addresses that could not be reached on any port are not handed out.
func TestAddresses(t *testing.T) {
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		return zone(
			q.Name+" 60 IN A 192.0.2.1", q.Name+" 60 IN A 127.0.0.1", q.Name+" 60 IN A 169.254.169.254",
			q.Name+" 60 IN A 10.0.0.1",
			q.Name+" 60 IN AAAA 2001:db8::1", q.Name+" 60 IN AAAA ::1", q.Name+" 60 IN AAAA fd00::1",
			q.Name+" 60 IN AAAA 64:ff9b::a9fe:a9fe",
		)(q)
	})
	tests := []struct {
		name   string
		policy policy.Policy
		ask    string
		qtype  uint16
		want   string
	}{
		{"host", allow("ok.test"), "ok.test", dns.TypeA, "10.0.0.1 192.0.2.1"},
		{"host-v6", allow("ok.test"), "ok.test", dns.TypeAAAA, "2001:db8::1 fd00::1"},
		{"wildcard", allow("*.ok.test"), "a.ok.test", dns.TypeA, "192.0.2.1"},
		{"wildcard-v6", allow("*.ok.test"), "a.ok.test", dns.TypeAAAA, "2001:db8::1"},
		{"wildcard-and-network", allow("*.ok.test", "10.0.0.0/8"), "a.ok.test", dns.TypeA, "10.0.0.1 192.0.2.1"},
		{"floor-by-target", allow("ok.test", "127.0.0.1"), "ok.test", dns.TypeA, "10.0.0.1 127.0.0.1 192.0.2.1"},
		{"denied-network", deny("10.0.0.0/8", "evil.test"), "ok.test", dns.TypeA, "192.0.2.1"},
		{"denied-on-one-port", deny("192.0.2.1:80"), "ok.test", dns.TypeA, "10.0.0.1 192.0.2.1"},
		{"public", public, "ok.test", dns.TypeA, "10.0.0.1 127.0.0.1 169.254.169.254 192.0.2.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFilter(t, tt.policy, Options{}, up.Addr)
			for range 2 { // the second time from the cache
				m := f.ask(tt.ask, tt.qtype)
				if got := values(m); got != tt.want || m.Rcode != dns.RcodeSuccess {
					t.Errorf("got %s, want %s\n%v", got, tt.want, m)
				}
			}
		})
	}
}

// TestNoUsableAddress: a name of which no address may be used has none, and the event says why. [L-15]
func TestNoUsableAddress(t *testing.T) {
	up := dnstest.New(t, zone("a.ok.test. 60 IN A 10.0.0.1", "b.ok.test. 60 IN A 169.254.169.254", "c.ok.test. 60 IN CNAME b.ok.test."))
	f := newFilter(t, allow("*.ok.test"), Options{}, up.Addr)
	for name, reason := range map[string]matcher.Reason{
		"a.ok.test": matcher.PrivateWildcard,
		"b.ok.test": matcher.Floor,
		"c.ok.test": matcher.Floor,
	} {
		m := f.ask(name, dns.TypeA)
		if m.Rcode != dns.RcodeSuccess || strings.Contains(m.String(), "10.0.0.1") || strings.Contains(m.String(), "169.254") {
			t.Errorf("%s: %v", name, m)
		}
		e := f.lastEvent()
		if e.Decision.Verdict != matcher.Refuse || e.Decision.Reason != reason || e.Dropped != 1 || e.Name() != name {
			t.Errorf("%s: event %+v", name, e)
		}
	}
}

// TestByAddress: a name that no target lists is asked for only where an address may allow it.
func TestByAddress(t *testing.T) {
	up := dnstest.New(t, zone("in.test. 60 IN A 192.0.2.1", "in.test. 60 IN A 198.51.100.1", "out.test. 60 IN A 198.51.100.1"))
	f := newFilter(t, allow("192.0.2.0/24"), Options{}, up.Addr)
	rs, err := matcher.Compile(allow("192.0.2.0/24"), matcher.Options{ResolveForAddressRules: true})
	if err != nil {
		t.Fatal(err)
	}
	f.rules.Store(&Rules{Ruleset: rs, Generation: 2})
	if got := values(f.ask("in.test", dns.TypeA)); got != "192.0.2.1" {
		t.Errorf("in.test: %s", got)
	}
	if m := f.ask("out.test", dns.TypeA); m.Rcode != dns.RcodeSuccess || len(m.Answer) > 0 {
		t.Errorf("out.test: %v", m)
	}
	if got := f.UniqueNames(); got != 2 {
		t.Errorf("counted %d names that only an address may allow, want 2", got)
	}
	before := up.Count()
	if m := f.ask("in.test", dns.TypeTXT); m.Rcode != dns.RcodeSuccess || len(m.Answer) > 0 || up.Count() != before {
		t.Errorf("TXT: %v", m)
	}
}

// TestAliases: an allowed name may be an alias of any, but of no denied one. [I-66, L-19]
func TestAliases(t *testing.T) {
	chain := zone(
		"ok.test. 3600 IN CNAME a.cdn.test.", "a.cdn.test. 60 IN CNAME b.cdn.test.", "b.cdn.test. 9 IN A 192.0.2.1",
		"odd.test. 60 IN CNAME a\\.b.test.", "a\\.b.test. 60 IN A 192.0.2.1",
	)
	t.Run("allowlist", func(t *testing.T) {
		up := dnstest.New(t, chain)
		f := newFilter(t, allow("ok.test"), Options{}, up.Addr)
		m := f.ask("ok.test", dns.TypeA)
		if got := values(m); got != "192.0.2.1 a.cdn.test. b.cdn.test." {
			t.Errorf("got %s", got)
		}
		for _, rr := range m.Answer {
			if ttl := rr.Header().Ttl; ttl != 9 {
				t.Errorf("%v: TTL %d, want the shortest of the chain, 9", rr, ttl)
			}
		}
		before := up.Count()
		if m := f.ask("b.cdn.test", dns.TypeA); !blocked(m) || up.Count() != before {
			t.Errorf("a hop asked for itself: %v", m)
		}
		// When a part has expired the whole is asked for.
		f.advance(10 * time.Second)
		if got := values(f.ask("ok.test", dns.TypeA)); got != "192.0.2.1 a.cdn.test. b.cdn.test." || up.Count() != before+1 {
			t.Errorf("got %s", got)
		}
	})
	for _, denied := range []string{"a.cdn.test", "b.cdn.test", "*.cdn.test"} {
		t.Run("denylist-"+denied, func(t *testing.T) {
			up := dnstest.New(t, chain)
			f := newFilter(t, deny(denied), Options{}, up.Addr)
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
				if m := f.ask("ok.test", qtype); !blocked(m) {
					t.Errorf("%v", m)
				}
				if e := f.lastEvent(); e.Decision.Verdict != matcher.Refuse || e.Decision.Reason != ReasonDeniedAlias {
					t.Errorf("event %+v", e)
				}
			}
		})
	}
	t.Run("denylist-of-others", func(t *testing.T) {
		f := newFilter(t, deny("evil.test"), Options{}, dnstest.New(t, chain).Addr)
		if got := values(f.ask("ok.test", dns.TypeA)); got != "192.0.2.1 a.cdn.test. b.cdn.test." {
			t.Errorf("got %s", got)
		}
		if m := f.ask("odd.test", dns.TypeA); !blocked(m) {
			t.Errorf("an alias of a name that cannot be judged: %v", m)
		}
	})
}

// TestSpelling: the question comes back as it was spelt, and the upstream learns nothing from the spelling. [L-18]
func TestSpelling(t *testing.T) {
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		q.Name = "Ok.Test."
		m := addresses(q)
		m.Question[0].Name = "OK.test."
		return m
	})
	f := newFilter(t, allow("ok.test"), Options{}, up.Addr)
	for _, name := range []string{"oK.TeSt.", "ok.test.", "OK.TEST."} {
		m := f.ask(name, dns.TypeA)
		if m.Question[0].Name != name || len(m.Answer) != 1 {
			t.Errorf("%s: %v", name, m)
		}
	}
	for _, q := range up.Queries() {
		if q.Name != "ok.test." {
			t.Errorf("asked for %q", q.Name)
		}
	}
	if got := up.Count(); got != 1 {
		t.Errorf("the upstream was asked %d times; the spelling makes no difference to the cache", got)
	}
}

// TestForwardedMessage: nothing leaves that the client could hide data in.
func TestForwardedMessage(t *testing.T) {
	up := dnstest.New(t, addresses)
	f := newFilter(t, public, Options{}, up.Addr)
	q := question("ok.test", dns.TypeA)
	q.Id = 4711
	q.Zero = true
	q.CheckingDisabled = true
	q.IsEdns0().SetDo()
	q.IsEdns0().SetUDPSize(4321)
	q.IsEdns0().Option = []dns.EDNS0{
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(192, 0, 2, 0)},
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"},
		&dns.EDNS0_PADDING{Padding: []byte("secret")},
		&dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: []byte("secret")},
	}
	q.Extra = append(q.Extra, &dns.TXT{Hdr: dns.RR_Header{Name: "x.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"secret"}})
	if m := f.exchange("udp", q); len(m.Answer) != 1 || m.Id != 4711 {
		t.Fatalf("got %v", m)
	}
	got := up.Queries()[0]
	want := new(dns.Msg).SetQuestion("ok.test.", dns.TypeA).SetEdns0(1232, true)
	want.Id, want.CheckingDisabled = got.Id, true
	if got.Msg.String() != want.String() {
		t.Errorf("sent on was\n%v\nwant\n%v", got.Msg, want)
	}
	if got.Id == 4711 {
		t.Error("the id is the client's")
	}
	// What is filtered cannot be verified, so signatures are not asked for.
	f.switchTo(allow("ok.test"))
	f.exchange("udp", q)
	if opt := up.Queries()[1].IsEdns0(); opt == nil || opt.Do() {
		t.Errorf("in an allowlist: %v", opt)
	}
}

// TestNameBudget: data in the names under a wildcard is counted, and stopped where the policy says so. [I-06]
func TestNameBudget(t *testing.T) {
	up := dnstest.New(t, addresses)
	p := allow("*.ok.test", "ok.test")
	p.Options.DNSUniqueNames = 20
	f := newFilter(t, p, Options{}, up.Addr)
	ask := func(i int) *dns.Msg {
		return f.ask(fmt.Sprintf("%060d.cdn.ok.test", i), dns.TypeA)
	}
	refused := 0
	for i := range 50 {
		if blocked(ask(i)) {
			refused++
			if got := f.lastEvent().Decision.Reason; got != ReasonNameBudget {
				t.Errorf("reason %q", got)
			}
		}
	}
	if refused != 30 || up.Count() != 20 || f.UniqueNames() != 20 {
		t.Errorf("%d of 50 refused, upstream asked %d times, counted %d", refused, up.Count(), f.UniqueNames())
	}
	f.Flush() // of the cache alone
	if blocked(ask(3)) || blocked(f.ask("ok.test", dns.TypeA)) {
		t.Error("a name that was counted, or is no wildcard's, is refused")
	}
	if !blocked(f.ask("_x._tcp.ok.test", dns.TypeTXT)) {
		t.Error("a service's name does not count")
	}
	f.switchTo(p)
	if blocked(ask(40)) || f.UniqueNames() != 1 {
		t.Errorf("the next phase begins with %d names", f.UniqueNames())
	}

	unlimited := newFilter(t, allow("*.ok.test"), Options{}, up.Addr)
	for i := range 100 {
		unlimited.ask(fmt.Sprintf("n%d.ok.test", i%50), dns.TypeA)
	}
	if got := unlimited.UniqueNames(); got != 50 {
		t.Errorf("counted %d names, want 50", got)
	}
}

// TestFailures: a name that is allowed and cannot be looked up gets SERVFAIL, soon.
func TestFailures(t *testing.T) {
	t.Run("no-upstream", func(t *testing.T) {
		f := newFilter(t, public, Options{})
		m := f.ask("ok.test", dns.TypeA)
		if m.Rcode != dns.RcodeServerFailure || extendedError(m) == nil {
			t.Errorf("got %v", m)
		}
	})
	t.Run("closed-upstream", func(t *testing.T) {
		f := newFilter(t, public, Options{}, dnstest.Closed(t))
		if m := f.ask("ok.test", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("got %v", m)
		}
		if e := f.lastEvent(); e.Decision.Verdict != matcher.Allow || e.Decision.Reason != ReasonFailed || e.Rcode != dns.RcodeServerFailure {
			t.Errorf("event %+v", e)
		}
	})
	t.Run("too-many", func(t *testing.T) {
		up := dnstest.New(t, func(dnstest.Query) *dns.Msg { return nil })
		f := newFilter(t, public, Options{MaxOutstanding: 1}, up.Addr)
		conn, err := net.Dial("udp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		packed, _ := question("first.test", dns.TypeA).Pack()
		if _, err := conn.Write(packed); err != nil {
			t.Fatal(err)
		}
		up.Wait(t, 1)
		if m := f.ask("second.test", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("got %v", m)
		}
		if got := f.lastEvent().Decision.Reason; got != ReasonCapacity {
			t.Errorf("reason %q", got)
		}
	})
	t.Run("malformed-answer", func(t *testing.T) {
		up := rawUpstream(t, func(query []byte) []byte {
			answer := slices.Clone(query)
			answer[2] |= 0x80
			answer[7] = 1 // an answer that is not there
			return answer
		})
		f := newFilter(t, public, Options{}, up)
		if m := f.ask("ok.test", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("got %v", m)
		}
	})
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
