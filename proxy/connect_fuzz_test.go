package proxy

import (
	"bytes"
	"strings"
	"testing"
)

// What parseAuthority takes, it must take in only one way: printing and parsing it again gives the same, and no
// character of it can mean something else to a resolver or a URL parser.
func FuzzAuthority(f *testing.F) {
	for _, seed := range []string{
		"ok.test:443", "OK.TEST.:443", "127.0.0.1:1", "[::1]:65535", "[::ffff:1.2.3.4]:80", "ok.test@evil.test:443",
		"127.1:80", "[fe80::1%eth0]:1", "a..:1", "::1:80", "x:0443", "x:+443", "[x]:1", "ok.test:443:443", "\x00:1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := parseAuthority(s)
		if err != nil {
			return
		}
		if e.port == 0 || e.host == "" {
			t.Fatalf("%q gave %+v", s, e)
		}
		if e.addr.IsValid() {
			if e.addr.Is4In6() || e.addr.Zone() != "" {
				t.Errorf("%q gave the address %v", s, e.addr)
			}
		} else if strings.ContainsAny(e.host, "@/\\?#[]:% \t\r\n\x00") || strings.HasSuffix(e.host, ".") {
			t.Errorf("%q gave the host %q", s, e.host)
		}
		again, err := parseAuthority(e.String())
		if err != nil || again.String() != e.String() {
			t.Errorf("%q gave %v, which gives %v, %v", s, e, again, err)
		}
	})
}

// A head that is accepted holds one CONNECT line and nothing that another reader could take for a second request.
func FuzzConnectHead(f *testing.F) {
	for _, seed := range []string{
		"CONNECT a.test:1 HTTP/1.1\r\nHost: a.test:1\r\n\r\n",
		"CONNECT a.test:1 HTTP/1.1\r\nProxy-Authorization: Basic eDp5\r\n\r\n",
		"CONNECT a.test:1 HTTP/1.1\r\nA: b\n\r\n\r\n", "CONNECT a.test:1 HTTP/1.1\r\n\r\n\r\n", "connect a HTTP/1.0\r\n\r\n",
		"CONNECT a.test:1 HTTP/1.1\r\nA\r\n\r\n", "CONNECT a.test:1 HTTP/1.1\rX: y\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, head []byte) {
		end := bytes.Index(head, headEnd)
		if end < 0 {
			return
		}
		head = head[:end+len(headEnd)]
		r, err := parseConnect(head)
		if err != nil {
			return
		}
		if _, err := parseAuthority(string(r.authority)); err != nil {
			return
		}
		line, rest, _ := bytes.Cut(head, []byte("\r\n"))
		if !bytes.Contains(line, r.authority) || bytes.ContainsAny(r.authority, " \r\n") || bytes.ContainsAny(line, "\r\n\x00") {
			t.Errorf("accepted the request line %q", line)
		}
		for field := range bytes.SplitSeq(bytes.TrimSuffix(rest, []byte("\r\n")), []byte("\r\n")) {
			if len(field) > 0 && (bytes.ContainsAny(field, "\r\n\x00") || !bytes.Contains(field, []byte(":"))) {
				t.Errorf("accepted the field %q", field)
			}
		}
	})
}
