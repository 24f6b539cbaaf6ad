package forward

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
)

// Case I-39: every request of a connection is judged, one after the other and pipelined.
func TestEveryRequestIsJudged(t *testing.T) {
	t.Parallel()
	p := newProxy(t, "ok.test:80", site(t, "ok"), "other.test:8080", site(t, "other")).start()
	steps := []struct {
		url    string
		status int
		body   string
	}{
		{"http://ok.test/a", 200, "ok GET /a "},
		{"http://evil.test/b", 403, "evil.test:80"},
		{"http://other.test:8080/c?d", 200, "other GET /c?d "},
		{"http://ok.test:81/", 403, "ok.test:81"},
		{"http://ok.test", 200, "ok GET / "},
	}
	check := func(t *testing.T, a answer, status int, body string) {
		t.Helper()
		if a.StatusCode != status || !strings.Contains(a.body, body) {
			t.Errorf("got %d %q, want %d %q", a.StatusCode, a.body, status, body)
		}
	}
	t.Run("in-sequence", func(t *testing.T) {
		c := p.client()
		for _, s := range steps {
			check(t, c.get("GET "+s.url+" HTTP/1.1\r\nHost: ignored.test\r\n\r\n"), s.status, s.body)
		}
	})
	t.Run("pipelined", func(t *testing.T) {
		c := p.client()
		var all strings.Builder
		for _, s := range steps {
			all.WriteString("GET " + s.url + " HTTP/1.1\r\nHost: ignored.test\r\n\r\n")
		}
		c.send(all.String())
		for _, s := range steps {
			check(t, c.answer("GET"), s.status, s.body)
		}
	})
	var want []string
	for range 2 {
		want = append(want, "ok.test:80", "evil.test:80", "other.test:8080", "ok.test:81", "ok.test:80")
	}
	if got := p.gate.seen(); !slices.Equal(got, want) {
		t.Errorf("judged %q, want %q", got, want)
	}
}

// Case L-33: pipelined requests of mixed sizes, one of them with a body, are answered in order and exactly.
func TestPipelineKeepsOrder(t *testing.T) {
	t.Parallel()
	p := newProxy(t, "ok.test:80", listen(t, func(conn net.Conn) {
		s := newPeer(t, conn)
		var size int
		_, _ = fmt.Sscanf(s.head(), "GET /%d", &size)
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size))
		_ = conn.Close()
	})).start()
	sizes := []int{0, 1, 100_000, 7, 4096, 2048, 300_000, 0, 33, 65_536}
	c := p.client()
	for _, size := range sizes {
		c.send(fmt.Sprintf("GET http://ok.test/%d HTTP/1.1\r\nHost: ok.test\r\n\r\n", size))
	}
	for _, size := range sizes {
		if got := c.answer("GET").body; got != strings.Repeat("x", size) {
			t.Errorf("got %d bytes, want %d", len(got), size)
		}
	}
}
