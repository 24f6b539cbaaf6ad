package dns

import (
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"sluice/proxy/dnstest"
)

// What the client is told is learned before it is told; what is taken out of an answer is not.
func TestLearn(t *testing.T) {
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		if q.Type != dns.TypeA {
			return q.Records(q.Name + " 60 AAAA 2001:db8::1")
		}
		return q.Records(q.Name+" 60 CNAME cdn.test.", "cdn.test. 60 A 192.0.2.1", "cdn.test. 60 A 127.0.0.1", "cdn.test. 60 A 192.0.2.2")
	})
	var mu sync.Mutex
	var learned []string
	f := newFilter(t, allow("ok.test"), Options{Learn: func(name []byte, a netip.Addr) {
		mu.Lock()
		defer mu.Unlock()
		learned = append(learned, string(name)+" "+a.String())
	}}, up.Addr)
	f.ask("OK.test", dns.TypeA)
	f.ask("ok.test", dns.TypeAAAA)
	f.ask("evil.test", dns.TypeA)
	mu.Lock()
	defer mu.Unlock()
	want := []string{"ok.test 192.0.2.1", "ok.test 192.0.2.2", "ok.test 2001:db8::1"}
	if !slices.Equal(learned, want) {
		t.Errorf("learned %q, want %q", learned, want)
	}
}
