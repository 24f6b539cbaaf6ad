package proxy

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"sluice/proxy/dnstest"
	"sluice/proxy/resolve"
)

func TestNameServersChange(t *testing.T) {
	answer := func(address string) *dnstest.Server {
		return dnstest.New(t, func(q dnstest.Query) *dns.Msg {
			if q.Type != dns.TypeA {
				return q.Records()
			}
			return q.Records(q.Name + " 60 A " + address)
		})
	}
	first, second := answer("192.0.2.1"), answer("192.0.2.2")
	var next []netip.AddrPort
	l := newLookups(resolve.Options{Upstreams: []netip.AddrPort{first.Addr}}, func() ([]netip.AddrPort, bool) {
		return next, next != nil
	})
	defer l.Close()
	want := func(name, address string) {
		t.Helper()
		got, err := l.Lookup(t.Context(), name)
		if err != nil || len(got.Addrs) != 1 || got.Addrs[0].String() != address {
			t.Errorf("%s: %v, %v; want %s", name, got.Addrs, err, address)
		}
	}
	want("a.test", "192.0.2.1")
	next = []netip.AddrPort{second.Addr}
	want("b.test", "192.0.2.2")
	want("a.test", "192.0.2.2") // nothing is remembered of what the former servers said
}
