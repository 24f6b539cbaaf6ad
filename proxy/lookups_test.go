package proxy

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/control"
	"sluice/proxy/dnstest"
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
	server, err := New(Config{Upstreams: []netip.AddrPort{first.Addr}, Workers: 1,
		UpstreamsChanged: func() ([]netip.AddrPort, bool) { return next, next != nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	l := server.resolver
	want := func(name, address string) {
		t.Helper()
		got, err := l.LookupIf(t.Context(), name, nil)
		if err != nil || len(got.Addrs) != 1 || got.Addrs[0].String() != address {
			t.Errorf("%s: %v, %v; want %s", name, got.Addrs, err, address)
		}
	}
	want("a.test", "192.0.2.1")
	next = []netip.AddrPort{second.Addr}
	want("b.test", "192.0.2.2")
	want("a.test", "192.0.2.2") // nothing is remembered of what the former servers said
}

// The DNS filter asks the machine's name servers of this moment too, and so does a session that has only local names of
// its own; one with name servers of its own keeps to them.
func TestNameServersOfTheFilterChange(t *testing.T) {
	answer := func(address string) *dnstest.Server {
		return dnstest.New(t, func(q dnstest.Query) *dns.Msg { return q.Records(q.Name + " 60 A " + address) })
	}
	first, second, own := answer("192.0.2.1"), answer("192.0.2.2"), answer("192.0.2.3")
	var next atomic.Pointer[[]netip.AddrPort]
	r := start(t, `"public"`, Config{Upstreams: []netip.AddrPort{first.Addr}, UpstreamsChanged: func() ([]netip.AddrPort, bool) {
		servers := next.Load()
		if servers == nil {
			return nil, false
		}
		return *servers, true
	}})
	ask := func(id string, spec control.SessionSpec) func() string {
		t.Helper()
		if _, err := r.set(id, spec); err != nil {
			t.Fatal(err)
		}
		session, err := r.server.find(id)
		if err != nil {
			t.Fatal(err)
		}
		udp, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		session.ServeDNS(udp.(*net.UDPConn), nil)
		return func() string {
			t.Helper()
			time.Sleep(2 * freshTime)
			answer, _, err := new(dns.Client).Exchange(new(dns.Msg).SetQuestion("a.test.", dns.TypeA), udp.LocalAddr().String())
			if err != nil || len(answer.Answer) != 1 {
				t.Fatalf("%s: %v, %v", id, answer, err)
			}
			return answer.Answer[0].(*dns.A).A.String()
		}
	}
	open := everywhere(`"public"`)
	plain := ask("plain", control.SessionSpec{Policies: open})
	named := ask("named", control.SessionSpec{Policies: open, Hosts: map[string][]string{"db": {"127.0.0.1"}}})
	apart := ask("apart", control.SessionSpec{Policies: open, Upstreams: []string{own.Addr.String()}})
	for _, want := range []string{"192.0.2.1", "192.0.2.2"} {
		if a, b, c := plain(), named(), apart(); a != want || b != want || c != "192.0.2.3" {
			t.Errorf("got %s, %s and %s, want %s twice, and 192.0.2.3", a, b, c, want)
		}
		next.Store(&[]netip.AddrPort{second.Addr})
	}
	late := ask("late", control.SessionSpec{Policies: open})
	if got := late(); got != "192.0.2.2" {
		t.Errorf("a new session asks the former server: %s", got)
	}
	session, err := r.server.find("named")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := session.resolveName(t.Context(), "a.test"); err != nil || got.Addrs[0].String() != "192.0.2.2" {
		t.Errorf("look-ups: %v, %v", got, err)
	}
}
