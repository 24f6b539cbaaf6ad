package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"sluice/harbor"
)

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name   string
		argv   []string
		mode   string
		hosts  string
		code   int
		stderr string
	}{
		{"test-there", []string{"test", "-f", there}, "", "", exitDone, ""},
		{"test-by-path", []string{"/usr/bin/test", "-f", there}, "", "", exitDone, ""},
		{"test-missing", []string{"test", "-f", filepath.Join(dir, "missing")}, "", "", exitFailed, ""},
		{"test-directory", []string{"test", "-f", dir}, "", "", exitFailed, ""},
		{"test-other", []string{"test", "-d", dir}, "", "", exitUsage, "test -f FILE alone"},
		{"test-nothing", []string{"test"}, "", "", exitUsage, "test -f FILE alone"},
		{"policy-nobody", []string{"network-policy", "deny-all"}, "", "", exitFailed, "no sidecar answers, so nothing has changed"},
		{"word", []string{"/opt/egress-sidecar/entrypoint.sh", "sh"}, "public", "", exitUsage, harbor.ModeVariable},
		{"no-mode", []string{"/opt/egress-sidecar/entrypoint.sh"}, "", "", exitFailed, harbor.ModeVariable + " is not set"},
		{"bad-mode", []string{"entrypoint.sh"}, "denylist", "", exitFailed, `"denylist"`},
		{"bad-hosts", []string{"entrypoint.sh"}, "allowlist", "a.test http://b.test http://c.test", exitFailed, "\nsluice-harbor: \"http://c.test\": is a URL"},
		{"version", []string{"sluice-harbor", "version"}, "", "", exitDone, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			ready := filepath.Join(dir, "ready")
			if err := os.WriteFile(ready, nil, 0o600); err != nil { // of a sidecar that was killed
				t.Fatal(err)
			}
			var stdout, stderr strings.Builder
			code := run(context.Background(), system{argv: row.argv, ready: ready, socket: filepath.Join(dir, "socket"), stdout: &stdout, stderr: &stderr,
				env: func(name string) string {
					return map[string]string{harbor.ModeVariable: row.mode, harbor.HostsVariable: row.hosts}[name]
				}})
			if code != row.code || !strings.Contains(stderr.String(), row.stderr) || row.stderr == "" && stderr.Len() > 0 {
				t.Errorf("exit code %d, want %d, and %q: %s", code, row.code, row.stderr, &stderr)
			}
			if _, err := os.Stat(ready); strings.HasSuffix(row.argv[0], "entrypoint.sh") && row.code == exitFailed && err == nil {
				t.Error("it is still said to be ready")
			}
		})
	}
}

// Where its container has no limit, the sidecar has one of its own.
func TestMemory(t *testing.T) {
	former := debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() { debug.SetMemoryLimit(former) })
	t.Setenv("GOMEMLIMIT", "")
	sys := system{argv: []string{"entrypoint.sh"}, ready: filepath.Join(t.TempDir(), "ready"), stdout: io.Discard, stderr: io.Discard,
		env: func(string) string { return "" }}
	if code := run(context.Background(), sys); code != exitFailed {
		t.Errorf("exit code %d without a mode", code)
	}
	if got := debug.SetMemoryLimit(-1); got > memoryBytes {
		t.Errorf("it may use %d bytes, want no more than %d", got, memoryBytes)
	}
}

// TestPolicy asks a sidecar as Harbor does, and passes on what that says.
func TestPolicy(t *testing.T) {
	sys := system{argv: []string{"/usr/local/bin/network-policy", "allow", "a.test"}, socket: filepath.Join(t.TempDir(), "socket")}
	l, err := net.Listen("unix", sys.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answered := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			answered <- err
			return
		}
		defer c.Close()
		var args []string
		err = json.NewDecoder(c).Decode(&args)
		answered <- errors.Join(err, json.NewEncoder(c).Encode(harbor.Answer{Code: 7, Stdout: strings.Join(args, " "), Stderr: "said"}))
	}()
	var stdout, stderr strings.Builder
	sys.stdout, sys.stderr = &stdout, &stderr
	if code := run(context.Background(), sys); code != 7 || stdout.String() != "allow a.test" || stderr.String() != "said" {
		t.Errorf("%d, %q, %q", code, &stdout, &stderr)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
