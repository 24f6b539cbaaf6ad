package proxy

import (
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"sluice/proxy/dnstest"
)

// All connections that wait share one run of look-ups, however many there are. Another policy has its own.
func TestExactNamesAreLookedUpOnce(t *testing.T) {
	looking, release := make(chan struct{}, 100), make(chan struct{})
	server := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		looking <- struct{}{}
		<-release
		if q.Type != dns.TypeA {
			return q.Records()
		}
		return q.Records(q.Name + " 60 A 192.0.2.1")
	})
	r := start(t, allow("ok.test"), Config{Upstreams: []netip.AddrPort{server.Addr}})
	done := make(chan struct{})
	learn := func() { r.session.learnExact(r.session.rules(), func() { done <- struct{}{} }) }
	const n = 50
	learn()
	<-looking
	before := runtime.NumGoroutine()
	for range n {
		learn()
	}
	if more := runtime.NumGoroutine() - before; more > n/2 {
		t.Errorf("%d goroutines more for %d connections", more, n)
	}
	r.apply(allow("ok.test", "other.test"))
	learn()
	close(release)
	for range n + 2 {
		<-done
	}
	for _, name := range []string{"ok.test", "other.test"} {
		if known := r.session.learned.of(netip.MustParseAddr("192.0.2.1")); !slices.Contains(known, name) {
			t.Errorf("learned %v, without %s", known, name)
		}
	}
	learn() // again, for what is asked from now on
	<-done
}

// A container that tries address after address costs no look-ups for each.
func TestScanIsRefused(t *testing.T) {
	port := listen(t, func(c net.Conn) { t.Error("connected") })
	r := start(t, allow("ok.test"), Config{Hosts: names{"ok.test": {"127.0.0.9"}}.hosts})
	r.redirect("127.0.0.1:" + port)
	for range 200 {
		conn := r.dial()
		if _, err := conn.Write([]byte("\x00")); err == nil {
			wantReset(t, conn)
		}
		conn.Close()
	}
}
