package forward

import (
	"slices"
	"strings"
	"testing"

	"sluice/matcher"
)

// Cases I-19, I-20, I-25, I-30..I-34, I-71: what could be read in two ways is refused before anybody is judged.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	const host = " HTTP/1.1\r\nHost: ok.test\r\n"
	tests := []struct {
		name, request string
		status        int
	}{
		{"userinfo", "GET http://ok.test:80@evil.test/" + host + "\r\n", 400},
		{"userinfo-empty", "GET http://@ok.test/" + host + "\r\n", 400},
		{"userinfo-backslash", `GET http://ok.test\@evil.test/` + host + "\r\n", 400},
		{"backslash", `GET http://ok.test\.evil.test/` + host + "\r\n", 400},
		{"brackets-round-name", "GET http://[ok.test]/" + host + "\r\n", 400},
		{"brackets-round-ipv4", "GET http://[127.0.0.1]/" + host + "\r\n", 400},
		{"brackets-left-open", "GET http://[::1/" + host + "\r\n", 400},
		{"brackets-twice", "GET http://[[::1]]/" + host + "\r\n", 400},
		{"brackets-then-text", "GET http://[::1]80/" + host + "\r\n", 400},
		{"ipv6-without-brackets", "GET http://2001:db8::1/" + host + "\r\n", 400},
		{"ipv6-zone", "GET http://[fe80::1%25eth0]/" + host + "\r\n", 400},
		{"percent-encoded-host", "GET http://ok%2etest/" + host + "\r\n", 400},
		{"full-width-host", "GET http://ｏk.test/" + host + "\r\n", 400},
		{"ideographic-dot", "GET http://ok。test/" + host + "\r\n", 400},
		{"two-dots-at-the-end", "GET http://ok.test../" + host + "\r\n", 400},
		{"dot-at-the-start", "GET http://.ok.test/" + host + "\r\n", 400},
		{"comma-in-host", "GET http://ok.test,evil.test/" + host + "\r\n", 400},
		{"no-host", "GET http:///path" + host + "\r\n", 400},
		{"long-label", "GET http://" + strings.Repeat("a", 64) + ".test/" + host + "\r\n", 400},
		{"long-name", "GET http://" + strings.Repeat("a.", 126) + "ab/" + host + "\r\n", 400},
		{"port-zero", "GET http://ok.test:0/" + host + "\r\n", 400},
		{"port-empty", "GET http://ok.test:/" + host + "\r\n", 400},
		{"port-too-large", "GET http://ok.test:65616/" + host + "\r\n", 400},
		{"port-with-sign", "GET http://ok.test:+80/" + host + "\r\n", 400},
		{"port-with-zeros", "GET http://ok.test:080/" + host + "\r\n", 400},
		{"fragment", "GET http://ok.test/#x" + host + "\r\n", 400},
		{"path-only", "GET /" + host + "\r\n", 400},
		{"authority-only", "GET ok.test:80" + host + "\r\n", 400},
		{"https", "GET https://ok.test/" + host + "\r\n", 400},
		{"ftp", "GET ftp://ok.test/" + host + "\r\n", 400},
		{"asterisk", "OPTIONS *" + host + "\r\n", 400},
		{"bad-escape-in-double-slash-path", "GET http://ok.test//%zz" + host + "\r\n", 400},

		{"http2-preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
		{"http09", "GET http://ok.test/\r\n\r\n", 400},
		{"http2-version", "GET http://ok.test/ HTTP/2.0\r\nHost: ok.test\r\n\r\n", 400},
		{"lower-case-version", "GET http://ok.test/ http/1.1\r\nHost: ok.test\r\n\r\n", 400},
		{"two-spaces", "GET  http://ok.test/" + host + "\r\n", 400},
		{"tab", "GET\thttp://ok.test/" + host + "\r\n", 400},
		{"space-in-target", "GET http://ok.test/a b" + host + "\r\n", 400},
		{"space-before-method", " GET http://ok.test/" + host + "\r\n", 400},
		{"method-is-no-token", "G(T http://ok.test/" + host + "\r\n", 400},
		{"control-in-target", "GET http://ok.test/\x01" + host + "\r\n", 400},

		{"no-host-field", "GET http://ok.test/ HTTP/1.1\r\n\r\n", 400},
		{"two-host-fields", "GET http://ok.test/" + host + "Host: ok.test\r\n\r\n", 400},
		{"two-host-fields-of-other-case", "GET http://ok.test/" + host + "hOST: evil.test\r\n\r\n", 400},
		{"joined-host-field", "GET http://ok.test/ HTTP/1.1\r\nHost: ok.test, evil.test\r\n\r\n", 400},
		{"folded-host-field", "GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n .evil.test\r\n\r\n", 400},
		{"host-field-on-the-next-line", "GET http://ok.test/ HTTP/1.1\r\nHost:\r\n\tok.test\r\n\r\n", 400},
		{"host-field-with-user", "GET http://ok.test/ HTTP/1.1\r\nHost: user@ok.test\r\n\r\n", 400},
		{"host-field-in-brackets", "GET http://ok.test/ HTTP/1.1\r\nHost: [ok.test]\r\n\r\n", 400},
		{"space-before-colon", "GET http://ok.test/ HTTP/1.1\r\nHost : ok.test\r\n\r\n", 400},
		{"space-before-field", "GET http://ok.test/ HTTP/1.1\r\n Host: ok.test\r\n\r\n", 400},
		{"no-colon", "GET http://ok.test/" + host + "Accept\r\n\r\n", 400},
		{"no-field-name", "GET http://ok.test/" + host + ": x\r\n\r\n", 400},
		{"cr-in-field", "GET http://ok.test/" + host + "Accept: a\rHost: evil.test\r\n\r\n", 400},
		{"nul-in-field", "GET http://ok.test/" + host + "Accept: a\x00\r\n\r\n", 400},

		{"length-and-chunked", "POST http://ok.test/" + host + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://evil.test/" + host + "\r\n", 400},
		{"two-lengths", "POST http://ok.test/" + host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
		{"equal-lengths", "POST http://ok.test/" + host + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
		{"joined-lengths", "POST http://ok.test/" + host + "Content-Length: 1, 1\r\n\r\n", 400},
		{"negative-length", "POST http://ok.test/" + host + "Content-Length: -1\r\n\r\n", 400},
		{"signed-length", "POST http://ok.test/" + host + "Content-Length: +1\r\n\r\n", 400},
		{"huge-length", "POST http://ok.test/" + host + "Content-Length: 9223372036854775808\r\n\r\n", 400},
		{"empty-length", "POST http://ok.test/" + host + "Content-Length:\r\n\r\n", 400},
		{"two-encodings", "POST http://ok.test/" + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
		{"joined-encodings", "POST http://ok.test/" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
		{"identity", "POST http://ok.test/" + host + "Transfer-Encoding: identity\r\n\r\n", 501},
		{"kelvin-sign-chunked", "POST http://ok.test/" + host + "Transfer-Encoding: chun\u212aed\r\n\r\n", 501},
		{"chunked-in-http10", "POST http://ok.test/ HTTP/1.0\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
		{"unknown-expectation", "GET http://ok.test/" + host + "Expect: 200-ok\r\n\r\n", 417},
		{"websocket-post", "POST http://ok.test/" + host + "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", 400},
		{"websocket-with-body", "GET http://ok.test/" + host + "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\nx", 400},
		{"connect-on-a-used-connection", "CONNECT ok.test:443" + host + "\r\n", 400},
	}
	p := newProxy(t, "ok.test:80", site(t, "ok")).start()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := p.client()
			a := c.get(test.request)
			if a.StatusCode != test.status {
				t.Fatalf("got %d %q, want %d", a.StatusCode, a.body, test.status)
			}
			told := p.gate.refused()
			if id := a.Header.Get("Sluice-Decision"); id == "" || id != told.refusal.Decision || !strings.Contains(a.body, id) {
				t.Errorf("the answer has decision %q, the audit %q", id, told.refusal.Decision)
			}
			if !strings.HasPrefix(a.Header.Get("Proxy-Status"), "sluice; error=http_request_error; details=") {
				t.Errorf("Proxy-Status is %q", a.Header.Get("Proxy-Status"))
			}
		})
	}
	if seen := p.gate.seen(); len(seen) > 0 {
		t.Errorf("judged %q", seen)
	}
}

// What is odd but can be read in one way only is served.
func TestOddRequestsAreServed(t *testing.T) {
	t.Parallel()
	const host = " HTTP/1.1\r\nHost: ok.test\r\n"
	tests := []struct{ name, request, target, line string }{
		{"blank-lines-before", "\r\n\n\r\nGET http://ok.test/" + host + "\r\n", "ok.test:80", "GET / "},
		{"lf-only", "GET http://ok.test/ HTTP/1.1\nHost: ok.test\n\n", "ok.test:80", "GET / "},
		{"upper-case", "GET HTTP://OK.TEST/A" + host + "\r\n", "ok.test:80", "GET /A "},
		{"dot-at-the-end", "GET http://ok.test./" + host + "\r\n", "ok.test:80", "GET / "},
		{"default-port-written", "GET http://ok.test:80/" + host + "\r\n", "ok.test:80", "GET / "},
		{"other-host-field", "GET http://ok.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", "ok.test:80", "GET / "},
		{"empty-host-field", "GET http://ok.test/ HTTP/1.1\r\nHost:\r\n\r\n", "ok.test:80", "GET / "},
		{"no-path", "GET http://ok.test" + host + "\r\n", "ok.test:80", "GET / "},
		{"query-without-path", "GET http://ok.test?q" + host + "\r\n", "ok.test:80", "GET /?q "},
		{"double-slash", "GET http://ok.test//evil.test/%41?q=//" + host + "\r\n", "ok.test:80", "GET //evil.test/%41?q=// "},
		{"bytes-kept", "GET http://ok.test/\xff|%zz/../?a=http://evil.test" + host + "\r\n", "ok.test:80", "GET /\xff|%zz/../?a=http://evil.test "},
		{"options-for-the-server", "OPTIONS http://ok.test" + host + "\r\n", "ok.test:80", "OPTIONS * "},
		{"options-for-a-path", "OPTIONS http://ok.test/" + host + "\r\n", "ok.test:80", "OPTIONS / "},
		{"unknown-method", "PURGE http://ok.test/" + host + "\r\n", "ok.test:80", "PURGE / "},
		{"ipv6", "GET http://[2001:DB8:0::1]:8080/" + host + "\r\n", "[2001:db8::1]:8080", "GET / "},
		{"ipv4", "GET http://192.0.2.1/" + host + "\r\n", "192.0.2.1:80", "GET / "},
		{"underscore", "GET http://a_b.test/" + host + "\r\n", "a_b.test:80", "GET / "},
	}
	server := listenEcho(t)
	p := newProxy(t, "ok.test:80", server, "[2001:db8::1]:8080", server, "192.0.2.1:80", server, "a_b.test:80", server).start()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := p.client().get(test.request)
			line, rest, _ := strings.Cut(a.body, "\n")
			if want := test.line + "HTTP/1.1"; a.StatusCode != 200 || line != want {
				t.Fatalf("got %d %q, want a server that is asked %q", a.StatusCode, a.body, want)
			}
			seen := p.gate.seen()
			if got := seen[len(seen)-1]; got != test.target {
				t.Errorf("judged %q, want %q", got, test.target)
			}
			sent, _, _ := strings.Cut(strings.TrimPrefix(rest, "Host: "), "\n")
			if sent != test.target && sent+":80" != test.target {
				t.Errorf("the server saw Host %q, and %q was judged", sent, test.target)
			}
		})
	}
}

// A tunnel's requests name their host in the Host field (case I-26), or in the target.
func TestTunnelRequests(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, request, target string
		status                int
	}{
		{"path", "GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n", "ok.test:8080", 200},
		{"path-and-port", "GET / HTTP/1.1\r\nHost: ok.test:81\r\n\r\n", "ok.test:81", 200},
		{"other-host", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "evil.test:8080", 403},
		{"other-url", "GET http://evil.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n", "evil.test:80", 403},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: ok.test\r\n\r\n", "ok.test:8080", 200},
		{"http10-without-host", "GET / HTTP/1.0\r\n\r\n", "tunnel.test:8080", 200},
		{"empty-host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "", 400},
		{"asterisk-for-get", "GET * HTTP/1.1\r\nHost: ok.test\r\n\r\n", "", 400},
		{"credentials-are-not-asked-for", "GET / HTTP/1.1\r\nHost: ok.test\r\nProxy-Authorization: x\r\n\r\n", "ok.test:8080", 200},
		{"connect", "CONNECT evil.test:443 HTTP/1.1\r\nHost: ok.test\r\n\r\n", "", 403},
	}
	server := listenEcho(t)
	p := newProxy(t, "ok.test:8080", server, "ok.test:81", server, "tunnel.test:8080", server)
	p.conn.Mode, p.conn.Host, p.conn.Port = Tunnel, "tunnel.test", 8080
	p.conn.Authorize = func(string) bool { return false }
	p.start()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := len(p.gate.seen())
			a := p.client().get(test.request)
			if a.StatusCode != test.status {
				t.Fatalf("got %d %q, want %d", a.StatusCode, a.body, test.status)
			}
			if got := strings.Join(p.gate.seen()[before:], " "); got != test.target {
				t.Errorf("judged %q, want %q", got, test.target)
			}
			if strings.Contains(a.body, "Proxy-Authorization") {
				t.Errorf("the server saw %q", a.body)
			}
		})
	}
	if last := p.gate.refused().refusal.Reason; last != NestedConnect {
		t.Errorf("the reason is %q", last)
	}
}

// Cases I-34, I-35, I-36: what is for the proxy, or for one connection only, stays here.
func TestFieldsThatStay(t *testing.T) {
	t.Parallel()
	const secret = "c2VjcmV0OnRva2Vu"
	p := newProxy(t, "ok.test:80", listenEcho(t)).start()
	for _, upgrade := range []string{"", "Upgrade: websocket\r\nSec-WebSocket-Key: key\r\n"} {
		a := p.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n" + upgrade +
			"Connection: keep-alive, X-Secret\r\nConnection: Upgrade,HTTP2-Settings\r\nX-Secret: 1\r\nKeep-Alive: 5\r\n" +
			"TE: trailers\r\nTrailer: X-T\r\nHTTP2-Settings: AAMAAABk\r\n" +
			"Proxy-Authorization: Basic " + secret + "\r\nProxy-Connection: keep-alive\r\nX-Stays: 1\r\n\r\n")
		var names []string
		for _, line := range strings.Split(strings.TrimSpace(a.body), "\n")[1:] {
			name, _, _ := strings.Cut(line, ":")
			names = append(names, name)
		}
		want := []string{"Host", "X-Stays"}
		if upgrade != "" {
			want = []string{"Connection", "Host", "Sec-Websocket-Key", "Upgrade", "X-Stays"}
			if !strings.Contains(a.body, "Connection: Upgrade\nSec") || !strings.Contains(a.body, "Upgrade: websocket\n") {
				t.Errorf("the upgrade was sent as %q", a.body)
			}
		}
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("the server saw %q, want %q", names, want)
		}
	}
}

// Upgrades to anything but WebSocket are refused, or not passed on where a server may ignore them too.
func TestUpgradesToOtherProtocols(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, fields string
		reason       matcher.Reason
	}{
		{"invented", "Connection: upgrade\r\nUpgrade: tunnel\r\n", Upgrade},
		{"invented-beside-h2c", "Connection: upgrade\r\nUpgrade: h2c, tunnel\r\n", Upgrade},
		{"h2c", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n", ""},
		{"tls", "Connection: Upgrade\r\nUpgrade: TLS/1.2\r\n", ""},
		{"not-named-in-connection", "Upgrade: tunnel\r\n", ""},
	}
	p := newProxy(t, "ok.test:80", listenEcho(t)).start()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := p.client().get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n" + test.fields + "\r\n")
			if test.reason != "" {
				if told := p.gate.refused(); a.StatusCode != 403 || told.refusal.Reason != test.reason || told.refusal.Target != "ok.test:80" {
					t.Errorf("got %d, and the audit %+v", a.StatusCode, told)
				}
				return
			}
			if want := "GET / HTTP/1.1\nHost: ok.test\n"; a.body != want {
				t.Errorf("the server saw %q, want %q", a.body, want)
			}
		})
	}
}
