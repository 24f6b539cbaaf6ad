package control

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/policy"
)

func TestClientAndHandler(t *testing.T) {
	b := &fakeBackend{}
	c := serve(t, b)
	ctx := t.Context()

	spec := SessionSpec{
		Container: "web", ContainerID: "0123", Generation: 7, Phase: "run",
		Policies:  map[string]json.RawMessage{"run": json.RawMessage(`{"network_mode":"allowlist","allowed_hosts":["ok.test"]}`)},
		Upstreams: []string{"192.0.2.53"}, Never: []string{"192.0.2.0/24"},
		Hosts: map[string][]string{"db": {"192.0.2.9", "2001:db8::9"}}, Open: map[string][]string{"gate": {"192.0.2.8"}}, NoRoute: []string{"ipv6"},
	}
	receipt, err := c.SetSession(ctx, "s1", spec)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "receipt", receipt, Receipt{Session: "s1", Generation: 7, Phase: "run", FlowsCut: 1, FlowsKept: 2})
	check(t, "spec", b.specs[0], spec)

	got, err := c.Session(ctx, "s1")
	if err != nil {
		t.Fatal(err)
	}
	want := SessionStatus{ID: "s1", State: Serving, Phase: "run", Generation: 7, Policies: spec.Policies}
	check(t, "session", got, want)

	all, err := c.Sessions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "sessions", all, []SessionStatus{want})

	flows, err := c.Flows(ctx, "s1")
	if err != nil {
		t.Fatal(err)
	}
	check(t, "flows", flows, []Flow{{ID: "f1", Protocol: "connect", Target: "ok.test:443", Address: "192.0.2.1:443", BytesIn: 7}})

	explanation, err := c.Explain(ctx, "s1", "[2001:db8::1]:443&x=y")
	if err != nil {
		t.Fatal(err)
	}
	check(t, "explanation", explanation, Explanation{Target: "[2001:db8::1]:443&x=y", Phase: "s1", Verdict: "refuse", Reason: "not-listed"})

	health, err := c.Health(ctx)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "health", health, Health{OK: true, Version: "v1", Sessions: 1, Milliseconds: 0.5})

	text, err := c.Metrics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "metrics", text, "sluice_build_info 1\n")

	if err := c.DropListeners(ctx, "s1", 1<<63); err != nil {
		t.Fatal(err)
	}
	check(t, "kept set", b.kept, []uint64{1 << 63})

	receipt, err = c.DeleteSession(ctx, "s1")
	if err != nil {
		t.Fatal(err)
	}
	check(t, "receipt of delete", receipt, Receipt{Session: "s1", FlowsCut: 3})
}

func check[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Ids come from containers and people: nothing in one may lead to another path, at either end.
func TestSessionIDs(t *testing.T) {
	b := &fakeBackend{}
	c := serve(t, b)
	for _, id := range []string{"default", "0123abcdef-4026531840", "a.b_c", "A", strings.Repeat("f", 128)} {
		if _, err := c.SetSession(t.Context(), id, SessionSpec{Generation: 1}); err != nil {
			t.Errorf("%q: %v", id, err)
			continue
		}
		if got, err := c.Session(t.Context(), id); err != nil || got.ID != id {
			t.Errorf("%q: got %q, %v", id, got.ID, err)
		}
	}
	set := len(b.specs)
	for _, id := range []string{"", ".", "..", "../s1", "a/b", "a b", "a?b", "a%2fb", "a#b", "ä", "s1/flows", "a@b", "[a", strings.Repeat("f", 129)} {
		if _, err := c.SetSession(t.Context(), id, SessionSpec{Generation: 1}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: client: got %v", id, err)
		}
		answer := rawRequest(t, c, "PUT /v1/sessions/"+url.PathEscape(id)+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
		if strings.HasPrefix(answer, "HTTP/1.1 200 ") {
			t.Errorf("%q: handler: got %s", id, answer)
		}
	}
	if len(b.specs) != set {
		t.Errorf("the backend was given %d sessions with bad ids", len(b.specs)-set)
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	fault := &policy.Error{Pointer: "/allowed_hosts/0", Text: `"*"`, Problem: "names no host", Repair: "use the mode public"}
	for _, row := range []struct {
		name string
		fail error
		want *Error
	}{
		{"stale", StaleError("s1", 9, 3), &Error{Code: CodeStale, Have: 9, Got: 3, Message: StaleError("s1", 9, 3).Message}},
		{"not-found", NotFoundError("x"), &Error{Code: CodeNotFound, Message: NotFoundError("x").Message}},
		{"quarantined", &Error{Code: CodeQuarantined, Message: "q"}, &Error{Code: CodeQuarantined, Message: "q"}},
		{"policy", fault, &Error{Code: CodeInvalid, Message: fault.Error(), Policy: []*policy.Error{fault}}},
		{"policies", &policy.Errors{All: []*policy.Error{fault, fault}}, &Error{Code: CodeInvalid,
			Message: fault.Error() + "\n" + fault.Error(), Policy: []*policy.Error{fault, fault}}},
		{"internal", errFake, &Error{Code: CodeInternal, Message: errFake.Error()}},
		{"unknown-code", &Error{Code: "made-up", Message: "m"}, &Error{Code: CodeInternal, Message: "m"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := serve(t, &fakeBackend{fail: row.fail})
			_, setErr := c.SetSession(t.Context(), "s1", SessionSpec{})
			_, healthErr := c.Health(t.Context())
			for _, err := range []error{setErr, healthErr} {
				got, ok := errors.AsType[*Error](err)
				if !ok {
					t.Fatalf("got %T %v, want an *Error", err, err)
				}
				if diff := cmp.Diff(row.want, got, cmp.Comparer(func(a, b *policy.Error) bool { return a.Error() == b.Error() })); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if !errors.Is(err, &Error{Code: row.want.Code}) || errors.Is(err, &Error{Code: CodeForbidden}) {
					t.Errorf("errors.Is does not go by the code of %v", err)
				}
			}
		})
	}
}

func TestUnhealthy(t *testing.T) {
	c := serve(t, &fakeBackend{sick: true})
	got, err := c.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check(t, "health", got, Health{Version: "v1", Problems: []string{"nothing comes back"}})
}

func TestClientWithoutServer(t *testing.T) {
	c := &Client{Dir: shortDir(t)}
	_, err := c.Health(t.Context())
	if err == nil || !strings.Contains(err.Error(), c.Dir) || !strings.Contains(err.Error(), "is the proxy running") {
		t.Errorf("got %v, want an error that names the directory and what to do", err)
	}
}

type slowBackend struct {
	fakeBackend
	entered chan struct{}
}

func (b *slowBackend) Flows(ctx context.Context, _ string) ([]Flow, error) {
	close(b.entered)
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestCancelledCall(t *testing.T) {
	b := &slowBackend{entered: make(chan struct{})}
	c := serve(t, b)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("phase changed")
	go func() { <-b.entered; cancel(why) }()
	if _, err := c.Flows(ctx, "s1"); !errors.Is(err, why) {
		t.Errorf("got %v, want the context's cause", err)
	}
}

func TestEvents(t *testing.T) {
	b := &fakeBackend{}
	c, stop := serveUntil(t, b)
	sent := Event{Time: time.Unix(1, 5).UTC(), Container: "web", Phase: "run", Protocol: "connect", Target: "ok.test", Port: 443, Verdict: "allow", BytesIn: 3}
	published := make(chan struct{})
	go func() {
		defer close(published)
		for !b.hub.Active() {
			time.Sleep(time.Millisecond)
		}
		b.hub.Publish(sent)
	}()
	var got []Event
	var last error
	for e, err := range c.Events(t.Context()) {
		if err != nil {
			last = err
			break
		}
		got = append(got, e)
		// The server's end is the reader's, too.
		if err := stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
	<-published
	check(t, "events", got, []Event{sent})
	if last == nil || !strings.Contains(last.Error(), "ended") {
		t.Errorf("got %v, want an error that says that the stream ended", last)
	}
	if b.hub.Active() {
		t.Error("the stream's subscription is still there")
	}
}

func TestEventsReaderLeaves(t *testing.T) {
	b := &fakeBackend{}
	c := serve(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !b.hub.Active() {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	for _, err := range c.Events(ctx) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	}
	for b.hub.Active() {
		time.Sleep(time.Millisecond)
	}
}

// A reader that stops reading neither holds up who publishes nor believes afterwards that it saw everything.
func TestSlowEventReaderIsToldSo(t *testing.T) {
	b := &fakeBackend{}
	c := serve(t, b)
	go func() {
		for !b.hub.Active() {
			time.Sleep(time.Millisecond)
		}
		b.hub.Publish(Event{Target: "first"})
	}()
	event := Event{Target: strings.Repeat("x", 4096)} // so that the socket's buffer fills soon
	n := 0
	var last error
	for e, err := range c.Events(t.Context()) {
		if err != nil {
			last = err
			break
		}
		if n++; n == 1 {
			for b.hub.Active() { // until this reader, which does not read, is dropped
				b.hub.Publish(event)
			}
		}
		if e.Target == "" {
			t.Fatal("an event without content")
		}
	}
	if e, ok := errors.AsType[*Error](last); !ok || !strings.Contains(e.Message, "too slow") {
		t.Errorf("after %d events got %v, want the server's word that the reader was too slow", n, last)
	}
	if n < subscriberEvents {
		t.Errorf("got %d events, want at least the %d that were queued", n, subscriberEvents)
	}
}
