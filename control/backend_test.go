package control

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// fakeBackend behaves like a proxy where the wire can tell: it knows sessions, generations and quarantine.
type fakeBackend struct {
	hub Hub

	mu       sync.Mutex
	sessions map[string]SessionStatus
	fail     error // answered by every method if set
	sick     bool
	specs    []SessionSpec // what SetSession was given, in order
	kept     []uint64      // what DropListeners was given
}

func (b *fakeBackend) Health(context.Context) (Health, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sick {
		return Health{Version: "v1", Problems: []string{"nothing comes back"}}, b.fail
	}
	return Health{OK: true, Version: "v1", Sessions: len(b.sessions), Milliseconds: 0.5}, b.fail
}

func (b *fakeBackend) Sessions(context.Context) ([]SessionStatus, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []SessionStatus
	for _, s := range b.sessions {
		all = append(all, s)
	}
	return all, b.fail
}

func (b *fakeBackend) Session(_ context.Context, id string) (SessionStatus, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.sessions[id]
	if !ok {
		return s, NotFoundError(id)
	}
	return s, b.fail
}

func (b *fakeBackend) SetSession(_ context.Context, id string, spec SessionSpec) (Receipt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return Receipt{}, b.fail
	}
	s := b.sessions[id]
	if spec.Generation != 0 && spec.Generation < s.Generation {
		return Receipt{}, StaleError(id, s.Generation, spec.Generation)
	}
	b.specs = append(b.specs, spec)
	if b.sessions == nil {
		b.sessions = map[string]SessionStatus{}
	}
	s = SessionStatus{ID: id, State: Serving, Phase: spec.Phase, Generation: spec.Generation, Policies: spec.Policies}
	b.sessions[id] = s
	return Receipt{Session: id, Generation: s.Generation, Phase: s.Phase, FlowsCut: 1, FlowsKept: 2}, nil
}

func (b *fakeBackend) DeleteSession(_ context.Context, id string) (Receipt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.sessions[id]; !ok {
		return Receipt{}, NotFoundError(id)
	}
	delete(b.sessions, id)
	return Receipt{Session: id, FlowsCut: 3}, b.fail
}

func (b *fakeBackend) DropListeners(_ context.Context, id string, keep uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.sessions[id]; !ok {
		return NotFoundError(id)
	}
	b.kept = append(b.kept, keep)
	return b.fail
}

func (b *fakeBackend) Flows(_ context.Context, id string) ([]Flow, error) {
	if id != "s1" {
		return nil, NotFoundError(id)
	}
	return []Flow{{ID: "f1", Protocol: "connect", Target: "ok.test:443", Address: "192.0.2.1:443", BytesIn: 7}}, b.fail
}

func (b *fakeBackend) Explain(_ context.Context, id, target string) (Explanation, error) {
	return Explanation{Target: target, Phase: id, Verdict: "refuse", Reason: "not-listed"}, b.fail
}

func (b *fakeBackend) Events() *Hub { return &b.hub }

func (b *fakeBackend) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "sluice_build_info 1\n") })
}

var errFake = errors.New("disk on fire")

// serve runs b behind a control socket until the test ends.
func serve(t *testing.T, b Backend) *Client {
	t.Helper()
	c, stop := serveUntil(t, b)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c
}

// serveUntil returns a function that ends the server and gives what Serve returned.
func serveUntil(t *testing.T, b Backend) (c *Client, stop func() error) {
	t.Helper()
	dir := shortDir(t)
	l, err := Listen("unix", filepath.Join(dir, SocketName))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, OnlyPeers(l, slog.New(slog.DiscardHandler)), b, slog.New(slog.DiscardHandler))
	}()
	return &Client{Dir: dir}, func() error {
		cancel()
		return <-done
	}
}

// shortDir is a directory whose path fits a socket's address whatever the test's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "c")
}

// rawRequest sends one request through the client's socket as it stands and returns the whole answer.
func rawRequest(t *testing.T, c *Client, text string) string {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(c.Dir, SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}
