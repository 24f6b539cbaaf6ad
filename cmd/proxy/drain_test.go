package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// draining starts a proxy with an open tunnel, and a client between two plain requests, and asks it to end.
func draining(t *testing.T, drain string) (p *program, open *tunnel, idle net.Conn, health func() (int, string), log string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice") // short enough for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file, target := filepath.Join(dir, "policy.json"), echo(t).String()
	log = filepath.Join(dir, "audit.log")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	site := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })}
	go site.Serve(l)
	t.Cleanup(func() { site.Close() })
	write(t, file, allow(target, l.Addr().String()))
	p = launch(t, []string{"sluice-proxy", "--policy", file, "--listen", "127.0.0.1:0", "--control", dir, "--audit", log, "--drain", drain})
	open = connect(t, p.listen, target, "").want(200)
	if idle, err = net.Dial("tcp", p.listen); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { idle.Close() })
	if _, err := io.WriteString(idle, "GET http://"+l.Addr().String()+"/ HTTP/1.1\r\nHost: "+l.Addr().String()+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(idle), nil)
	if err != nil || answer.StatusCode != http.StatusNoContent || answer.Close {
		t.Fatalf("plain request: %+v, %v", answer, err)
	}
	p.cancel()
	p.until("no new client is served", func() bool {
		c, err := net.Dial("tcp", p.listen)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	return p, open, idle, func() (int, string) {
		code, _, stderr := tryArgs(t, []string{"sluice-proxy", "health", "--control", dir})
		return code, stderr
	}, log
}

// ended returns the exit code, and how many audit records there are of tunnels that ended.
func ended(t *testing.T, p *program, log string) (code, tunnels int) {
	t.Helper()
	code = <-p.code
	p.code <- code
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var record struct{ Protocol string }
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if record.Protocol == "connect" {
			tunnels++
		}
	}
	return code, tunnels
}

func TestDrainEndsWithTheLastClient(t *testing.T) {
	p, open, idle, health, log := draining(t, "1h")
	if code, stderr := health(); code != 1 || !strings.Contains(stderr, "draining") {
		t.Errorf("health: %d %s", code, stderr)
	}
	// What waits for nothing is closed, in order; what is open goes on.
	if n, err := idle.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("between two requests: %d bytes, %v; want the end", n, err)
	}
	open.ping()
	open.Close()
	if code, tunnels := ended(t, p, log); code != 0 || tunnels != 1 {
		t.Errorf("ended with %d and %d records: %s", code, tunnels, p.stderr.String())
	}
}

func TestDrainIsBounded(t *testing.T) {
	p, open, _, _, log := draining(t, "300ms")
	open.cut()
	if code, tunnels := ended(t, p, log); code != 0 || tunnels != 1 {
		t.Errorf("ended with %d and %d records", code, tunnels)
	}
	contains(t, "log", p.stderr.String(), "connections=1")
}

func TestSecondSignal(t *testing.T) {
	p, open, _, _, log := draining(t, "1h")
	open.ping()
	p.hurry()
	open.cut()
	if code, tunnels := ended(t, p, log); code != 0 || tunnels != 1 {
		t.Errorf("ended with %d and %d records", code, tunnels)
	}
}

func TestNoDrain(t *testing.T) {
	p, open, _, _, log := draining(t, "0")
	open.cut()
	if code, tunnels := ended(t, p, log); code != 0 || tunnels != 1 {
		t.Errorf("ended with %d and %d records", code, tunnels)
	}
	if strings.Contains(p.stderr.String(), "draining") {
		t.Errorf("it drained: %s", p.stderr.String())
	}
}
