package dns

import (
	"testing"

	"github.com/miekg/dns"

	"sluice/policy"
	"sluice/proxy/dnstest"
)

// TestServiceRecords: what HTTPS and SVCB records may say. [I-29, L-16]
func TestServiceRecords(t *testing.T) {
	const ech = ` ech="AEX+DQBBpQAgACBi"`
	keep := allow("ok.test")
	keep.Options.KeepECH = true
	tests := []struct {
		name   string
		policy policy.Policy
		record string // behind the type
		want   string // "" if the record is left out
	}{
		{"nothing-to-change", allow("ok.test"), `1 . alpn="h2" port="8443"`, `1 . alpn="h2" port="8443"`},
		{"ech", allow("ok.test"), `1 . alpn="h2"` + ech, `1 . alpn="h2"`},
		{"ech-alone", allow("ok.test"), `1 .` + ech, `1 .`},
		{"ech-public", public, `1 . alpn="h2"` + ech, `1 . alpn="h2"`},
		{"ech-denylist", deny("evil.test"), `1 . alpn="h2"` + ech, `1 . alpn="h2"`},
		{"ech-kept", keep, `1 . alpn="h2"` + ech, `1 . alpn="h2"` + ech},
		{"ech-mandatory", allow("ok.test"), `1 . mandatory="alpn,ech" alpn="h2"` + ech, `1 . mandatory="alpn" alpn="h2"`},
		{"ech-only-mandatory", allow("ok.test"), `1 . mandatory="ech" alpn="h2"` + ech, `1 . alpn="h2"`},
		{"h3", allow("ok.test"), `1 . alpn="h3,h2"`, `1 . alpn="h2"`},
		{"h3-draft", allow("ok.test"), `1 . alpn="h3-29,h2,h3"`, `1 . alpn="h2"`},
		{"h3-denylist", deny("evil.test"), `1 . alpn="h3,h2"`, `1 . alpn="h2"`},
		{"h3-no-name-rule", deny("192.0.2.1"), `1 . alpn="h3,h2"`, `1 . alpn="h3,h2"`},
		{"h3-public", public, `1 . alpn="h3,h2"`, `1 . alpn="h3,h2"`},
		{"h3-alone", allow("ok.test"), `1 . alpn="h3"`, `1 .`},
		{"h3-alone-without-default", allow("ok.test"), `1 . alpn="h3" no-default-alpn=""`, ``},
		{"hint", allow("ok.test"), `1 . ipv4hint="192.0.2.1"`, `1 . ipv4hint="192.0.2.1"`},
		{"hint-floor", allow("ok.test"), `1 . ipv4hint="192.0.2.1,127.0.0.1" ipv6hint="::1"`, `1 . ipv4hint="192.0.2.1"`},
		{"hint-private-host", allow("ok.test"), `1 . ipv4hint="10.0.0.1" ipv6hint="fd00::1"`, `1 . ipv4hint="10.0.0.1" ipv6hint="fd00::1"`},
		{"hint-private-wildcard", allow("*.test"), `1 . ipv4hint="10.0.0.1" ipv6hint="fd00::1,2001:db8::1"`, `1 . ipv6hint="2001:db8::1"`},
		{"hint-denied", deny("192.0.2.0/24"), `1 . alpn="h2" ipv4hint="192.0.2.1"`, `1 . alpn="h2"`},
		{"other-name", allow("ok.test"), `1 cdn.test. alpn="h2"`, ``},
		{"other-name-listed", allow("ok.test", "cdn.test"), `1 cdn.test. alpn="h2"`, `1 cdn.test. alpn="h2"`},
		{"alias-of-denied", deny("evil.test"), `0 evil.test.`, ``},
		{"alias-of-other", deny("evil.test"), `0 cdn.test.`, `0 cdn.test.`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
				return q.Records(q.Name + " 60 IN " + dns.TypeToString[q.Type] + " " + tt.record)
			})
			f := newFilter(t, tt.policy, Options{}, up.Addr)
			for range 2 { // the second time from the cache
				m := f.ask("ok.test", dns.TypeHTTPS)
				if m.Rcode != dns.RcodeSuccess || values(m) != tt.want {
					t.Errorf("got %s, want %s", values(m), tt.want)
				}
			}
			if got := f.lastEvent().Dropped; got > 1 || tt.want != "" && got != 0 {
				t.Errorf("%d records dropped", got)
			}
		})
	}
	t.Run("no-route", func(t *testing.T) {
		up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
			return q.Records(q.Name + ` 60 IN HTTPS 1 . ipv4hint="192.0.2.1" ipv6hint="2001:db8::1"`)
		})
		f := newFilter(t, public, Options{}, up.Addr)
		f.rules.Store(&Rules{Ruleset: f.rules.Load().Ruleset, NoIPv6: true, Generation: 2})
		if got := values(f.ask("ok.test", dns.TypeHTTPS)); got != `1 . ipv4hint="192.0.2.1"` {
			t.Errorf("got %s", got)
		}
	})
	t.Run("svcb", func(t *testing.T) {
		up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
			return q.Records(q.Name+" 60 IN SVCB 1 . alpn=h2,h3"+ech, q.Name+" 60 IN SVCB 2 . alpn=h3")
		})
		f := newFilter(t, deny("evil.test"), Options{}, up.Addr)
		if got := values(f.ask("ok.test", dns.TypeSVCB)); got != `1 . alpn="h2"` {
			t.Errorf("got %s", got)
		}
	})
}
