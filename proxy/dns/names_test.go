package dns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnstest"
)

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
