package sniff

import (
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	http, bad := Result{Kind: HTTP1}, Result{Kind: HTTP1, Malformed: true}
	ssh, other := Result{Kind: SSH}, Result{Kind: Other}
	proxy, more := Result{Kind: Other, ProxyHeader: true}, Result{}
	long := strings.Repeat("a", MaxLine)
	for _, row := range []struct {
		name, b string
		want    Result
	}{
		{"get", "GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n", http},
		{"get-1.0", "GET / HTTP/1.0\r\n", http},
		{"lf-only", "GET / HTTP/1.1\n", http},
		{"custom-method", "X-~!'*+.^`|%#&$_9 /x HTTP/1.1\r\n", http},
		{"lower-case", "get / http/1.1\r\n", http},
		{"absolute-form", "GET http://ok.test/ HTTP/1.1\r\n", http},
		{"authority-form", "CONNECT ok.test:443 HTTP/1.1\r\n", http},
		{"asterisk-form", "OPTIONS * HTTP/1.1\r\n", http},
		{"leading-crlf", "\r\n\r\nGET / HTTP/1.1\r\n", http},
		{"leading-lf", "\nGET / HTTP/1.1\r\n", http},
		{"leading-blanks", " \t\v\fGET / HTTP/1.1\r\n", http},
		{"tabs-between-words", "GET\t/\tHTTP/1.1\r\n", http},
		{"bare-cr-between-words", "GET\r/\rHTTP/1.1\r\n", http},
		{"space-at-end", "GET / HTTP/1.1 \r\n", http},
		{"word-behind-version", "GET / HTTP/1.1 x\r\n", http},
		{"blanks-in-target", "GET /a b c HTTP/1.1\r\n", http},
		{"utf8-target", "GET /\u00fc\xff HTTP/1.1\r\n", http},
		{"unknown-version", "GET / HTTP/7.x\r\n", http},
		{"method-that-looks-like-ssh", "SSH-2.0-OpenSSH / HTTP/1.1\r\n", http},
		{"method-proxy", "PROXY TCP4 HTTP/1.1\r\n", http},
		{"http2-method-with-other-target", "PRI / HTTP/2.0\r\n\r\nSM\r\n\r\n", http},
		{"http2-preface-behind-crlf", "\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", http},
		{"line-longer-than-looked-at", "GET /" + long, http},
		{"no-line-end", "GET / HTTP/1.1", more},
		{"bare-cr-ends-line", "GET / HTTP/1.1\rHost: ok.test\r\r", bad},
		{"bare-cr-may-end-line", "GET / HTTP/1.1\r", Result{Hold: true}},
		{"bare-cr-ends-path", "GET /\rx", bad},
		{"bare-cr-ends-word", "ATZ\rx", more},
		{"bare-cr-before-version", "ATZ\rGET / HTTP/1.1\r", more},
		{"blanks-only", "\r\n\r\n", more},
		{"word-only", "GET", more},

		{"http-0.9", "GET /x\r\n", bad},
		{"http-0.9-lower-case", "get /x\r\n", bad},
		{"http-0.9-post", "POST /x\r\nHost: evil.test\r\n", bad},
		{"http-0.9-absolute", "GET HTTP://evil.test/\r\n", bad},
		{"http-0.9-wss", "GET wss://evil.test/\r\n", bad},
		{"other-version", "GET /x ICE/1.0\r\n", bad},
		{"control-in-target", "GET /\x01 HTTP/1.1\r\n", bad},
		{"nul-in-target", "GET /\x00 HTTP/1.1\r\n", bad},
		{"del-in-target", "get /\x7f HTTP/1.1\r\n", bad},
		{"method-longer-than-looked-at", long, bad},
		{"blanks-longer-than-looked-at", strings.Repeat("\r\n", MaxLine/2), bad},
		{"ssh-banner-with-path", "SSH-2.0-x /x\r\n", bad},
		{"http2-preface-broken", "PRI * HTTP/2.0\r\n\r\nXM", bad},

		{"http2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04", Result{Kind: HTTP2}},
		{"http2-not-whole", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r", more},

		{"ssh", "SSH-2.0-OpenSSH_9.6\r\n", ssh},
		{"ssh-comment", "SSH-2.0-OpenSSH_9.6 Debian-1\r\n", ssh},
		{"ssh-lf-only", "SSH-2.0-x\n", ssh},
		{"ssh-1.99", "SSH-1.99-x\r\n", ssh},
		{"ssh-longest", "SSH-2.0-" + strings.Repeat("x", 255-8-2) + "\r\n", ssh},
		{"ssh-not-whole", "SSH-2.0-OpenSSH", more},
		{"ssh-too-long", "SSH-2.0-" + strings.Repeat("x", 255-8-1) + "\r\n", other},
		{"ssh-behind-crlf", "\r\nSSH-2.0-x\r\n", other},
		{"ssh-3", "SSH-3.0-x\r\n", other},
		{"ssh-lower-case", "ssh-2.0-x\r\n", other},

		{"proxy-v1", "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\n", proxy},
		{"proxy-v1-ipv6", "PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n", proxy},
		{"proxy-v1-unknown", "PROXY UNKNOWN\r\n", proxy},
		{"proxy-v2", "\r\n\r\n\x00\r\nQUIT\n\x21\x11", proxy},
		{"proxy-v2-first-five", "\r\n\r\n\x00", proxy},
		{"nul-behind-blanks", "\r\n\x00", other},

		{"smtp", "EHLO client.test\r\n", other},
		{"smtp-address", "EHLO [192.0.2.1]\r\n", other},
		{"ftp", "USER anonymous\r\n", other},
		{"imap", "a1 LOGIN u p\r\n", other},
		{"irc", "NICK x\r\n", other},
		{"redis", "*1\r\n$4\r\nPING\r\n", other},
		{"redis-inline", "GET foo\r\n", other},
		{"memcached", "get foo\r\n", other},
		{"stomp", "CONNECT\naccept-version:1.2\n\n\x00", other},
		{"nats", "CONNECT {\"verbose\":false}\r\n", other},
		{"rtsp", "OPTIONS rtsp://ok.test/x RTSP/1.0\r\n", other},
		{"sip", "REGISTER sip:ok.test SIP/2.0\r\n", other},
		{"vnc", "RFB 003.008\n", other},
		{"git", "0031git-upload-pack /x.git\x00host=ok.test\x00", other},
		{"binary-behind-two-letters", "ab \x00", other},
		{"ldap-bind", "\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\x00\x80\x00", other},
	} {
		t.Run(row.name, func(t *testing.T) {
			check(t, Classify([]byte(row.b), false), row.want)
			check(t, feed(t, []byte(row.b)), row.want)
		})
	}
}

// Bytes that can be neither TLS nor HTTP are Other at the last byte of each row, and not before.
func TestDecidedAtOnce(t *testing.T) {
	for _, row := range []struct{ name, b string }{
		{"postgres", "\x00"},
		{"mysql", "\x20\x00"},
		{"mysql-of-0x16-bytes", "\x16\x00\x00\x01\x85\xa6"},
		{"mqtt", "\x10"},
		{"socks5", "\x05"},
		{"rdp", "\x03"},
		{"tds", "\x12"},
		{"bittorrent", "\x13"},
		{"dns-over-tcp", "\x00"},
		{"telnet", "\xff"},
		{"bitcoin", "\xf9"},
		{"thrift", "\x80\x01\x00"},
		{"amqp", "AMQP\x00"},
		{"x11", "l\x00"},
		{"xmpp", "<"},
		{"rsync", "@"},
		{"svn", "("},
		{"json", "{"},
		{"gopher", "/"},
		{"http-response", "HTTP/"},
		{"redis", "*1\r\n"},
		{"smtp", "EHLO client.test\r\n"},
		{"ldap", "\x30\x0c\x02"},
		{"not-a-record", "\x16\x10"},
		{"not-an-sslv2-hello", "\x80\x2e\x02"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := []byte(row.b)
			for n := range b {
				check(t, Classify(b[:n], false), Result{})
			}
			check(t, Classify(b, false), Result{Kind: Other})
		})
	}
}

func TestEndOfInput(t *testing.T) {
	for _, row := range []struct {
		name, b string
		want    Result
	}{
		{"nothing", "", Result{Kind: Other}},
		{"blanks", "\r\n", Result{Kind: Other}},
		{"word", "ruok", Result{Kind: Other}},
		{"greeting", "EHLO ok.test", Result{Kind: Other}},
		{"request", "GET / HTTP/1.1", Result{Kind: HTTP1}},
		{"http-0.9", "GET /", Result{Kind: HTTP1, Malformed: true}},
		{"ssh", "SSH-2.0-x", Result{Kind: SSH}},
		{"preface", "PRI * HTTP/2.0\r\n\r\n", Result{Kind: HTTP1, Malformed: true}},
		{"record-type", "\x16", Result{Kind: Other}},
		{"record-header", "\x16\x03\x01\x00", Result{Kind: TLS, Malformed: true}},
		{"alert-header", "\x15\x00\x00", Result{Kind: Other}},
		{"sslv2-header", "\x80\x2e\x01", Result{Kind: Other}},
	} {
		t.Run(row.name, func(t *testing.T) {
			check(t, Classify([]byte(row.b), true), row.want)
		})
	}
}

func TestKindNames(t *testing.T) {
	names := map[Kind]string{Incomplete: "incomplete", TLS: "tls", HTTP1: "http", HTTP2: "http2", SSH: "ssh", Other: "other"}
	for k, want := range names {
		if got := k.String(); got != want {
			t.Errorf("%d: %q, want %q", k, got, want)
		}
	}
}
