package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"sluice/matcher"
)

// origin is an HTTP server that says which host it was asked for, and echoes what comes behind a WebSocket upgrade.
func origin(t *testing.T) (port string) {
	return listen(t, func(c net.Conn) {
		b := bufio.NewReader(c)
		for {
			request, err := http.ReadRequest(b)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			if request.Header.Get("Upgrade") == "websocket" {
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
				_, _ = io.Copy(c, b)
				return
			}
			body := request.Host + request.URL.Path
			if leaked := request.Header.Get("Proxy-Authorization"); leaked != "" {
				body = "leaked " + leaked
			}
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
	})
}

// ask sends a request on an open connection and returns status and body.
func (c client) ask(t *testing.T, raw string) (int, string) {
	t.Helper()
	if _, err := io.WriteString(c.TCPConn, raw); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		t.Fatalf("answer to %.60q: %v", raw, err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func (r *rig) open() client {
	c := r.dial()
	return client{c, bufio.NewReader(c)}
}

// Case I-39.
func TestEveryRequestIsJudged(t *testing.T) {
	port := origin(t)
	known := names{"ok.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}}
	r := start(t, allow("ok.test"), Config{Hosts: known.hosts})
	c := r.open()
	get := func(host string) string {
		return "GET http://" + host + ":" + port + "/x HTTP/1.1\r\nHost: " + host + ":" + port + "\r\n\r\n"
	}
	for range 3 {
		if status, body := c.ask(t, get("ok.test")); status != 200 || body != "ok.test:"+port+"/x" {
			t.Fatalf("%d %q", status, body)
		}
		if status, body := c.ask(t, get("evil.test")); status != 403 || !strings.Contains(body, string(matcher.NotListed)) {
			t.Fatalf("%d %q", status, body)
		}
	}
}

// Case I-26.
func TestRequestsInTunnelAreJudged(t *testing.T) {
	port := origin(t)
	known := names{"ok.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}, "hidden.test": {"127.0.0.3"}, "also.test": {"127.0.0.1"}, "other.test": {"127.0.0.2"}}
	for name, c := range map[string]struct {
		policy, target, host string
		status               int
	}{
		"same":                  {allow("ok.test"), "ok.test", "ok.test", 200},
		"not-allowed":           {allow("ok.test"), "ok.test", "evil.test", 403},
		"allowed-same-address":  {allow("ok.test", "also.test"), "ok.test", "also.test", 200},
		"allowed-other-address": {allow("ok.test", "other.test"), "ok.test", "other.test", 403},
		"address-rule":          {allow("127.0.0.1"), "127.0.0.1", "evil.test", 200},
		"denied":                {deny("evil.test"), "ok.test", "evil.test", 403},
		"denied-behind-address": {deny("hidden.test"), "127.0.0.1", "hidden.test", 403},
		"public":                {`"public"`, "127.0.0.1", "evil.test", 200},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.policy, Config{Hosts: known.hosts})
			tunnel, response := r.connect(c.target+":"+port, "")
			if response.StatusCode != 200 {
				t.Fatal(response.Status)
			}
			if status, body := tunnel.ask(t, "GET /1 HTTP/1.1\r\nHost: "+c.target+":"+port+"\r\n\r\n"); status != 200 {
				t.Fatalf("first request: %d %q", status, body)
			}
			status, body := tunnel.ask(t, "GET /2 HTTP/1.1\r\nHost: "+c.host+":"+port+"\r\n\r\n")
			if status != c.status {
				t.Errorf("second request: %d %q, want %d", status, body, c.status)
			}
		})
	}
	t.Run("in-pieces", func(t *testing.T) {
		r := start(t, allow("ok.test"), Config{Hosts: known.hosts})
		tunnel, _ := r.connect("ok.test:"+port, "")
		for _, b := range []byte("GET /1 HTTP/1.1\r\nHost: evil.test") {
			if _, err := tunnel.TCPConn.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if status, body := tunnel.ask(t, "\r\n\r\n"); status != 403 {
			t.Errorf("%d %q, want 403", status, body)
		}
	})
}

// Cases I-37 and I-58.
func TestWebSocketIsCutAtSwitch(t *testing.T) {
	port := origin(t)
	known := names{"a.test": {"127.0.0.1"}, "b.test": {"127.0.0.1"}}
	r := start(t, allow("a.test", "b.test"), Config{Hosts: known.hosts})
	upgrade := func(host string) client {
		c := r.open()
		status, body := c.ask(t, "GET http://"+host+":"+port+"/ws HTTP/1.1\r\nHost: "+host+":"+port+
			"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n")
		if status != 101 {
			t.Fatalf("%d %q", status, body)
		}
		wantEcho(t, c, "frames")
		return c
	}
	a, b := upgrade("a.test"), upgrade("b.test")
	if receipt := r.apply(allow("a.test")); receipt.FlowsCut != 1 || receipt.FlowsKept != 1 {
		t.Errorf("receipt %+v; want one cut and one kept", receipt)
	}
	wantReset(t, b)
	wantEcho(t, a, "goes on")
}

// An idle keep-alive connection to what the new policy refuses is cut too, but a client with nothing under way is not.
func TestKeptUpstreamIsCutAtSwitch(t *testing.T) {
	ended := make(chan struct{})
	port := listen(t, func(c net.Conn) {
		b := bufio.NewReader(c)
		if _, err := http.ReadRequest(b); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		_, _ = b.ReadByte()
		close(ended)
	})
	known := names{"a.test": {"127.0.0.1"}}
	r := start(t, allow("a.test"), Config{Hosts: known.hosts})
	c := r.open()
	get := "GET http://a.test:" + port + "/ HTTP/1.1\r\nHost: a.test:" + port + "\r\n\r\n"
	if status, body := c.ask(t, get); status != 200 {
		t.Fatal(status, body)
	}
	if receipt := r.apply(`"no-network"`); receipt.FlowsCut != 1 {
		t.Errorf("receipt %+v; want one cut", receipt)
	}
	<-ended
	if status, _ := c.ask(t, get); status != 403 {
		t.Errorf("after the switch: %d, want 403", status)
	}
}

func TestConnectAfterRequest(t *testing.T) {
	port := origin(t)
	echoPort := listen(t, echo)
	r := start(t, allow("127.0.0.1"), Config{})
	r.session.SetAuth("u", "p")
	c := r.open()
	const auth = "Proxy-Authorization: Basic dTpw\r\n"
	status, body := c.ask(t, "GET http://127.0.0.1:"+port+"/ HTTP/1.1\r\nHost: 127.0.0.1:"+port+"\r\n"+auth+"\r\n")
	if status != 200 || strings.Contains(body, "leaked") {
		t.Fatal(status, body)
	}
	if _, err := io.WriteString(c.TCPConn, "CONNECT 127.0.0.1:"+echoPort+" HTTP/1.1\r\n"+auth+"\r\n\x00early"); err != nil {
		t.Fatal(err)
	}
	want := string(established) + "\x00early"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
	wantEcho(t, c, "and more")
}

func TestRequestWithoutCredentials(t *testing.T) {
	port := origin(t)
	r := start(t, `"public"`, Config{})
	r.session.SetAuth("u", "p")
	c := r.open()
	status, _ := c.ask(t, "GET http://127.0.0.1:"+port+"/ HTTP/1.1\r\nHost: 127.0.0.1:"+port+"\r\n\r\n")
	if status != 407 {
		t.Errorf("%d, want 407", status)
	}
}
