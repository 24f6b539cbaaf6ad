package dns

import (
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnstest"
)

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

// TestNoRoute: a family that cannot be reached has no addresses, so that clients take the other. [L-14]
func TestNoRoute(t *testing.T) {
	up := dnstest.New(t, addresses)
	f := newFilter(t, public, Options{Hosts: localhosts}, up.Addr)
	rs := f.rules.Load().Ruleset
	for _, tt := range []struct {
		rules    Rules
		name     string
		v4, v6   string
		upstream int
	}{
		{Rules{Ruleset: rs, NoIPv6: true, Generation: 2}, "ok.test", "192.0.2.1", "", 1},
		{Rules{Ruleset: rs, NoIPv4: true, Generation: 3}, "ok.test", "", "2001:db8::1", 2},
		{Rules{Ruleset: rs, NoIPv6: true, Generation: 4}, "db", "172.18.0.2", "fd00::2", 2},
	} {
		f.rules.Store(&tt.rules)
		for qtype, want := range map[uint16]string{dns.TypeA: tt.v4, dns.TypeAAAA: tt.v6} {
			m := f.ask(tt.name, qtype)
			if m.Rcode != dns.RcodeSuccess || values(m) != want {
				t.Errorf("%s: got %v, want %q", tt.name, m, want)
			}
		}
		if got := up.Count(); got != tt.upstream {
			t.Errorf("%s: the upstream was asked %d times, want %d", tt.name, got, tt.upstream)
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
	f.rules.Store(&Rules{Ruleset: rs, Budget: NewBudget(rs, policy.Options{}), Generation: 2})
	if got := values(f.ask("in.test", dns.TypeA)); got != "192.0.2.1" {
		t.Errorf("in.test: %s", got)
	}
	if m := f.ask("out.test", dns.TypeA); m.Rcode != dns.RcodeSuccess || len(m.Answer) > 0 {
		t.Errorf("out.test: %v", m)
	}
	if got, _ := f.rules.Load().Budget.Spent(); got != 2 {
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
