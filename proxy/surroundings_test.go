package proxy

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	mdns "github.com/miekg/dns"

	"sluice/control"
	"sluice/matcher"
	"sluice/proxy/dnstest"
)

// A session has name servers, local names and refused networks of its own, and they change while it serves.
func TestSurroundings(t *testing.T) {
	port := listen(t, echo)
	server := func(address string) *dnstest.Server {
		return dnstest.New(t, func(q dnstest.Query) *mdns.Msg {
			if q.Type == mdns.TypeA && q.Name != "db." {
				return q.Records(q.Name + " 60 IN A " + address)
			}
			return q.Code(mdns.RcodeNameError)
		})
	}
	first, second := server("127.0.0.1"), server("127.0.0.2")
	own := dnstest.New(t, func(q dnstest.Query) *mdns.Msg { return q.Code(mdns.RcodeServerFailure) })
	r := start(t, allow("other.test"), Config{Upstreams: []netip.AddrPort{own.Addr}})
	set := func(spec control.SessionSpec) control.Receipt {
		t.Helper()
		receipt, err := r.set(r.session.id, spec)
		if err != nil {
			t.Fatal(err)
		}
		return receipt
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.session.ServeDNS(udp.(*net.UDPConn), nil)
	wantA := func(name, want string) {
		t.Helper()
		answer, _, err := new(mdns.Client).Exchange(new(mdns.Msg).SetQuestion(name, mdns.TypeA), udp.LocalAddr().String())
		got := ""
		if err == nil && len(answer.Answer) == 1 {
			got = answer.Answer[0].(*mdns.A).A.String()
		}
		if err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}

	set(control.SessionSpec{Policies: everywhere(allow("named.test", "DB")), Upstreams: []string{first.Addr.String()},
		Hosts: map[string][]string{"Db": {"127.0.0.1"}}})
	wantA("named.test.", "127.0.0.1")
	wantA("db.", "127.0.0.1")
	flow, response := r.connect("named.test:"+port, "")
	if response.StatusCode != http.StatusOK {
		t.Fatalf("status %d", response.StatusCode)
	}
	if _, response := r.connect("db:"+port, ""); response.StatusCode != http.StatusOK {
		t.Errorf("a local name: status %d", response.StatusCode)
	}
	wantEcho(t, flow, "through")

	if receipt := set(control.SessionSpec{Upstreams: []string{second.Addr.String()}}); !receipt.Unchanged {
		t.Errorf("receipt %+v: want it unchanged", receipt)
	}
	wantA("named.test.", "127.0.0.2")
	wantA("db.", "127.0.0.1")

	// Without a route for a family nobody is sent that way, but to local names.
	set(control.SessionSpec{NoRoute: []string{"ipv4", "ipv6"}})
	wantA("named.test.", "")
	wantA("db.", "127.0.0.1")
	status, err := r.server.Session(t.Context(), r.session.id)
	if err != nil || !slices.Equal(status.NoRoute, []string{"ipv4", "ipv6"}) {
		t.Errorf("status %+v, %v", status, err)
	}
	set(control.SessionSpec{NoRoute: []string{"ipv6"}})
	wantA("named.test.", "127.0.0.2")
	set(control.SessionSpec{NoRoute: []string{}})
	set(control.SessionSpec{Hosts: map[string][]string{}})
	wantA("db.", "")
	wantEcho(t, flow, "through")

	receipt := set(control.SessionSpec{Never: []string{"127.0.0.0/8"}})
	if receipt.FlowsCut != 2 || receipt.Unchanged {
		t.Errorf("receipt %+v: want both flows cut", receipt)
	}
	wantReset(t, flow)
	_, response = r.connect("named.test:"+port, "")
	wantRefused(t, response, http.StatusForbidden, matcher.OwnAddress)

	status, err = r.server.Session(t.Context(), r.session.id)
	if err != nil || status.NoRoute != nil || !slices.Equal(status.Upstreams, []string{second.Addr.String()}) || !slices.Equal(status.Never, []string{"127.0.0.0/8"}) || len(status.Hosts) != 0 {
		t.Errorf("status %+v, %v", status, err)
	}
	if n := own.Count(); n != 0 {
		t.Errorf("the proxy's own server was asked %d times", n)
	}
	for _, bad := range []control.SessionSpec{
		{Upstreams: []string{"dns.test"}}, {Upstreams: []string{"192.0.2.1:0"}}, {Never: []string{"192.0.2.1"}},
		{Hosts: map[string][]string{"db": {"db.test"}}}, {Hosts: map[string][]string{"db": {"fe80::1%eth0"}}},
		{NoRoute: []string{"tcp"}},
		{Open: map[string][]string{"gate": {"10.0.0.0/8"}}},
	} {
		if _, err := r.set(r.session.id, bad); !errors.Is(err, control.ErrInvalid) {
			t.Errorf("%+v: got %v, want an invalid request", bad, err)
		}
	}
}
