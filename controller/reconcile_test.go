package controller

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/control"
	"sluice/controller/api"
	"sluice/dockernet/xdp"
	"sluice/policy"
)

// addresses are compared by value.
var addresses = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

func TestRecover(t *testing.T) {
	w := newWorld()
	dir := t.TempDir()
	c, stop := w.control(t, dir)
	w.attached(t, c, "web", id1)
	if _, err := c.Phase(t.Context(), "web", policy.Run, 7); err != nil {
		t.Fatal(err)
	}
	before := w.session(id1).sockets
	want := status(t, c, "web")
	stop()
	if n := w.net(id1); n.open != 0 {
		t.Errorf("%d descriptors are left", n.open)
	}
	compare(t, "gate without a controller", w.net(id1).gate.holds(), "run=no-network")
	w.steps()

	c, _ = w.control(t, dir)
	// Nothing is cut, and redirects lead to new listeners.
	compare(t, "steps", w.steps(), []string{"open", "listen", "sidecar apply", "sidecar hand", "gate install", "guard install", "sidecar settle"})
	if s := w.session(id1); s.sockets == before || s.hands != 2 || s.spec.Generation != 7 {
		t.Errorf("session %+v", s)
	}
	got := status(t, c, "web")
	got.Since = want.Since
	compare(t, "status", got, want)
	if _, err := c.Phase(t.Context(), "web", policy.Evaluation, 0); err != nil {
		t.Fatal(err)
	}
	compare(t, "gate", w.net(id1).gate.holds(), "evaluation=allowlist")
}

// TestRecoverInTheMiddle ends a controller between two steps of a switch: the next one makes the switch complete.
func TestRecoverInTheMiddle(t *testing.T) {
	w := newWorld()
	dir := t.TempDir()
	c, stop := w.control(t, dir)
	w.attached(t, c, "web", id1)
	m, err := c.locked(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	next := m.record
	next.Phase, next.Generation, next.Pending = policy.Run, 2, true
	if err := c.store.save(&next); err != nil {
		t.Fatal(err)
	}
	m.leave()
	stop()
	w.net(id1).direct = []string{"baseline"}
	c, _ = w.control(t, dir)
	if s := status(t, c, "web"); s.State != api.Attached || s.Phase != "run" || s.Generation != 2 {
		t.Errorf("status %+v", s)
	}
	compare(t, "gate", w.net(id1).gate.holds(), "run=no-network")
	if left := w.net(id1).direct; len(left) > 0 {
		t.Errorf("not cut: %v", left)
	}
}

// TestRecoverWithoutSidecar checks that what is in force stays, without a cut and without a quarantine, until the
// sidecar is back.
func TestRecoverWithoutSidecar(t *testing.T) {
	w := newWorld()
	dir := t.TempDir()
	c, stop := w.control(t, dir)
	w.attached(t, c, "web", id1)
	stop()
	w.failing("sidecar apply", errFake)
	c, _ = w.control(t, dir)
	compare(t, "gate", w.net(id1).gate.holds(), "baseline=public")
	if s := status(t, c, "web"); s.State != api.Attached || len(s.Proxy) > 0 {
		t.Errorf("status %+v", s)
	}
	w.failing("", nil)
	eventually(t, "the container is taken up", func() bool { return len(status(t, c, "web").Proxy) > 0 })
	for _, s := range w.steps() {
		if s == "cut" || strings.HasSuffix(s, "quarantine") {
			t.Errorf("step %s", s)
		}
	}
}

func TestRecoverAfterChanges(t *testing.T) {
	w := newWorld()
	dir := t.TempDir()
	c, stop := w.control(t, dir)
	w.attached(t, c, "removed", id1)
	w.attached(t, c, "restarted", id2)
	id3, id4 := strings.Repeat("3", 64), strings.Repeat("4", 64)
	w.attached(t, c, "stopped", id3)
	w.attached(t, c, "broken", id4)
	stop()
	before := map[string]*fakeNet{id1: w.net(id1), id2: w.net(id2), id3: w.net(id3)}
	w.remove(id1)
	w.start("removed", strings.Repeat("5", 64)) // a successor of that name
	w.stop(id2)
	w.start("restarted", id2)
	w.stop(id3)
	if err := os.WriteFile(filepath.Join(dir, id4+recordSuffix), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.sessions["0000.1:1"] = &fakeSession{} // of nobody
	w.steps()

	c, _ = w.control(t, dir)
	if _, err := c.Status(t.Context(), "removed"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("the successor of a container that is gone: %v", err)
	}
	if s := status(t, c, "restarted"); s.State != api.Attached || s.UncoveredMilliseconds == 0 {
		t.Errorf("status %+v", s)
	}
	compare(t, "gate of another run", w.net(id2).gate.holds(), "baseline=public")
	if s := status(t, c, "stopped"); s.State != api.Stopped {
		t.Errorf("status %+v", s)
	}
	compare(t, "gate of which nobody knows", w.net(id4).gate.holds(), "baseline=public")
	for id, n := range before {
		compare(t, "guard of the former run of "+id[:1], n.guard.holds(), "open")
	}
	for _, id := range []string{id1, id3, "0000"} {
		if w.session(id) != nil {
			t.Errorf("session of %s is left", id)
		}
	}
	if w.session(id4) == nil {
		t.Error("session of the container with the broken record is gone")
	}
}

func TestStopStartRemove(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	changed := func() { w.events <- Event{Kind: ContainerChanged, Container: id1} }
	state := func(s api.State) func() bool {
		return func() bool { return status(t, c, id1).State == s }
	}

	first := w.net(id1)
	w.stop(id1)
	changed()
	eventually(t, "stopped", state(api.Stopped))
	if first.open != 0 || w.session(id1) != nil || first.guard.holds() != "open" {
		t.Errorf("left: %d descriptors, session %v, guard: %s", first.open, w.session(id1), first.guard.holds())
	}

	// What is switched meanwhile counts when it starts.
	r, err := c.Phase(t.Context(), "web", policy.Run, 0)
	if err != nil || r.Phase != "run" {
		t.Fatalf("receipt %+v, error %v", r, err)
	}
	if _, err := c.Explain(t.Context(), "web", "ok.test:443"); !errors.Is(err, control.ErrConflict) {
		t.Errorf("explain: %v", err)
	}

	w.start("web", id1)
	changed()
	eventually(t, "attached again", state(api.Attached))
	compare(t, "gate", w.net(id1).gate.holds(), "run=no-network")
	compare(t, "guard", w.net(id1).guard.holds(), "run=no-network")

	w.remove(id1)
	w.start("web", id2) // a successor by the same name
	changed()
	eventually(t, "forgotten", func() bool { _, err := c.Status(t.Context(), id1); return err != nil })
	if _, err := c.Status(t.Context(), "web"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("the successor: %v", err)
	}
	compare(t, "gate of the successor", w.net(id2).gate.holds(), "open")
}

// TestRestartFails checks that a run whose policy cannot be brought in force gets nothing.
func TestRestartFails(t *testing.T) {
	for _, row := range []struct{ step, want string }{
		{"gate install", "nothing passes"},
		{"sidecar apply", "nothing passes"},
		{"open", "open"}, // there is no way in, so it is paused
	} {
		t.Run(strings.ReplaceAll(row.step, " ", "-"), func(t *testing.T) {
			w := newWorld()
			c, _ := w.control(t, t.TempDir())
			w.attached(t, c, "web", id1)
			w.failing(row.step, errFake)
			w.stop(id1)
			w.start("web", id1)
			w.events <- Event{Kind: Resync}
			eventually(t, "quarantined", func() bool { return status(t, c, "web").State == api.Quarantined })
			compare(t, "gate", w.net(id1).gate.holds(), row.want)
			if w.paused[id1] != (row.step == "open") {
				t.Errorf("paused: %v", w.paused)
			}
			w.failing("", nil)
			if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
				t.Fatal(err)
			}
			compare(t, "gate", w.net(id1).gate.holds(), "run=no-network")
			if len(w.paused) > 0 {
				t.Error("still paused")
			}
		})
	}
}

// TestSiblings checks that the name of another container stands for its address of today.
func TestSiblings(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	if _, err := c.Phase(t.Context(), "web", policy.Evaluation, 0); err != nil {
		t.Fatal(err)
	}
	w.steps()
	named := func() []netip.AddrPort {
		m, err := c.member(id1)
		if err != nil {
			t.Fatal(err)
		}
		return m.shown.Load().plan.Direct.Phases[policy.Evaluation].Named
	}
	compare(t, "named", named(), []netip.AddrPort{netip.MustParseAddrPort("172.17.0.3:0")}, addresses)

	w.events <- Event{Kind: NetworkJoined, Container: id2, Network: "another"}
	w.events <- Event{Kind: NetworkJoined, Container: id2, Network: "net1"} // nothing has changed for web yet
	w.change(id1, func(c *Container) {
		c.Hosts = map[string][]netip.Addr{"db": {netip.MustParseAddr("172.17.0.9")}, "cache": {netip.MustParseAddr("172.17.0.4")}}
	})
	w.events <- Event{Kind: NetworkJoined, Container: id2, Network: "net1"}
	eventually(t, "the new address", func() bool {
		n := named()
		return len(n) == 1 && n[0] == netip.MustParseAddrPort("172.17.0.9:0")
	})
	compare(t, "steps", w.steps(), setSteps)
	compare(t, "hosts of the session", w.hosts(id1), map[string][]string{"db": {"172.17.0.9"}, "cache": {"172.17.0.4"}})
	if s := status(t, c, "web"); s.Generation != 3 || s.Phase != "evaluation" {
		t.Errorf("status %+v", s)
	}

	// A name that no policy has is the sidecar's alone.
	w.change(id1, func(c *Container) {
		c.Hosts = map[string][]netip.Addr{"db": {netip.MustParseAddr("172.17.0.9")}, "other": {netip.MustParseAddr("172.17.0.5")}}
	})
	w.events <- Event{Kind: NetworkJoined, Container: id2, Network: "net1"}
	eventually(t, "the other name", func() bool { return len(w.hosts(id1)["other"]) == 1 })
	w.settled(t, c)
	compare(t, "steps", w.steps(), []string{"sidecar apply"})
	if s := status(t, c, "web"); s.Generation != 4 {
		t.Errorf("status %+v", s)
	}

	// A sibling is put on its network before it runs, and is known when it does.
	w.events <- Event{Kind: NetworkJoined, Container: id2, Network: "net1"}
	w.settled(t, c)
	w.change(id1, func(c *Container) { c.Hosts = map[string][]netip.Addr{"late": {netip.MustParseAddr("172.17.0.6")}} })
	w.events <- Event{Kind: ContainerChanged, Container: id2}
	eventually(t, "the name of one that has started", func() bool { return len(w.hosts(id1)["late"]) == 1 })
}

// TestRightsLater quarantines a container that turns out to have rights against which no rule holds.
func TestRightsLater(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	w.change(id1, func(c *Container) {
		c.Refusals = []Refusal{{Reason: "container helper shares its network and has NET_ADMIN", Repair: "remove it"}}
	})
	w.events <- Event{Kind: ContainerChanged, Container: id1}
	eventually(t, "quarantined", func() bool { return status(t, c, "web").State == api.Quarantined })
	compare(t, "gate", w.net(id1).gate.holds(), "nothing passes")
	if _, err := c.Phase(t.Context(), "web", policy.Run, 0); !errors.Is(err, control.ErrQuarantined) || !strings.Contains(err.Error(), "NET_ADMIN") {
		t.Errorf("a switch while they are there: %v", err)
	}
	w.change(id1, func(c *Container) { c.Refusals = nil })
	if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.start("web", id1)
	attach := func(allow bool) (api.Status, error) {
		return c.Attach(t.Context(), "web", parse(t, task), policy.Run, api.Options{AllowWeak: allow})
	}
	weak := Refusal{Reason: "it has SYS_PTRACE and the host's processes", Repair: "start it without", Weak: true}
	for _, row := range []struct {
		name   string
		change func(*Container)
		allow  bool
		want   string // in the error
	}{
		{"stopped", func(c *Container) { c.Running = false }, false, "start it first"},
		{"privileged", func(c *Container) {
			c.Refusals = []Refusal{{Reason: "it is privileged", Repair: "start it without --privileged"}}
		},
			true, "without --privileged"},
		{"weak", func(c *Container) { c.Running = true; c.Refusals = []Refusal{weak} }, false, "--allow-weak"},
		{"weak-and-more", func(c *Container) { c.Refusals = []Refusal{weak, {Reason: "it is privileged", Repair: "do not"}} },
			true, "privileged"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w.change(id1, func(c *Container) { c.Running, c.Refusals = true, nil })
			w.change(id1, row.change)
			if _, err := attach(row.allow); !errors.Is(err, control.ErrRefused) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want %q", err, row.want)
			}
			if steps := w.steps(); len(steps) > 0 {
				t.Errorf("was done all the same: %v", steps)
			}
		})
	}
	w.change(id1, func(c *Container) { c.Running, c.Refusals = true, []Refusal{weak} })
	s, err := attach(true)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "weak", s.Weak, []string{weak.Reason})
	if _, err := c.Attach(t.Context(), "nobody", parse(t, task), policy.Run, api.Options{}); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("a container that is not there: %v", err)
	}
	if _, err := c.Attach(t.Context(), "web", parse(t, task), policy.Baseline, api.Options{}); !errors.Is(err, control.ErrConflict) {
		t.Errorf("attached in another phase: %v", err)
	}
	other := parse(t, strings.Replace(task, "judge", "other", 1))
	if _, err := c.Attach(t.Context(), "web", other, policy.Run, api.Options{}); !errors.Is(err, control.ErrConflict) {
		t.Errorf("attached with other policies: %v", err)
	}
}

func TestReferences(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", "1a"+id1[2:])
	w.attached(t, c, "db", "1b"+id1[2:])
	for _, row := range []struct {
		ref, want string
		code      control.Code
	}{
		{"web", "web", ""},
		{"/web", "web", ""},
		{"1a", "web", ""},
		{"1b" + id1[2:], "db", ""},
		{"1", "", control.CodeInvalid},
		{"we", "", control.CodeNotFound},
		{"", "", control.CodeNotFound},
	} {
		s, err := c.Status(t.Context(), row.ref)
		if s.Name != row.want || code(err) != row.code {
			t.Errorf("%q: %q, error %v", row.ref, s.Name, err)
		}
	}
}

func TestExplain(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	if _, err := c.Phase(t.Context(), "web", policy.Evaluation, 0); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ target, verdict, text string }{
		{"db:5432", "allow", "reached directly"},
		{"172.17.0.3:5432", "allow", "reached directly"},
		{"172.17.0.4:5432", "refuse", "reached directly"},
		{"192.0.2.1:22", "refuse", "reached directly"},
		{"judge.test:443", "", "judged by session " + id1},
		{"203.0.113.5:443", "", "judged by session " + id1},
	} {
		x, err := c.Explain(t.Context(), "web", row.target)
		if err != nil || x.Verdict != row.verdict || !strings.Contains(x.Text, row.text) {
			t.Errorf("%s: %+v, error %v", row.target, x, err)
		}
	}
	if _, err := c.Explain(t.Context(), "web", "db"); !errors.Is(err, control.ErrInvalid) {
		t.Errorf("no port: %v", err)
	}
}

func TestRefusedPackets(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	if _, err := c.Phase(t.Context(), "web", policy.Evaluation, 0); err != nil {
		t.Fatal(err)
	}
	sub := c.Events().Subscribe()
	defer sub.Close()
	for _, row := range []struct {
		packet             Refused
		phase, reason, why string
	}{
		{Refused{By: "evaluation", Protocol: "udp", Destination: netip.MustParseAddrPort("198.51.100.9:123")}, "evaluation", "not-listed", ""},
		{Refused{By: "evaluation", Protocol: "tcp", Destination: netip.MustParseAddrPort("169.254.169.254:80")}, "evaluation", "floor", ""},
		{Refused{By: "evaluation", Protocol: "udp", Destination: netip.MustParseAddrPort("203.0.113.9:53")}, "evaluation", "not-direct", ""},
		{Refused{By: "run", Protocol: "icmp", Destination: netip.MustParseAddrPort("203.0.113.9:0")}, "run", "no-network", ""},
		{Refused{By: "gate", Protocol: "132", Destination: netip.MustParseAddrPort("203.0.113.9:0")}, "evaluation", "never", "gate"},
		{Refused{By: "guard false_source", Protocol: "0"}, "evaluation", "never", "guard false_source"},
	} {
		w.net(id1).refused <- row.packet
		e := <-sub.C
		if e.Container != "web" || e.Phase != row.phase || e.Reason != row.reason || e.Rule != row.why || e.Protocol != row.packet.Protocol ||
			e.Port != row.packet.Destination.Port() || e.Verdict != "refuse" || e.Decision == "" {
			t.Errorf("%+v: record %+v", row.packet, e)
		}
	}
}

func TestEventsAndMetrics(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	sub := c.Events().Subscribe()
	defer sub.Close()
	w.audit <- control.Event{Target: "evil.test"}
	if e := <-sub.C; e.Target != "evil.test" {
		t.Errorf("event %+v", e)
	}
	w.net(id1).direct = []string{"baseline", "baseline"}
	if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
		t.Fatal(err)
	}
	w.failing("gate both", errFake)
	if _, err := c.Phase(t.Context(), "web", policy.Baseline, 0); err == nil {
		t.Fatal("no error")
	}
	text := scrape(t, c)
	for _, line := range []string{
		`sluice_build_info{version="v1"} 1`,
		`sluice_containers{state="quarantined"} 1`,
		`sluice_containers{state="attached"} 0`,
		`sluice_flows_cut_total{container="web"} 2`,
		`sluice_generation{container="web"} 3`,
		`sluice_attach_seconds_count 1`,
		`sluice_switch_seconds_count 1`,
		`sluice_quarantines_total 1`,
		`sluice_failures_total{operation="switch"} 1`,
		`sluice_packets_total{container="web",phase="baseline",plane="direct",verdict="allow"} 1`,
		`sluice_packets_total{container="web",phase="run",plane="direct",verdict="refuse"} 2`,
		`sluice_packets_total{container="web",phase="",plane="direct",verdict="refuse"} 3`,
		`sluice_packets_total{container="web",phase="",plane="proxy",verdict="allow"} 4`,
		`sluice_packets_total{container="web",phase="",plane="dns",verdict="allow"} 5`,
		`sluice_packets_total{container="web",phase="",plane="guard",verdict="refuse"} 6`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
	w.failing("", nil)
	if err := c.Detach(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	if text := scrape(t, c); strings.Contains(text, "web") {
		t.Errorf("series of a container that is gone:\n%s", text)
	}
}

func scrape(t *testing.T, c *Controller) string {
	t.Helper()
	rec := httptest.NewRecorder()
	c.Metrics().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	return rec.Body.String()
}

// TestDetachFails checks that what is left after half a detach is known, and can be taken away or brought back.
func TestDetachFails(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	w.failing("gate remove", errFake)
	if err := c.Detach(t.Context(), "web"); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Fatalf("error %v", err)
	}
	if s := status(t, c, "web"); s.State != api.Quarantined || s.Problem == "" {
		t.Errorf("status %+v", s)
	}
	w.failing("", nil)
	if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
		t.Fatal(err)
	}
	compare(t, "guard", w.net(id1).guard.holds(), "run=no-network")
	if err := c.Detach(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
}

// TestIdle checks that a controller which ends with its last container takes no other one.
func TestIdle(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	idle := make(chan bool, 1)
	go func() { idle <- c.Idle(t.Context()) }()
	time.Sleep(2 * idlePause) // it looks, and sees the container; if it did not, the rest would take a minute
	select {
	case <-idle:
		t.Fatal("idle with a container")
	default:
	}
	if err := c.Detach(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	if !<-idle {
		t.Fatal("not idle")
	}
	w.steps()
	_, err := c.Attach(t.Context(), "web", parse(t, task), policy.Run, api.Options{})
	if err == nil || !strings.Contains(err.Error(), "is ending") {
		t.Errorf("error %v", err)
	}
	if steps := w.steps(); len(steps) > 0 {
		t.Errorf("was done all the same: %v", steps)
	}
}

func TestClear(t *testing.T) {
	w := newWorld()
	dir := t.TempDir()
	c, stop := w.control(t, dir)
	w.attached(t, c, "web", id1)
	w.attached(t, c, "gone", id2)
	stop()
	w.remove(id2)
	c, err := New(Config{Engine: fakeEngine{w}, Host: fakeHost{w}, Sidecar: fakeSidecar{w}, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := w.net(id1)
	if n.gate.holds() != "open" || n.guard.holds() != "open" || n.open != 0 {
		t.Errorf("left: gate %s, guard %s, %d descriptors", n.gate.holds(), n.guard.holds(), n.open)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, error %v", left, err)
	}
}

// Without the engine, what is in the kernel goes all the same.
func TestClearWithoutEngine(t *testing.T) {
	w := newWorld()
	dir := t.TempDir()
	c, stop := w.control(t, dir)
	w.attached(t, c, "web", id1)
	stop()
	c, err := New(Config{Engine: fakeEngine{w}, Host: fakeHost{w}, Sidecar: fakeSidecar{w}, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	w.failing("inspect", errFake)
	w.failing("managed", errFake)
	if err := c.Clear(t.Context()); err == nil || !strings.Contains(err.Error(), "clear again when the engine answers") {
		t.Errorf("error %v, want one that says what to do", err)
	}
	n := w.net(id1)
	if n.gate.holds() != "open" || n.guard.holds() != "open" || n.open != 0 {
		t.Errorf("left: gate %s, guard %s, %d descriptors", n.gate.holds(), n.guard.holds(), n.open)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, error %v", left, err)
	}
}

// TestQueueTaken quarantines a container that has a queue of a link which was connected later, so that no rule inside holds
// there: the guard is not on that link yet.
func TestQueueTaken(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	w.failing("gate stage", fmt.Errorf("queues of interface eth1: %w", xdp.ErrTaken))
	w.change(id1, func(c *Container) { c.Networks = append(c.Networks, Network{ID: "net9", Name: "later", Bridge: "br9"}) })
	w.events <- Event{Kind: NetworkJoined, Container: id1, Network: "net9"}
	eventually(t, "it is quarantined", func() bool { return status(t, c, "web").State == api.Quarantined })
	if n := w.net(id1); n.gate.holds() != "nothing passes" || n.guard.holds() != "nothing passes" {
		t.Errorf("gate %s, guard %s", n.gate.holds(), n.guard.holds())
	}
}

// TestNetworkUnguarded quarantines a container to whose new network the guard cannot follow, but not at once: networks may
// change again meanwhile. Where one was disconnected nothing is open, however long that lasts.
func TestNetworkUnguarded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limit  time.Duration
		change func(*Container)
		want   api.State
	}{
		{"connected", 0, func(c *Container) { c.Networks = append(c.Networks, Network{ID: "net9", Name: "later", Bridge: "br9"}) }, api.Quarantined},
		{"just-connected", time.Hour, func(c *Container) { c.Networks = append(c.Networks, Network{ID: "net9", Name: "later", Bridge: "br9"}) }, api.Attached},
		{"disconnected", 0, func(c *Container) { c.Networks = nil }, api.Attached},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			c, _ := w.control(t, t.TempDir())
			w.attached(t, c, "web", id1)
			w.settled(t, c)
			c.unguarded = tt.limit
			w.steps()
			w.failing("guard stage", errFake)
			w.change(id1, tt.change)
			w.events <- Event{Kind: NetworkJoined, Container: id1, Network: "net9"}
			eventually(t, "it was tried", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return slices.Contains(w.journal, "guard stage")
			})
			eventually(t, "it is "+string(tt.want), func() bool { return status(t, c, "web").State == tt.want })
			w.failing("", nil)
			if tt.want == api.Quarantined {
				return
			}
			eventually(t, "the rules have followed", func() bool { return status(t, c, "web").Generation > 1 })
			if s := status(t, c, "web"); s.State != tt.want {
				t.Errorf("it is %s: %s", s.State, s.Problem)
			}
		})
	}
}
