package proxy

import (
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"sluice/proxy/dnstest"
)

// All connections share one run of look-ups, however many there are, and another one begins only after a while or for
// another policy.
func TestExactNamesAreLookedUpOnce(t *testing.T) {
	release := make(chan struct{})
	server := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		<-release
		if q.Type != dns.TypeA {
			return q.Records()
		}
		return q.Records(q.Name + " 60 A 192.0.2.1")
	})
	r := start(t, allow("ok.test"), Config{Upstreams: []netip.AddrPort{server.Addr}})
	done := make(chan struct{})
	learn := func() bool { return r.session.learnExact(r.session.rules(), func() { done <- struct{}{} }) }
	const n = 50
	for range n {
		if !learn() {
			t.Fatal("not looked up")
		}
	}
	close(release)
	for range n {
		<-done
	}
	if learn() {
		t.Error("looked up again at once")
	}
	if got := r.session.learned.of(netip.MustParseAddr("192.0.2.1")); len(got) != 1 {
		t.Errorf("learned %v", got)
	}
	r.apply(allow("ok.test", "other.test"))
	if !learn() {
		t.Error("not looked up for another policy")
	}
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
