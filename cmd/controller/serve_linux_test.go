package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// However many connections are opened, the controller has a few: descriptors are for containers.
func TestReadersAreLimited(t *testing.T) {
	l := serveReaders(t, "127.0.0.1:0", http.NotFoundHandler())
	// ask opens a connection, and tells when it is answered.
	ask := func() (c net.Conn, answered chan struct{}) {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answered = make(chan struct{})
		go func() {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				close(answered)
			}
		}()
		return c, answered
	}
	wait := func(answered chan struct{}) {
		t.Helper()
		select {
		case <-answered:
		case <-time.After(10 * time.Second):
			t.Fatal("no answer")
		}
	}
	var first net.Conn
	for range maxReaders {
		c, answered := ask()
		wait(answered)
		first = c
	}
	_, more := ask()
	select {
	case <-more:
		t.Errorf("more than %d are answered", maxReaders)
	case <-time.After(100 * time.Millisecond):
	}
	first.Close()
	wait(more)
}

// serveReaders serves handler at addr until the test ends.
func serveReaders(t *testing.T, addr string, handler http.Handler) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveAt(ctx, l, handler, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l
}

// At a loopback address a name of somebody else's that was made to point here is not answered to, whatever is asked for.
// At other addresses Prometheus may use any name.
func TestReadersAnswerToTheirOwnNames(t *testing.T) {
	counters := http.NewServeMux()
	counters.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "1") })
	for _, row := range []struct {
		name, addr, host, site string
		want                   int
	}{
		{"own", "127.0.0.1:0", "localhost:9465", "", http.StatusOK},
		{"address", "127.0.0.1:0", "127.0.0.1", "", http.StatusOK},
		{"rebound", "127.0.0.1:0", "rebound.test:9465", "", http.StatusForbidden},
		{"rebound-same-origin", "127.0.0.1:0", "rebound.test:9465", "same-origin", http.StatusForbidden},
		{"other-site", "127.0.0.1:0", "localhost", "cross-site", http.StatusForbidden},
		{"reachable", "0.0.0.0:0", "node1.test:9464", "", http.StatusOK},
	} {
		t.Run(row.name, func(t *testing.T) {
			port := serveReaders(t, row.addr, counters).Addr().(*net.TCPAddr).Port
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = row.host
			if row.site != "" {
				req.Header.Set("Sec-Fetch-Site", row.site)
			}
			res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != row.want {
				t.Errorf("status %d, want %d", res.StatusCode, row.want)
			}
		})
	}
}
