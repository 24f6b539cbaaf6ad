package dns

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnstest"
)

// localhosts knows one name.
func localhosts(name []byte) []netip.Addr {
	if string(name) == "db" {
		return []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("127.0.0.1")}
	}
	return nil
}

func TestLocalNames(t *testing.T) {
	tests := []struct {
		name   string
		policy policy.Policy
		qtype  uint16
		want   string
		code   int
	}{
		{"public", public, dns.TypeA, "172.18.0.2", dns.RcodeSuccess},
		{"public-v6", public, dns.TypeAAAA, "fd00::2", dns.RcodeSuccess},
		{"public-other-type", public, dns.TypeTXT, "", dns.RcodeSuccess},
		{"allowed", allow("db"), dns.TypeA, "172.18.0.2", dns.RcodeSuccess},
		{"not-allowed", allow("ok.test"), dns.TypeA, "", dns.RcodeNameError},
		{"denied", deny("db"), dns.TypeA, "", dns.RcodeNameError},
		{"denied-address", deny("172.18.0.0/16"), dns.TypeA, "", dns.RcodeSuccess},
		{"no-network", noNetwork, dns.TypeA, "", dns.RcodeNameError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			up := dnstest.New(t, addresses)
			f := newFilter(t, tt.policy, Options{Hosts: localhosts}, up.Addr)
			m := f.ask("db", tt.qtype)
			if values(m) != tt.want || m.Rcode != tt.code || m.IsEdns0() == nil {
				t.Errorf("got %v", m)
			}
			plain := f.exchange("udp", new(dns.Msg).SetQuestion("db.", tt.qtype))
			if values(plain) != tt.want || plain.IsEdns0() != nil {
				t.Errorf("without EDNS: %v", plain)
			}
			if got := up.Count(); got != 0 {
				t.Errorf("the upstream was asked %d times", got)
			}
		})
	}
}

// TestLocalNamesNotForTheProxy checks that a sibling's name is answered although the proxy must not dial its network, and
// that the policy is asked all the same.
func TestLocalNamesNotForTheProxy(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy policy.Policy
		want   string
		code   int
	}{
		{"public", public, "172.18.0.2", dns.RcodeSuccess},
		{"allowed", allow("db"), "172.18.0.2", dns.RcodeSuccess},
		{"not-allowed", allow("ok.test"), "", dns.RcodeNameError},
		{"denied", deny("db"), "", dns.RcodeNameError},
		{"denied-address", deny("172.18.0.0/16"), "", dns.RcodeSuccess},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFilter(t, tt.policy, Options{Hosts: localhosts})
			never := []netip.Prefix{netip.MustParsePrefix("172.18.0.0/16")}
			rs, err := matcher.Compile(tt.policy, matcher.Options{Never: never})
			if err != nil {
				t.Fatal(err)
			}
			f.rules.Store(&Rules{Ruleset: rs, Options: tt.policy.Options, Generation: 2})
			if m := f.ask("db", dns.TypeA); values(m) != tt.want || m.Rcode != tt.code {
				t.Errorf("got %v", m)
			}
		})
	}
}

// TestOpenNames checks that a name of Options.Open is answered under every policy, and no other is.
func TestOpenNames(t *testing.T) {
	open := func(name []byte) []netip.Addr {
		if string(name) != "db" {
			return nil
		}
		return []netip.Addr{netip.MustParseAddr("172.18.0.2")}
	}
	for _, tt := range []struct {
		name   string
		policy policy.Policy
	}{
		{"public", public}, {"no-network", noNetwork}, {"allowlist", allow("ok.test")}, {"denied", deny("db")}, {"denied-address", deny("172.18.0.0/16")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			up := dnstest.New(t, addresses)
			f := newFilter(t, tt.policy, Options{Open: open}, up.Addr)
			if m := f.ask("db", dns.TypeA); values(m) != "172.18.0.2" || m.Rcode != dns.RcodeSuccess {
				t.Errorf("got %v", m)
			}
			if m := f.ask("db", dns.TypeTXT); values(m) != "" || m.Rcode != dns.RcodeSuccess {
				t.Errorf("text: got %v", m)
			}
			if got := up.Count(); got != 0 {
				t.Errorf("the upstream was asked %d times", got)
			}
			if m := f.ask("db.ok.test", dns.TypeA); tt.policy.Mode == policy.NoNetwork && m.Rcode != dns.RcodeNameError {
				t.Errorf("another name: got %v", m)
			}
		})
	}
}
