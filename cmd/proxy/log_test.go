package main

import (
	"context"
	"path/filepath"
	"regexp"
	"strconv"
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

func TestLogLosesRatherThanWaits(t *testing.T) {
	w := new(stuckWriter)
	log, end := newLog(w)
	log.Info("first")
	p := &program{T: t}
	p.until("the first line is out of the queue", func() bool { return strings.Contains(w.String(), "msg=first") })
	w.mu.Lock()
	const lines = 3 * waitingLines
	for i := range lines {
		log.Info("line", "n", i)
	}
	w.mu.Unlock()
	end()
	log.Info("behind the end")
	text := w.String()
	got, lost := strings.Count(text, "msg=line"), 0
	for _, m := range regexp.MustCompile(`its reader is slow" lines=(\d+)\n`).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1])
		lost += n
	}
	if lost == 0 || got < waitingLines || got+lost != lines || strings.Contains(text, "behind") {
		t.Errorf("%d lines written and %d told as lost of %d; the last ones: %q", got, lost, lines, text[max(0, len(text)-200):])
	}
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
