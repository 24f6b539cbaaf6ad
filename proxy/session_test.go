package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/control"
	"sluice/matcher"
	"sluice/policy"
)

// everywhere is one policy for all phases, as a controller sends it.
func everywhere(text string) map[string]json.RawMessage {
	all := make(map[string]json.RawMessage)
	for phase := range policy.Phase(policy.PhaseCount) {
		all[phase.String()] = json.RawMessage(text)
	}
	return all
}

// set makes or changes a session as a controller does.
func (r *rig) set(id string, spec control.SessionSpec) (control.Receipt, error) {
	return r.server.SetSession(r.Context(), id, spec)
}

// Case P-28: what was sent before something else is late, also if that something else changed nothing.
func TestGenerationGrowsWithoutChange(t *testing.T) {
	r := start(t, `"public"`, Config{})
	open := everywhere(allow("a.test"))
	if _, err := r.set("test", control.SessionSpec{Generation: 10, Policies: open}); err != nil {
		t.Fatal(err)
	}
	receipt, err := r.set("test", control.SessionSpec{Generation: 20, Policies: open})
	if err != nil || !receipt.Unchanged || receipt.Generation != 20 {
		t.Errorf("the same again: %+v, %v; want unchanged, and generation 20", receipt, err)
	}
	_, err = r.set("test", control.SessionSpec{Generation: 15, Policies: everywhere(`"public"`)})
	if e, ok := errors.AsType[*control.Error](err); !ok || e.Code != control.CodeStale {
		t.Errorf("generation 15 behind 20: %v; want a stale one refused", err)
	}
}

// No number is so great that later ones begin anew, so that what is late would pass for new.
func TestGenerationsDoNotBeginAnew(t *testing.T) {
	r := start(t, `"public"`, Config{})
	for _, too := range []uint64{math.MaxUint64, control.MaxGeneration + 1} {
		if _, err := r.set("test", control.SessionSpec{Generation: too, Policies: everywhere(allow("a.test"))}); !errors.Is(err, control.ErrInvalid) {
			t.Errorf("generation %d: %v, want it refused", too, err)
		}
	}
	for i, spec := range []control.SessionSpec{{Generation: control.MaxGeneration, Policies: everywhere(allow("a.test"))}, {Policies: everywhere(allow("b.test"))}} {
		receipt, err := r.set("test", spec)
		if want := uint64(control.MaxGeneration + i); err != nil || receipt.Generation != want {
			t.Errorf("generation %d, %v; want %d", receipt.Generation, err, want)
		}
	}
}

// Whoever asks for a switch may go away: the switch is not left half-way, and nothing is quarantined for that.
func TestSwitchOutlivesItsCaller(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1"), Config{Workers: 1})
	c, _ := r.connect("127.0.0.1:"+port, "")
	wantEcho(t, c, "\x00")
	goOn := r.server.workers[0].stop(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := r.server.SetSession(ctx, "test", control.SessionSpec{Policies: everywhere(`"no-network"`)})
		done <- err
	}()
	for r.session.rules().policy.Mode != policy.NoNetwork { // until it has begun
		time.Sleep(time.Millisecond)
	}
	cancel()
	goOn()
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantReset(t, c)
	if state := r.session.status(false).State; state != control.Serving {
		t.Errorf("the session is %s, want serving", state)
	}
	if _, err := r.server.SetSession(ctx, "test", control.SessionSpec{Policies: everywhere(`"public"`)}); !errors.Is(err, context.Canceled) {
		t.Errorf("a switch by somebody who is gone: %v", err)
	}
	if mode := r.session.rules().policy.Mode; mode != policy.NoNetwork {
		t.Errorf("mode %v is in force", mode)
	}
}

// A session's listeners may come before its policy, and two sessions may be of containers of one name: one is going,
// the next has come. Metrics go on.
func TestContainerNames(t *testing.T) {
	r := start(t, `"public"`, Config{})
	scrape := func() (int, string) {
		w := httptest.NewRecorder()
		r.server.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Code, w.Body.String()
	}
	var group sync.WaitGroup
	group.Go(func() {
		for range 100 {
			scrape()
		}
	})
	for _, id := range []string{"test", "other", "third"} {
		if _, err := r.set(id, control.SessionSpec{Container: "web", ContainerID: id, Policies: everywhere(`"no-network"`)}); err != nil {
			t.Error(err)
		}
	}
	group.Wait()
	if _, err := r.set("third", control.SessionSpec{Container: "test", Policies: everywhere(`"no-network"`)}); err != nil {
		t.Error(err)
	}
	status, text := scrape()
	if status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	for _, want := range []string{`sluice_generation{container="web"}`, `sluice_generation{container="web (test)"}`, `sluice_generation{container="test"}`} {
		if !strings.Contains(text, want) {
			t.Errorf("no series %s in\n%s", want, text)
		}
	}
}

// What reaches a session that is being deleted is not in force and not served.
func TestEndedSession(t *testing.T) {
	r := start(t, `"public"`, Config{})
	if _, err := r.server.DeleteSession(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.session.Apply(t.Context(), Change{}); err == nil || !strings.Contains(err.Error(), "test") {
		t.Errorf("Apply: %v; want an error that names the session", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.session.ServeTCP(l.(*net.TCPListener)); err == nil {
		t.Error("a listener is served")
	}
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("the listener is open")
	}
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.session.ServeDNS(u.(*net.UDPConn), nil)
	if _, err := u.WriteTo([]byte("x"), u.LocalAddr()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the UDP socket is open: %v", err)
	}
	if _, err := r.server.DeleteSession(t.Context(), "test"); err == nil {
		t.Error("it was deleted twice")
	}
}

// An event loop must not wait for a switch, which waits for the event loops.
func TestRedirectedDNSDuringSwitch(t *testing.T) {
	r := start(t, `"public"`, Config{Workers: 1})
	r.redirect("127.0.0.1:53")
	r.session.switching.Lock() // as a switch has it
	c := r.dial()
	if _, err := io.WriteString(c, "\x00"); err != nil {
		t.Fatal(err)
	}
	r.wantConnections(0) // it is not the event loop's any more
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.server.workers[0].Do(ctx, func() {}); err != nil {
		t.Errorf("the event loop hangs: %v", err)
	}
	r.session.switching.Unlock()
}

// Phases that say the same have one rule set, also when the session's surroundings change what it means; others have
// one of their own.
func TestEqualPhases(t *testing.T) {
	r := start(t, `"public"`, Config{})
	same, other := json.RawMessage(allow("192.0.2.0/24")), json.RawMessage(allow("198.51.100.1"))
	for n, spec := range []control.SessionSpec{
		{Policies: map[string]json.RawMessage{"baseline": same, "run": other, "evaluation": same}},
		{Never: []string{"192.0.2.128/25"}},
		{Policies: map[string]json.RawMessage{"baseline": other, "run": other, "evaluation": same}},
	} {
		if _, err := r.set("test", spec); err != nil {
			t.Fatal(err)
		}
		staged := &r.session.staged
		for i := range staged {
			for j := range staged[:i] {
				equal := staged[i].policy.Digest() == staged[j].policy.Digest()
				if (staged[i].set == staged[j].set) != equal {
					t.Errorf("change %d: phases %d and %d have one rule set: %v, want %v", n, i, j, !equal, equal)
				}
			}
			listed := staged[i].set.Addr(netip.MustParseAddr("192.0.2.1"), 80)
			own := staged[i].set.Addr(netip.MustParseAddr("192.0.2.129"), 80)
			if allowed := staged[i].policy.Targets[0].Host == "192.0.2.0/24"; (listed.Verdict == matcher.Allow) != allowed ||
				(own.Verdict == matcher.Allow) != (allowed && len(r.session.around.Load().Never) == 0) {
				t.Errorf("change %d: phase %d: %+v, %+v", n, i, listed, own)
			}
		}
	}
}
