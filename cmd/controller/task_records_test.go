package main

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/control"
	"sluice/controller/api"
)

// recordsServer is a controller of which only records and metrics matter.
type recordsServer struct {
	hub     control.Hub
	metrics string
	mu      sync.Mutex
	streams int           // that were asked for
	cut     chan struct{} // closed to end those that are open
}

func (s *recordsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	cut, metrics := s.cut, s.metrics
	if r.URL.Path == "/v1/events" {
		s.streams++
	}
	s.mu.Unlock()
	if r.URL.Path != "/v1/events" {
		_, _ = w.Write([]byte(metrics))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-cut:
			cancel()
		case <-ctx.Done():
		}
	}()
	s.hub.Stream(w, r.WithContext(ctx))
}

func (s *recordsServer) set(metrics string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metrics = metrics
}

func (s *recordsServer) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// breakOff ends the open streams.
func (s *recordsServer) breakOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

func records(t *testing.T) (*recordsServer, *recorder) {
	t.Helper()
	s := &recordsServer{metrics: gapsMetric + " 1\n", cut: make(chan struct{})}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: s}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		s.breakOff()
		server.Close()
		<-served
	})
	return s, newRecorder(&api.Client{Socket: path})
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for range 1000 {
		if condition() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

func event(id string) control.Event {
	return control.Event{ContainerID: id, Phase: "run", Verdict: "refuse", Target: "evil.test"}
}

// TestRecords checks what is taken, and that the result says when something may be missing.
func TestRecords(t *testing.T) {
	s, r := records(t)
	r.start()
	until(t, "somebody reads", s.hub.Active)
	r.opened("mine")
	s.hub.Publish(event("mine"))
	s.hub.Publish(event("other"))
	s.hub.Publish(event("mine"))
	r.closing()
	summary, a := r.stop()
	if a.Records != 2 || !a.Complete || summary.Phases()[0].Refused != 2 {
		t.Errorf("got %+v, %+v", a, summary.Phases())
	}
}

func TestRecordsGaps(t *testing.T) {
	for _, row := range []struct {
		name, then string
		want       string // of the problem
	}{
		{"same", gapsMetric + " 1\n", ""},
		{"more", gapsMetric + " 2\n", "a sidecar ended"},
		{"another-controller", gapsMetric + " 0\n", ""},
		{"no-metric", "x 1\n", "the controller has no metric"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, r := records(t)
			r.start()
			r.opened("mine")
			s.set(row.then)
			r.closing()
			_, a := r.stop()
			if a.Complete != (row.want == "") || !strings.Contains(a.Problem, row.want) {
				t.Errorf("got %+v", a)
			}
		})
	}
}

// TestRecordsBreakOff checks that reading goes on after the stream has broken off while a container runs, and that this
// is told; and that it is all right while none runs.
func TestRecordsBreakOff(t *testing.T) {
	s, r := records(t)
	r.start()
	until(t, "somebody reads", s.hub.Active)
	s.breakOff() // a controller ends that was there for an earlier container
	until(t, "reading has ended", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return !r.reading })
	r.opened("mine")
	until(t, "somebody reads again", func() bool { return s.asked() == 2 && s.hub.Active() })
	s.hub.Publish(event("mine"))
	until(t, "the record is there", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.summary.Records() == 1 })
	until(t, "nothing is missing between two containers", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.problem == "" })
	s.breakOff()
	until(t, "somebody reads once more", func() bool { return s.asked() == 3 && s.hub.Active() })
	r.closing()
	if _, a := r.stop(); a.Complete || !strings.HasPrefix(a.Problem, "the records broke off") || a.Records != 1 {
		t.Errorf("while a container runs: %+v", a)
	}
}
