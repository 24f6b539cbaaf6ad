package main

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// stuckWriter takes what it is given until it gets stuck, and then again.
type stuckWriter struct {
	output
	mu sync.Mutex // held while it is stuck
}

func (w *stuckWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.output.Write(b)
}

// A policy comes into force although nobody reads what the proxy has to say about that.
func TestPolicyNeedsNoReaderOfTheLog(t *testing.T) {
	file, address, target := filepath.Join(t.TempDir(), "policy.json"), freeAddress(t), echo(t).String()
	write(t, file, allow(target))
	var stderr stuckWriter
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int)
	go func() {
		code <- run(ctx, []string{"sluice-proxy", "--policy", file, "--listen", address, "--audit", "none"}, system{stdin: strings.NewReader(""), stdout: new(output), stderr: &stderr})
	}()
	p := &program{T: t, stderr: output{}}
	p.until("ready", func() bool { return strings.Contains(stderr.String(), "msg=ready") })
	stderr.mu.Lock()
	for range 3 {
		write(t, file, `{"network_mode":"no-network"}`)
		connect(t, address, target, "").want(403)
		write(t, file, allow(target))
		connect(t, address, target, "").want(200)
	}
	stderr.mu.Unlock()
	cancel()
	if got := <-code; got != 0 {
		t.Errorf("ended with %d: %s", got, stderr.String())
	}
}
