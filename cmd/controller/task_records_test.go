package main

import (
	"context"
	"errors"
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

// begin takes the records of a container.
func begin(t *testing.T, r *recorder, id string) {
	t.Helper()
	if err := r.attached(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// TestRecords checks what is taken, from the first record after the container was attached.
func TestRecords(t *testing.T) {
	s, r := records(t)
	begin(t, r, "mine")
	s.hub.Publish(event("mine"))
	s.hub.Publish(event("other"))
	s.hub.Publish(event("mine"))
	r.closing("mine")
	begin(t, r, "second")
	s.hub.Publish(event("second"))
	s.hub.Publish(event("mine")) // a late one
	r.closing("second")
	summary, a := r.stop()
	if a.Records != 4 || !a.Complete || summary.Phases()[0].Refused != 4 {
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
			begin(t, r, "mine")
			s.set(row.then)
			r.closing("mine")
			_, a := r.stop()
			if a.Complete != (row.want == "") || !strings.Contains(a.Problem, row.want) {
				t.Errorf("got %+v", a)
			}
		})
	}
}

// TestRecordsBreakOff checks that reading goes on after the stream has broken off while a container runs, and that this
// is told; and that it is all right after its end.
func TestRecordsBreakOff(t *testing.T) {
	s, r := records(t)
	begin(t, r, "mine")
	r.closing("mine")
	s.breakOff() // the controller ends with its last container
	until(t, "nobody reads", func() bool { return !s.hub.Active() })
	begin(t, r, "second")
	s.hub.Publish(event("second"))
	until(t, "the record is there", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.summary.Records() == 1 })
	until(t, "nothing is missing between two containers", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.problem == "" })
	s.breakOff()
	until(t, "somebody reads once more", func() bool { return s.asked() == 3 && s.hub.Active() })
	r.closing("second")
	if _, a := r.stop(); a.Complete || !strings.HasPrefix(a.Problem, "the records broke off") || a.Records != 1 {
		t.Errorf("while a container runs: %+v", a)
	}
}

// TestRecordsNeverStarted checks that a container that never ran leaves nothing to be missed.
func TestRecordsNeverStarted(t *testing.T) {
	s, r := records(t)
	begin(t, r, "mine")
	r.failed("mine")
	s.breakOff()
	if _, a := r.stop(); !a.Complete {
		t.Errorf("got %+v", a)
	}
	_, r = records(t)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := r.attached(ended, "mine"); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if _, a := r.stop(); !a.Complete {
		t.Errorf("got %+v", a)
	}
}
