package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/policy"
	dnsfilter "sluice/proxy/dns"
	"sluice/proxy/dnstest"
)

// TestNamesThroughTheProxyCount: who may not ask for more names by DNS may not make the proxy ask for them either, by
// CONNECT, a URL, a request in a tunnel or a server name. [I-06]
func TestNamesThroughTheProxyCount(t *testing.T) {
	port := listen(t, echo)
	var asked atomic.Int32 // for the fourth name
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		if strings.HasPrefix(q.Name, "n3.") {
			asked.Add(1)
		}
		if q.Type != dns.TypeA {
			return q.Records()
		}
		return q.Records(q.Name + " 0 A 127.0.0.1")
	})
	document := `{"network_mode":"allowlist","allowed_hosts":["*.wild.test","fixed.test"],"dns_unique_names":3}`
	name := func(i int) string { return fmt.Sprintf("n%d.wild.test", i) }
	exhaust := func(r *rig) {
		r.Helper()
		for i := range 3 {
			if c, response := r.connect(name(i)+":"+port, ""); response.StatusCode != 200 {
				r.Fatalf("%d: %s", i, response.Status)
			} else {
				c.Close()
			}
		}
	}
	check := func(r *rig) {
		r.Helper()
		if n := asked.Load(); n > 0 {
			r.Errorf("the name server was asked for a fourth name %d times", n)
		}
		if names, _ := r.session.rules().budget.Spent(); names != 3 {
			r.Errorf("%d names were counted", names)
		}
	}
	config := Config{Upstreams: []netip.AddrPort{up.Addr}}

	t.Run("connect", func(t *testing.T) {
		r, records := startAudited(t, document, config)
		exhaust(r)
		_, response := r.connect(name(3)+":"+port, "")
		wantRefused(t, response, 403, dnsfilter.ReasonNameBudget)
		check(r)
		if c, response := r.connect("fixed.test:"+port, ""); response.StatusCode != 200 {
			t.Errorf("a name that is no wildcard's: %s", response.Status)
		} else {
			c.Close()
		}
		found := false
		for _, one := range records() {
			found = found || one.Reason == string(dnsfilter.ReasonNameBudget) && one.Verdict == "refuse" &&
				one.Decision == response.Header.Get("Sluice-Decision")
		}
		if !found {
			t.Error("the audit has no record of the refusal")
		}
	})
	t.Run("url", func(t *testing.T) {
		r := start(t, document, config)
		exhaust(r)
		status, body := r.open().ask(t, "GET http://"+name(3)+":"+port+"/ HTTP/1.1\r\nHost: "+name(3)+":"+port+"\r\n\r\n")
		if status != 403 || !strings.Contains(body, "dns_unique_names") {
			t.Errorf("%d %q", status, body)
		}
		check(r)
	})
	t.Run("request-in-tunnel", func(t *testing.T) {
		r := start(t, document, config)
		exhaust(r)
		c, response := r.connect("fixed.test:"+port, "")
		if response.StatusCode != 200 {
			t.Fatal(response.Status)
		}
		status, body := c.ask(t, "GET / HTTP/1.1\r\nHost: "+name(3)+":"+port+"\r\n\r\n")
		if status != 403 || !strings.Contains(body, "dns_unique_names") {
			t.Errorf("%d %q", status, body)
		}
		check(r)
	})
	t.Run("server-name", func(t *testing.T) {
		r := start(t, document, config)
		exhaust(r)
		c, response := r.connect("fixed.test:"+port, "")
		if response.StatusCode != 200 {
			t.Fatal(response.Status)
		}
		if _, err := c.Write([]byte(clientHello(t, name(3)))); err != nil {
			t.Fatal(err)
		}
		wantReset(t, c)
		check(r)
	})
	t.Run("redirected-server-name", func(t *testing.T) {
		r := start(t, document, config)
		exhaust(r)
		r.redirect("127.0.0.1:" + port)
		c, err := net.Dial("tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Write([]byte(clientHello(t, name(3)))); err != nil {
			t.Fatal(err)
		}
		wantReset(t, c)
		check(r)
	})
	t.Run("surroundings-change", func(t *testing.T) {
		r := start(t, document, config)
		exhaust(r)
		never := &Surroundings{Never: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
		if receipt, err := r.session.Apply(context.Background(), Change{Around: never}); err != nil || receipt.Unchanged {
			t.Fatalf("%+v, %v", receipt, err)
		}
		_, response := r.connect(name(3)+":"+port, "")
		wantRefused(t, response, 403, dnsfilter.ReasonNameBudget)
		run := policy.Run
		if _, err := r.session.Apply(context.Background(), Change{Phase: &run}); err != nil {
			t.Fatal(err)
		}
		if c, response := r.connect(name(3)+":"+port, ""); response.StatusCode != 200 {
			t.Errorf("the next phase has no budget of its own: %s", response.Status)
		} else {
			c.Close()
		}
	})
}
