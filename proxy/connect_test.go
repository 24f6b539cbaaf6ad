package proxy

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/matcher"
)

func TestConnect(t *testing.T) {
	port := listen(t, echo)
	known := names{"ok.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}}
	r := start(t, allow("ok.test", "127.0.0.1:"+port), Config{Hosts: known.hosts})
	for _, authority := range []string{"ok.test:" + port, "OK.Test.:" + port, "127.0.0.1:" + port, "[::ffff:127.0.0.1]:" + port} {
		t.Run(authority, func(t *testing.T) {
			c, response := r.connect(authority, "")
			if response.StatusCode != 200 {
				t.Fatal(response.Status)
			}
			wantEcho(t, c, "hello\n")
		})
	}
	for authority, want := range map[string]struct {
		status int
		reason matcher.Reason
	}{
		"evil.test:" + port:                {403, matcher.NotListed},
		"127.0.0.2:" + port:                {403, matcher.NotListed},
		"127.0.0.1:1":                      {403, matcher.PortNotListed},
		"unknown.ok.test:1":                {403, matcher.NotListed},
		"ok.test":                          {400, reasonMalformed},
		"ok.test:":                         {400, reasonMalformed},
		"ok.test:0":                        {400, reasonMalformed},
		"ok.test:065":                      {400, reasonMalformed},
		"ok.test:65536":                    {400, reasonMalformed},
		"ok.test..:443":                    {400, reasonMalformed},
		"ok.test/p:443":                    {400, reasonMalformed},
		"ok.test@evil.test:443":            {400, reasonMalformed},
		`ok.test\@evil.test:443`:           {400, reasonMalformed},
		"[ok.test]:443":                    {400, reasonMalformed},
		"[127.0.0.1]:443":                  {400, reasonMalformed},
		"[fe80::1%25eth0]:443":             {400, reasonMalformed},
		"::1:443":                          {400, reasonMalformed},
		"127.1:443":                        {400, reasonMalformed},
		"0x7f.1:443":                       {400, reasonMalformed},
		"2130706433:443":                   {400, reasonMalformed},
		"127.0.0.01:443":                   {400, reasonMalformed},
		"127。0。0。1:443":                    {400, reasonMalformed},
		"ｅxample.test:443":                 {400, reasonMalformed},
		strings.Repeat("a", 64) + ".x:443": {400, reasonMalformed},
	} {
		t.Run(strings.ReplaceAll(authority, "/", "_"), func(t *testing.T) {
			_, response := r.connect(authority, "")
			wantRefused(t, response, want.status, want.reason)
		})
	}
}

func TestConnectHead(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1:"+port), Config{})
	to := "127.0.0.1:" + port
	for name, c := range map[string]struct {
		raw    string
		status int
		reason matcher.Reason
	}{
		"http10":           {"CONNECT " + to + " HTTP/1.0\r\n\r\n", 200, ""},
		"no-host":          {"CONNECT " + to + " HTTP/1.1\r\n\r\n", 200, ""},
		"other-case":       {"connect " + to + " HTTP/1.1\r\n\r\n", 200, ""},
		"no-version":       {"CONNECT " + to + "\r\n\r\n", 400, reasonMalformed},
		"http2":            {"CONNECT " + to + " HTTP/2.0\r\n\r\n", 400, reasonMalformed},
		"two-hosts":        {"CONNECT " + to + " HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, reasonMalformed},
		"folded":           {"CONNECT " + to + " HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400, reasonMalformed},
		"space-before":     {"CONNECT " + to + " HTTP/1.1\r\nHost : a\r\n\r\n", 400, reasonMalformed},
		"bare-lf":          {"CONNECT " + to + " HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400, reasonMalformed},
		"content-length":   {"CONNECT " + to + " HTTP/1.1\r\nContent-Length: 4\r\n\r\n", 400, reasonMalformed},
		"chunked":          {"CONNECT " + to + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, reasonMalformed},
		"two-spaces":       {"CONNECT  " + to + " HTTP/1.1\r\n\r\n", 400, reasonMalformed},
		"large":            {"CONNECT " + to + " HTTP/1.1\r\nX: " + strings.Repeat("x", 70<<10) + "\r\n\r\n", 431, reasonHeaderSize},
		"large-and-open":   {"CONNECT " + to + " HTTP/1.1\r\nX: " + strings.Repeat("x", 70<<10), 431, reasonHeaderSize},
		"almost-too-large": {"CONNECT " + to + " HTTP/1.1\r\nX: " + strings.Repeat("x", 63<<10) + "\r\n\r\n", 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			client, response := r.send(c.raw)
			if c.status != 200 {
				wantRefused(t, response, c.status, c.reason)
				return
			}
			if response.StatusCode != 200 {
				t.Fatal(response.Status)
			}
			wantEcho(t, client, "ping\n")
		})
	}
	t.Run("one-byte-at-a-time", func(t *testing.T) {
		c := r.dial()
		for _, b := range []byte("CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n\r\nearly\n") {
			if _, err := c.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		want := string(established) + "early\n"
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	})
}

func TestProxyAuthorization(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1:"+port), Config{Personality: Personality{Realm: "the realm"}})
	r.session.SetAuth("user", "pass:word")
	const right = "dXNlcjpwYXNzOndvcmQ=" // user:pass:word
	for name, c := range map[string]struct {
		header string
		status int
	}{
		"right":       {"Proxy-Authorization: Basic " + right, 200},
		"other-case":  {"proxy-authorization: bAsIc   " + right, 200},
		"none":        {"X: y", 407},
		"wrong":       {"Proxy-Authorization: Basic " + right[:19] + "A", 407},
		"prefix":      {"Proxy-Authorization: Basic " + right[:10], 407},
		"empty":       {"Proxy-Authorization:", 407},
		"bearer":      {"Proxy-Authorization: Bearer " + right, 407},
		"twice":       {"Proxy-Authorization: Basic " + right + "\r\nProxy-Authorization: Basic " + right, 400},
		"to-the-host": {"Authorization: Basic " + right, 407},
	} {
		t.Run(name, func(t *testing.T) {
			_, response := r.send("CONNECT 127.0.0.1:" + port + " HTTP/1.1\r\n" + c.header + "\r\n\r\n")
			if response.StatusCode != c.status {
				t.Errorf("got %s, want %d", response.Status, c.status)
			}
			if want := `Basic realm="the realm"`; c.status == 407 && response.Header.Get("Proxy-Authenticate") != want {
				t.Errorf("challenge %q, want %q", response.Header.Get("Proxy-Authenticate"), want)
			}
		})
	}
}

// Case L-01.
func TestBytesBehindConnectAreKept(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1:"+port), Config{})
	for i := range 500 {
		payload := make([]byte, 1+i*40)
		_, _ = rand.Read(payload[1:])
		payload[0] = 0 // neither TLS nor HTTP
		early := len(payload) * (i % 4) / 3
		c, response := r.connect("127.0.0.1:"+port, string(payload[:early]))
		if response.StatusCode != 200 {
			t.Fatal(response.Status)
		}
		go func() {
			_, _ = c.TCPConn.Write(payload[early:])
			_ = c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, payload) {
			t.Fatalf("round %d: %d of %d bytes came back, equal %v, %v", i, len(got), len(payload), bytes.Equal(got, payload), err)
		}
		c.Close()
	}
}

func TestSlowHeadIsEnded(t *testing.T) {
	r := start(t, allow("127.0.0.1"), Config{HeaderTimeout: 50 * time.Millisecond})
	_, response := r.send("CONNECT 127.0.0.1:1 HTTP/1.1\r\n")
	wantRefused(t, response, 408, reasonSlowHead)
	silent := r.dial()
	if n, err := silent.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("a silent client got %d bytes, %v; want the end of the stream", n, err)
	}
}

func TestFailedDials(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	known := names{"ok.test": {"127.0.0.1"}}
	r := start(t, allow("ok.test", "gone.test"), Config{Hosts: known.hosts})
	_, response := r.connect("ok.test:"+port, "")
	wantRefused(t, response, 502, reasonDialRefused)
	if status := response.Header.Get("Proxy-Status"); !strings.Contains(status, "error=connection_refused") {
		t.Errorf("Proxy-Status %q", status)
	}
	_, response = r.connect("gone.test:443", "")
	wantRefused(t, response, 502, reasonLookupFailed)
}

// A head whose lines end in LF alone is refused at once, however it arrives.
func TestBareLineFeeds(t *testing.T) {
	r := start(t, `"public"`, Config{})
	_, response := r.send("CONNECT 127.0.0.1:1 HTTP/1.1\nHost: x\n\n")
	wantRefused(t, response, 400, reasonMalformed)
	c := r.open()
	for _, b := range []byte("CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\n\n") {
		if _, err := c.TCPConn.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	response, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, response, 400, reasonMalformed)
}

// Case I-40.
func TestProxyIsNotDialled(t *testing.T) {
	hosts := []string{"127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0", "[::]"}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		address := a.(*net.IPNet).IP
		hosts = append(hosts, strings.TrimSuffix(net.JoinHostPort(address.String(), ""), ":"))
		if address.To4() != nil {
			hosts = append(hosts, "[::ffff:"+address.String()+"]")
		}
	}
	known := names{}
	for i, host := range slices.Clone(hosts) {
		name := fmt.Sprintf("n%d.test", i)
		known[name] = []string{strings.Trim(host, "[]"), "127.0.0.1"}
		hosts = append(hosts, name)
	}
	r := start(t, `"public"`, Config{Hosts: known.hosts})
	_, port, _ := net.SplitHostPort(r.address)
	for _, host := range hosts {
		_, response := r.connect(host+":"+port, "")
		wantRefused(t, response, 403, matcher.OwnAddress)
		if x, err := r.server.Explain(t.Context(), "test", host+":"+port); err != nil || x.Verdict != "refuse" || x.Reason != string(matcher.OwnAddress) {
			t.Errorf("explained as %+v, %v", x, err)
		}
		_, response = r.send("GET http://" + host + ":" + port + "/ HTTP/1.1\r\nHost: x\r\n\r\n")
		wantRefused(t, response, 403, matcher.OwnAddress)
	}
}
