package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
)

// EventKind says what has happened.
type EventKind string

const (
	// Reconcile asks the reader to list everything: what has happened before is not sure to be told. It comes
	// first, and again whenever the engine has been out of reach.
	Reconcile EventKind = "reconcile"
	// Lost says that the engine is out of reach, and Event.Err why. Reconcile follows when it is back.
	Lost EventKind = "lost"

	// Of containers.
	Created   EventKind = "created"
	Started   EventKind = "started"
	Died      EventKind = "died"
	Destroyed EventKind = "destroyed"
	Paused    EventKind = "paused"
	Unpaused  EventKind = "unpaused"
	Renamed   EventKind = "renamed"
	Updated   EventKind = "updated" // its restart policy or its limits

	// Of a container and a network.
	Connected    EventKind = "connected"
	Disconnected EventKind = "disconnected"

	// Of networks.
	NetworkCreated   EventKind = "network-created"
	NetworkDestroyed EventKind = "network-destroyed"
)

// Event is a change that the engine tells of.
type Event struct {
	Kind      EventKind
	Container string // its id, "" if none is concerned
	Network   string // its id, likewise
	// Time is the engine's. Events of one container come in order.
	Time time.Time
	Err  error // of Lost
}

var (
	containerEvents = map[events.Action]EventKind{
		events.ActionCreate: Created, events.ActionStart: Started, events.ActionDie: Died, events.ActionDestroy: Destroyed,
		events.ActionPause: Paused, events.ActionUnPause: Unpaused, events.ActionRename: Renamed, events.ActionUpdate: Updated,
	}
	networkEvents = map[events.Action]EventKind{
		events.ActionConnect: Connected, events.ActionDisconnect: Disconnected,
		events.ActionCreate: NetworkCreated, events.ActionDestroy: NetworkDestroyed,
	}
)

// Events iterates over what happens to containers and networks, until ctx is done. The engine's stream is opened again
// when it breaks, from the time of the last event; what was told before is not told again. The engine keeps its last
// 256 events only, and none when it restarts, so a [Reconcile] follows all the same.
//
// since is the time from which events are wanted, zero for now. The body of the loop must not take long: an engine
// leaves events out for those who do not read them in time, and does not tell. Everything that is started here has
// ended when the loop ends.
func (c *Client) Events(ctx context.Context, since time.Time) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		s := stream{client: c, yield: yield, seen: make(map[eventKey]bool)}
		if s.last = since; since.IsZero() {
			s.last = time.Now()
		}
		for wait := time.Duration(0); ; wait = min(max(2*wait, shortestWait), longestWait) {
			if !sleep(ctx, wait) {
				return
			}
			begin := time.Now()
			err := s.follow(ctx)
			if ctx.Err() != nil || s.stopped {
				return
			}
			if time.Since(begin) > longestWait {
				wait = 0
			}
			c.reopen()
			if !yield(Event{Kind: Lost, Time: time.Now(), Err: err}) {
				return
			}
		}
	}
}

const (
	shortestWait = 50 * time.Millisecond
	longestWait  = 3 * time.Second
	// overlap is how far before the last event the engine is asked to begin: events are not quite in the order of
	// their times.
	overlap = time.Second
	// mostSeen bounds what is remembered of events: more than the engine could tell again.
	mostSeen = 1024
)

// sleep reports false if ctx is done.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// stream is what is known from one connection to the next.
type stream struct {
	client  *Client
	yield   func(Event) bool
	stopped bool // the reader has left the loop
	last    time.Time
	seen    map[eventKey]bool // since last - overlap
}

type eventKey struct {
	nano     int64
	kind     EventKind
	actor    string
	concerns string
}

// follow reads one connection to its end.
func (s *stream) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	api := s.client.engine()
	messages, errs := api.Events(ctx, s.options())
	defer func() {
		cancel()
		for range errs { // closed when the client's goroutine has ended
		}
	}()
	// The stream says nothing until something happens. Where it could not be opened, neither can the engine be
	// pinged, or errs tells soon after; then another Reconcile follows this one.
	pingCtx, done := bounded(ctx)
	_, err := api.Ping(pingCtx)
	done()
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	if !s.tell(Event{Kind: Reconcile, Time: time.Now()}) {
		return nil
	}
	for {
		select {
		case m := <-messages:
			if e, ok := s.next(m); ok && !s.tell(e) {
				return nil
			}
		case err, open := <-errs:
			if !open || errors.Is(err, io.EOF) {
				err = errors.New("the engine has closed the stream")
			}
			return fmt.Errorf("engine's events: %w", err)
		}
	}
}

func (s *stream) tell(e Event) bool {
	s.stopped = !s.yield(e)
	return !s.stopped
}

func (s *stream) options() events.ListOptions {
	args := filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg("type", string(events.NetworkEventType)))
	for _, actions := range []map[events.Action]EventKind{containerEvents, networkEvents} {
		for action := range actions {
			args.Add("event", string(action))
		}
	}
	return events.ListOptions{Since: strconv.FormatInt(s.last.Add(-overlap).Unix(), 10), Filters: args}
}

// next turns a message into an event, unless it was told before or does not matter.
func (s *stream) next(m events.Message) (Event, bool) {
	e := Event{Time: time.Unix(0, m.TimeNano)}
	if m.TimeNano == 0 {
		e.Time = time.Unix(m.Time, 0)
	}
	switch m.Type {
	case events.ContainerEventType:
		e.Kind, e.Container = containerEvents[m.Action], m.Actor.ID
	case events.NetworkEventType:
		e.Kind, e.Network, e.Container = networkEvents[m.Action], m.Actor.ID, m.Actor.Attributes["container"]
	}
	key := eventKey{m.TimeNano, e.Kind, m.Actor.ID, e.Container}
	if e.Kind == "" || s.seen[key] {
		return e, false
	}
	if len(s.seen) >= mostSeen {
		s.forget()
	}
	s.seen[key] = true
	if e.Time.After(s.last) {
		s.last = e.Time
	}
	return e, true
}

// forget drops what the engine is not asked for again; if that is nothing, everything, at the price of repetitions.
func (s *stream) forget() {
	before := len(s.seen)
	for key := range s.seen {
		if key.nano < s.last.Add(-overlap).UnixNano() {
			delete(s.seen, key)
		}
	}
	if len(s.seen) == before {
		clear(s.seen)
	}
}
