package proxy

import (
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"sluice/proxy/dnstest"
)

// A look-up under way of a name that a switch refuses ends with it: no name server is asked again, and the client hears at
// once. One of a name that the switch allows goes on.
func TestSwitchEndsLookups(t *testing.T) {
	hello := clientHello(t, "ok.test")
	for name, c := range map[string]struct {
		direct bool
		says   string
		then   string
		asked  int // questions in all: each of the two families', and again when there was no answer
	}{
		"connect":    {false, "CONNECT ok.test:1 HTTP/1.1\r\n\r\n", allow("other.test"), 2},
		"http":       {false, "GET http://ok.test:1/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", allow("other.test"), 2},
		"no-network": {false, "CONNECT ok.test:1 HTTP/1.1\r\n\r\n", `"no-network"`, 2},
		"redirected": {true, hello, allow("other.test"), 2},
		"allowed":    {false, "CONNECT ok.test:1 HTTP/1.1\r\n\r\n", allow("ok.test", "other.test"), 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			silent := dnstest.New(t, func(dnstest.Query) *dns.Msg { return nil })
			r := start(t, allow("ok.test"), Config{Upstreams: []netip.AddrPort{silent.Addr}, Workers: 1})
			if c.direct {
				r.redirect("127.0.0.1:1")
			}
			client := r.dial()
			if _, err := io.WriteString(client, c.says); err != nil {
				t.Fatal(err)
			}
			silent.Wait(t, 2)
			r.apply(c.then)
			_ = client.CloseWrite()
			text, _ := io.ReadAll(client)
			want := http.StatusText(http.StatusForbidden)
			if c.asked > 2 {
				want = http.StatusText(http.StatusGatewayTimeout)
			}
			if !c.direct && !strings.Contains(string(text), want) {
				t.Errorf("the answer is %q; want %s", text, want)
			}
			// The switch may come late, but not after the last time.
			if n := silent.Count(); n != c.asked && (c.asked != 2 || n >= 8) {
				t.Errorf("%d questions were asked; want %d", n, c.asked)
			}
			r.wantConnections(0)
		})
	}
}
