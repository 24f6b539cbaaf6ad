package engine

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/google/go-cmp/cmp"
)

// start and kill change the fake's state and tell of it.
func (f *fake) start(id string) {
	f.run(id, "name-"+id, nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.publish(events.ContainerEventType, events.ActionStart, id, nil)
}

func (f *fake) kill(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers[id].State = &container.State{Status: "exited"}
	f.publish(events.ContainerEventType, events.ActionDie, id, nil)
}

// listen reads events into a channel until the test ends, and checks that nothing stays behind.
func listen(t *testing.T, c *Client, since time.Time) <-chan Event {
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan Event, 10000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range c.Events(ctx, since) {
			got <- e
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return got
}

// until returns the events up to the first of a kind.
func until(t *testing.T, got <-chan Event, kind EventKind) (list []Event) {
	t.Helper()
	for {
		select {
		case e := <-got:
			list = append(list, e)
			if e.Kind == kind {
				return list
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no %s came, but %v", kind, list)
		}
	}
}

func TestEvents(t *testing.T) {
	f, c := newFake(t)
	got := listen(t, c, time.Time{})
	until(t, got, Reconcile)
	f.mu.Lock()
	for _, action := range []events.Action{events.ActionCreate, events.ActionStart, events.ActionPause, events.ActionUnPause,
		events.ActionRename, events.ActionUpdate, events.ActionDie, events.ActionDestroy, "exec_start: sh", events.ActionKill} {
		f.publish(events.ContainerEventType, action, "c1", map[string]string{"name": "web"})
	}
	for _, action := range []events.Action{events.ActionCreate, events.ActionConnect, events.ActionDisconnect} {
		f.publish(events.NetworkEventType, action, "n1", map[string]string{"container": "c1"})
	}
	f.publish(events.ImageEventType, events.ActionDelete, "sha256:1", nil)
	f.publish(events.NetworkEventType, events.ActionDestroy, "n1", nil)
	f.mu.Unlock()
	var list []Event
	for _, e := range until(t, got, NetworkDestroyed) {
		if e.Time.IsZero() || e.Err != nil {
			t.Errorf("%+v has no time, or an error", e)
		}
		e.Time = time.Time{}
		list = append(list, e)
	}
	want := []Event{
		{Kind: Created, Container: "c1"}, {Kind: Started, Container: "c1"}, {Kind: Paused, Container: "c1"},
		{Kind: Unpaused, Container: "c1"}, {Kind: Renamed, Container: "c1"}, {Kind: Updated, Container: "c1"},
		{Kind: Died, Container: "c1"}, {Kind: Destroyed, Container: "c1"},
		{Kind: NetworkCreated, Network: "n1", Container: "c1"},
		{Kind: Connected, Network: "n1", Container: "c1"}, {Kind: Disconnected, Network: "n1", Container: "c1"},
		{Kind: NetworkDestroyed, Network: "n1"},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// What has happened while nobody listened is told from the time that the reader names.
func TestEventsSince(t *testing.T) {
	f, c := newFake(t)
	f.start("early")
	got := listen(t, c, time.Now().Add(-time.Hour))
	list := until(t, got, Started)
	if list[0].Kind != Reconcile || list[len(list)-1].Container != "early" {
		t.Errorf("got %v", list)
	}
}

// Case L-38: the stream breaks while containers start and die. What the engine still knows is told again, once; what
// it does not know any more is found by a list, for which the reader is asked.
func TestEventsThroughAnOutage(t *testing.T) {
	for name, restart := range map[string]bool{"stream_cut": false, "engine_restarted": true} {
		t.Run(name, func(t *testing.T) {
			f, c := newFake(t)
			// The reader keeps a list of what runs, as the controller does.
			running := map[string]bool{}
			told := map[string]int{}
			reader := func(e Event) {
				switch e.Kind {
				case Started:
					running[e.Container] = true
					told[e.Container]++
				case Died:
					delete(running, e.Container)
				case Reconcile:
					list, err := c.List(t.Context())
					if err != nil {
						t.Error(err)
					}
					clear(running)
					for _, s := range list {
						if s.State == StateRunning {
							running[s.ID] = true
						}
					}
				}
			}
			got := listen(t, c, time.Time{})
			follow := func(kind EventKind, container string) {
				t.Helper()
				for {
					list := until(t, got, kind)
					for _, e := range list {
						reader(e)
					}
					if container == "" || list[len(list)-1].Container == container {
						return
					}
				}
			}
			follow(Reconcile, "")
			for i := range 10 {
				f.start(fmt.Sprint("before-", i))
			}
			follow(Started, "before-9")

			f.stop()
			follow(Lost, "")
			for i := range 5 {
				f.kill(fmt.Sprint("before-", i))
				f.start(fmt.Sprint("during-", i))
				f.kill(fmt.Sprint("during-", i))
			}
			f.start("during-stays")
			if restart {
				f.mu.Lock()
				f.ring = nil
				f.containers["before-9"].State.StartedAt = "2025-01-01T00:00:00Z" // it has been restarted
				f.mu.Unlock()
			}
			f.listen()
			follow(Reconcile, "")
			f.start("after")
			follow(Started, "after")

			want := map[string]bool{"during-stays": true, "after": true}
			for i := 5; i < 10; i++ {
				want[fmt.Sprint("before-", i)] = true
			}
			if diff := cmp.Diff(want, running); diff != "" {
				t.Errorf("the reader's list, -want +got\n%s", diff)
			}
			for id, n := range told {
				if n != 1 {
					t.Errorf("the start of %s was told %d times", id, n)
				}
			}
			if replayed := told["during-0"] == 1; replayed == restart {
				t.Errorf("what happened during the outage was told: %v", replayed)
			}
		})
	}
}

// More happens than the engine remembers.
func TestEventsBeyondTheEnginesMemory(t *testing.T) {
	f, c := newFake(t)
	got := listen(t, c, time.Time{})
	until(t, got, Reconcile)
	f.stop()
	until(t, got, Lost)
	f.start("forgotten")
	for i := range ringLength {
		f.start(fmt.Sprint(i))
	}
	f.listen()
	list := until(t, got, Reconcile)
	f.start("last")
	for list[len(list)-1].Container != "last" {
		list = append(list, until(t, got, Started)...)
	}
	if slices.ContainsFunc(list, func(e Event) bool { return e.Container == "forgotten" }) {
		t.Error("the fake remembers too much: this test shows nothing")
	}
	if all, err := c.List(t.Context()); err != nil || len(all) != ringLength+2 {
		t.Errorf("the list has %d containers (%v), want %d", len(all), err, ringLength+2)
	}
}

// The reader may leave at any event, also while the engine is away.
func TestEventsReaderLeaves(t *testing.T) {
	f, c := newFake(t)
	for _, leaveAt := range []EventKind{Reconcile, Started, Lost} {
		for e := range c.Events(t.Context(), time.Time{}) {
			if e.Kind == leaveAt {
				break
			}
			switch e.Kind {
			case Reconcile:
				f.start("c1")
			case Started:
				f.stop()
			}
		}
	}
}

// A newer engine that comes back is spoken to in a version that it takes.
func TestEventsAgreeOnTheVersionAgain(t *testing.T) {
	f, c := newFake(t)
	var opened atomic.Int32
	open := c.open
	c.open = func() (API, error) { opened.Add(1); return open() }
	got := listen(t, c, time.Time{})
	until(t, got, Reconcile)
	if i, err := c.Info(t.Context()); err != nil || i.Version != "20.10.24+dfsg1" {
		t.Fatalf("version %v, error %v", i.Version, err)
	}
	f.stop()
	until(t, got, Lost)
	f.mu.Lock()
	f.version.Version, f.version.APIVersion = "29.0.0", "1.52"
	f.mu.Unlock()
	f.listen()
	until(t, got, Reconcile)
	if i, err := c.Info(t.Context()); err != nil || i.Version != "29.0.0" {
		t.Errorf("version %v, error %v, want the new one", i.Version, err)
	}
	if opened.Load() == 0 {
		t.Error("the old client is still used, with the version that it has agreed on")
	}
}

func TestEventsWithoutAnEngine(t *testing.T) {
	f, c := newFake(t)
	f.stop()
	got := listen(t, c, time.Time{})
	if e := until(t, got, Lost); len(e) != 1 || e[0].Err == nil {
		t.Errorf("got %v, want one loss with its reason", e)
	}
	until(t, got, Lost)
	f.listen()
	until(t, got, Reconcile)
}

// What is remembered of events stays small.
func TestStreamForgets(t *testing.T) {
	s := stream{seen: make(map[eventKey]bool), last: time.Unix(0, 0)}
	message := func(nano int64) events.Message {
		return events.Message{Type: events.ContainerEventType, Action: events.ActionStart, TimeNano: nano, Actor: events.Actor{ID: "c1"}}
	}
	for i := range int64(10 * mostSeen) {
		if _, ok := s.next(message(i * int64(overlap) / 100)); !ok {
			t.Fatalf("event %d was taken for an old one", i)
		}
		if len(s.seen) > mostSeen {
			t.Fatalf("%d events are remembered", len(s.seen))
		}
	}
	for i := range int64(2 * mostSeen) { // all at one time
		m := message(int64(20 * mostSeen * overlap))
		m.Actor.ID = fmt.Sprint(i)
		s.next(m)
		if len(s.seen) > mostSeen {
			t.Fatalf("%d events are remembered", len(s.seen))
		}
	}
	if _, ok := s.next(message(int64(20*mostSeen*overlap) + 1)); !ok {
		t.Error("an event was taken for an old one")
	}
	if _, ok := s.next(message(int64(20*mostSeen*overlap) + 1)); ok {
		t.Error("an event was told twice")
	}
}
