package steadylog

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stuckWriter takes what it is given until it gets stuck, and then again. It tells when the first line has come.
type stuckWriter struct {
	mu    sync.Mutex // held while it is stuck; guards what follows
	text  strings.Builder
	first chan struct{}
}

func (w *stuckWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.text.Len() == 0 {
		close(w.first)
	}
	return w.text.Write(b)
}

func TestLogLosesRatherThanWaits(t *testing.T) {
	w := &stuckWriter{first: make(chan struct{})}
	log, end := New(w)
	log.Info("first")
	<-w.first
	w.mu.Lock()
	const lines = 3 * waitingLines
	for i := range lines {
		log.Info("line", "n", i)
	}
	w.mu.Unlock()
	end()
	log.Info("behind the end")
	text := w.text.String()
	got, lost := strings.Count(text, "msg=line"), 0
	for _, m := range regexp.MustCompile(`its reader is slow" lines=(\d+)\n`).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1])
		lost += n
	}
	if lost == 0 || got < waitingLines || got+lost != lines || strings.Contains(text, "behind") {
		t.Errorf("%d lines written and %d told as lost of %d; the last ones: %q", got, lost, lines, text[max(0, len(text)-200):])
	}
}
