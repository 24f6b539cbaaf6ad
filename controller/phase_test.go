package controller

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/control"
	"sluice/controller/api"
	"sluice/policy"
)

const id1 = "1111111111111111111111111111111111111111111111111111111111111111"
const id2 = "2222222222222222222222222222222222222222222222222222222222222222"

var errFake = errors.New("the kernel says no")

var (
	attachSteps = []string{"open", "listen", "sidecar apply", "sidecar hand", "gate install", "guard install", "sidecar settle", "cut"}
	switchSteps = []string{"gate both", "guard both", "sidecar apply", "gate switch", "guard switch", "cut"}
	setSteps    = append([]string{"gate stage", "guard stage"}, switchSteps...)
)

func TestAttachSwitchSetDetach(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.start("web", id1)
	w.net(id1).direct = []string{"baseline run", "run"}

	s, err := c.Attach(t.Context(), "web", parse(t, task), policy.Baseline, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "steps of attach", w.steps(), attachSteps)
	if s.State != api.Attached || s.Phase != "baseline" || s.Mode != "public" || s.Generation != 1 ||
		!slices.Equal(s.Proxy, []string{"http://127.0.0.12:3128"}) {
		t.Errorf("status %+v", s)
	}
	compare(t, "direct connections", w.net(id1).direct, []string{"baseline run"})
	session := w.session(id1)
	if session.spec.Phase != "baseline" || session.spec.Generation != 1 || session.sockets == nil || session.hands != 1 {
		t.Errorf("session %+v", session)
	}
	compare(t, "upstreams", session.spec.Upstreams, []string{"192.0.2.53:53"})
	compare(t, "never", session.spec.Never, []string{"172.17.0.0/16", "172.18.0.0/16", "192.0.2.1/32", "192.0.2.53/32"})
	compare(t, "no route", session.spec.NoRoute, []string{"ipv6"})

	session.flows = []string{"baseline run", "baseline"}
	r, err := c.Phase(t.Context(), id1[:12], policy.Run, 0)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "steps of a switch", w.steps(), switchSteps)
	r.Milliseconds = 0
	compare(t, "receipt", r, api.Receipt{Container: "web", ContainerID: id1, Generation: 2, Phase: "run",
		Digest: policy.Policy{}.Digest().String(), FlowsCut: 1, FlowsKept: 2, InboundOpen: 1})
	compare(t, "gate", w.net(id1).gate.holds(), "run=no-network")
	compare(t, "guard", w.net(id1).guard.holds(), "run=no-network")
	if session.spec.Phase != "run" || session.spec.Generation != 2 {
		t.Errorf("session %+v", session.spec)
	}

	r, err = c.Set(t.Context(), "web", parse(t, strings.Replace(task, `"public"`, `"no-network"`, 1)), 0)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "steps of a new policy", w.steps(), setSteps)
	if r.Generation != 3 || r.Phase != "run" || r.Unchanged {
		t.Errorf("receipt %+v", r)
	}

	if err := c.Detach(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	compare(t, "steps of detach", w.steps(), []string{"gate remove", "guard remove", "sidecar delete"})
	if n := w.net(id1); n.open != 0 || w.session(id1) != nil {
		t.Errorf("%d descriptors of the namespace and the session %v are left", n.open, w.session(id1))
	}
	if _, err := c.Status(t.Context(), "web"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("status after detach: %v", err)
	}
	if left, err := os.ReadDir(c.store.dir); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v %v", left, err)
	}
}

// Where nothing gets past the gate, the guard changes once, when the sidecar has.
func TestSwitchWhereTheGateHolds(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	w.net(id1).holds = true
	w.steps()
	for _, phase := range []policy.Phase{policy.Run, policy.Evaluation, policy.Baseline} {
		if _, err := c.Phase(t.Context(), "web", phase, 0); err != nil {
			t.Fatal(err)
		}
		steps := w.steps()
		guard := slices.Index(steps, "guard switch")
		if guard < 0 {
			t.Fatalf("steps %v: the guard is left as it was", steps)
		}
		compare(t, "other steps", slices.Delete(slices.Clone(steps), guard, guard+1), []string{"gate both", "sidecar apply", "gate switch", "cut"})
		if guard < 2 {
			t.Errorf("steps %v: the guard lets through what the new phase allows before the sidecar has it", steps)
		}
		compare(t, "guard", w.net(id1).guard.holds(), w.net(id1).gate.holds())
	}
}

func TestUnchanged(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	// The same meaning in other words.
	other := strings.Replace(task, `"203.0.113.0/24"`, `"203.0.113.0/24", "JUDGE.test."`, 1)
	for name, change := range map[string]func() (bool, error){
		"phase": func() (bool, error) {
			r, err := c.Phase(t.Context(), "web", policy.Baseline, 0)
			return r.Unchanged, err
		},
		"set": func() (bool, error) {
			r, err := c.Set(t.Context(), "web", parse(t, other), 1)
			return r.Unchanged, err
		},
		"attach": func() (bool, error) {
			s, err := c.Attach(t.Context(), "web", parse(t, task), policy.Baseline, api.Options{})
			return s.Unchanged, err
		},
	} {
		if unchanged, err := change(); err != nil || !unchanged {
			t.Errorf("%s: unchanged %v, error %v", name, unchanged, err)
		}
	}
	if steps := w.steps(); len(steps) > 0 {
		t.Errorf("was done all the same: %v", steps)
	}
	if s := status(t, c, "web"); s.Generation != 1 {
		t.Errorf("generation %d", s.Generation)
	}
}

func TestGenerations(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	for _, row := range []struct {
		phase policy.Phase
		asked uint64
		want  uint64 // 0: stale
	}{
		{policy.Run, 1, 0},
		{policy.Run, 5, 5},
		{policy.Run, 4, 0},
		{policy.Run, 5, 5}, // nothing would change
		{policy.Evaluation, 5, 0},
		{policy.Evaluation, 0, 6},
	} {
		if _, err := c.Phase(t.Context(), "web", policy.Baseline, math.MaxUint64); !errors.Is(err, control.ErrInvalid) {
			t.Errorf("before %v, a generation after which numbers begin anew: %v, want it refused", row, err)
		}
		r, err := c.Phase(t.Context(), "web", row.phase, row.asked)
		if row.want == 0 {
			if e, ok := errors.AsType[*control.Error](err); !ok || e.Code != control.CodeStale || e.Got != row.asked || e.Have < row.asked {
				t.Errorf("%v: error %v, want a stale generation", row, err)
			}
		} else if err != nil || r.Generation != row.want {
			t.Errorf("%v: generation %d, error %v", row, r.Generation, err)
		}
	}
}

// TestFaults fails every step of every change, and looks at what holds afterwards.
func TestFaults(t *testing.T) {
	attach := func(c *Controller) error {
		_, err := c.Attach(context.Background(), "web", parse(t, task), policy.Run, api.Options{})
		return err
	}
	phase := func(c *Controller) error {
		_, err := c.Phase(context.Background(), "web", policy.Run, 0)
		return err
	}
	set := func(c *Controller) error {
		_, err := c.Set(context.Background(), "web", parse(t, strings.Replace(task, `"public"`, `"no-network"`, 1)), 0)
		return err
	}
	const untouched, closed, gone = "baseline=public", "nothing passes", "open"
	for _, row := range []struct {
		name, step string
		do         func(*Controller) error
		attached   bool // before
		want       string
	}{
		{"attach", "open", attach, false, gone},
		{"attach", "facts", attach, false, gone},
		{"attach", "listen", attach, false, gone},
		{"attach", "sidecar apply", attach, false, gone},
		{"attach", "sidecar hand", attach, false, gone},
		{"attach", "guard install", attach, false, closed},
		{"attach", "gate install", attach, false, closed},
		{"attach", "cut", attach, false, closed},
		{"switch", "gate both", phase, true, closed},
		{"switch", "guard both", phase, true, closed},
		{"switch", "sidecar apply", phase, true, closed},
		{"switch", "gate switch", phase, true, closed},
		{"switch", "guard switch", phase, true, closed},
		{"switch", "cut", phase, true, closed},
		{"switch-holding", "gate both", phase, true, closed},
		{"switch-holding", "sidecar apply", phase, true, closed},
		{"switch-holding", "gate switch", phase, true, closed},
		{"switch-holding", "guard switch", phase, true, closed},
		{"switch-holding", "cut", phase, true, closed},
		{"set", "facts", set, true, untouched},
		{"set", "gate stage", set, true, untouched},
		{"set", "guard stage", set, true, untouched},
		{"set", "gate both", set, true, closed},
		{"set", "guard both", set, true, closed},
		{"set", "sidecar apply", set, true, closed},
		{"set", "gate switch", set, true, closed},
		{"set", "guard switch", set, true, closed},
		{"set", "cut", set, true, closed},
	} {
		t.Run(row.name+"-"+strings.ReplaceAll(row.step, " ", "-"), func(t *testing.T) {
			w := newWorld()
			dir := t.TempDir()
			c, stop := w.control(t, dir)
			if row.attached {
				w.attached(t, c, "web", id1)
			} else {
				w.start("web", id1)
			}
			w.net(id1).holds = row.name == "switch-holding"
			w.failing(row.step, errFake)
			err := row.do(c)
			if err == nil || !strings.Contains(err.Error(), errFake.Error()) || !strings.Contains(err.Error(), "web") {
				t.Fatalf("error %v: want the container and the cause", err)
			}
			n := w.net(id1)
			compare(t, "gate", n.gate.holds(), row.want)
			compare(t, "guard", n.guard.holds(), row.want)
			if quarantined := errors.Is(err, control.ErrQuarantined); quarantined != (row.want == closed) {
				t.Errorf("error %v, of the code %q", err, code(err))
			}
			switch s, err := c.Status(t.Context(), "web"); row.want {
			case gone:
				if !errors.Is(err, control.ErrNotFound) || n.open != 0 || w.session(id1) != nil {
					t.Errorf("left: status %+v, %d descriptors, session %v", s, n.open, w.session(id1))
				}
			case closed:
				if s.State != api.Quarantined || !strings.Contains(s.Problem, errFake.Error()) {
					t.Errorf("status %+v", s)
				}
				if w.paused[id1] {
					t.Error("paused without need")
				}
			case untouched:
				if s.State != api.Attached || s.Generation != 1 {
					t.Errorf("status %+v", s)
				}
			}

			// A controller that comes after this one does not open anything either.
			stop()
			w.failing("", nil)
			c, _ = w.control(t, dir)
			compare(t, "gate after a restart", n.gate.holds(), row.want)
			compare(t, "guard after a restart", n.guard.holds(), row.want)

			// The next attempt succeeds.
			if err := row.do(c); err != nil {
				t.Fatal(err)
			}
			want := "run=no-network"
			if row.name == "set" {
				want = "baseline=no-network"
			}
			compare(t, "gate after another attempt", n.gate.holds(), want)
			compare(t, "guard after another attempt", n.guard.holds(), want)
			if s := status(t, c, "web"); s.State != api.Attached || s.Problem != "" {
				t.Errorf("status after another attempt: %+v", s)
			}
		})
	}
}

// TestStageFailsThenSwitch checks that a switch after policies that could not be staged does not use half of them.
func TestStageFailsThenSwitch(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	c.patience = 0
	w.failing("guard stage", errFake)
	if _, err := c.Set(t.Context(), "web", parse(t, strings.Replace(task, `"no-network"`, `"public"`, 1)), 0); err == nil {
		t.Fatal("no error")
	}
	w.failing("", nil)
	if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
		t.Fatal(err)
	}
	n := w.net(id1)
	compare(t, "gate", n.gate.holds(), "run=no-network")
	compare(t, "guard", n.guard.holds(), "run=no-network")
}

// TestSwitchWhileNetworksChange checks that a switch waits for the engine, which says later than the kernel that the
// container has left a network, and that one which waits in vain has changed nothing.
func TestSwitchWhileNetworksChange(t *testing.T) {
	other := Network{ID: "net2", Name: "other", Bridge: "br-other", MAC: "02:42:ac:12:00:02",
		Addresses: []netip.Prefix{netip.MustParsePrefix("172.18.0.2/16")}}
	policies := parse(t, strings.Replace(task, `"public"`, `"no-network"`, 1))
	set := func(c *Controller) (api.Receipt, error) { return c.Set(t.Context(), "web", policies, 0) }
	for _, row := range []struct {
		name    string
		restage bool // whether what is staged is not known, so that a phase has to be staged too
		do      func(*Controller) (api.Receipt, error)
		want    string
	}{
		{"set", false, set, "baseline=no-network"},
		{"phase", true, func(c *Controller) (api.Receipt, error) { return c.Phase(t.Context(), "web", policy.Run, 0) }, "run=no-network"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld()
			c, _ := w.control(t, t.TempDir())
			w.start("web", id1)
			w.change(id1, func(c *Container) { c.Networks = append(c.Networks, other) })
			if _, err := c.Attach(t.Context(), "web", parse(t, task), policy.Baseline, api.Options{}); err != nil {
				t.Fatal(err)
			}
			w.settled(t, c)
			w.member(c).restage = row.restage
			left := func(p *Plan) error {
				if len(p.Container.Networks) > 1 {
					return errFake
				}
				return nil
			}

			w.hook(left)
			c.patience = 0
			if _, err := row.do(c); !errors.Is(err, errFake) || !strings.HasSuffix(err.Error(), "nothing has changed") {
				t.Errorf("the engine says nothing: error %v", err)
			}
			compare(t, "gate", w.net(id1).gate.holds(), "baseline=public")

			tries := 0
			w.hook(func(p *Plan) error {
				if tries++; tries == 4 {
					one := *w.containers[id1]
					one.Networks = one.Networks[:1]
					w.containers[id1] = &one
				}
				return left(p)
			})
			c.patience = time.Minute
			if _, err := row.do(c); err != nil {
				t.Fatal(err)
			}
			compare(t, "gate", w.net(id1).gate.holds(), row.want)
			compare(t, "guard", w.net(id1).guard.holds(), row.want)
			if s := status(t, c, "web"); s.State != api.Attached || s.Problem != "" {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// hook lets f say what becomes of staged rules.
func (w *world) hook(f func(*Plan) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.staging = f
}

func TestStateCannotBeWritten(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	good := c.store.dir
	c.store.dir += "/gone"
	_, err := c.Phase(t.Context(), "web", policy.Run, 0)
	if err == nil || errors.Is(err, control.ErrQuarantined) || !strings.Contains(err.Error(), "nothing has changed") {
		t.Fatalf("error %v", err)
	}
	if steps := w.steps(); len(steps) > 0 {
		t.Errorf("was done all the same: %v", steps)
	}
	c.store.dir = good
	if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
		t.Error(err)
	}
}

func TestQuarantineFails(t *testing.T) {
	for _, row := range []struct{ name, also, problem string }{
		{"paused", "", "so it was paused"},
		{"not-paused", "pause", "STOP IT YOURSELF"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld()
			c, _ := w.control(t, t.TempDir())
			w.attached(t, c, "web", id1)
			w.failing("gate switch", errFake)
			w.fail["gate quarantine"] = errors.New("nor that")
			if row.also != "" {
				w.fail[row.also] = errors.New("nor pausing")
			}
			_, err := c.Phase(t.Context(), "web", policy.Run, 0)
			if !errors.Is(err, control.ErrQuarantined) {
				t.Fatal(err)
			}
			compare(t, "guard", w.net(id1).guard.holds(), "nothing passes") // as far as it can be had
			if s := status(t, c, "web"); !strings.Contains(s.Problem, row.problem) || !strings.Contains(err.Error(), row.problem) {
				t.Errorf("error %v, status %+v", err, s)
			}
			if w.paused[id1] != (row.also == "") {
				t.Errorf("paused: %v", w.paused)
			}
			w.failing("", nil)
			if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
				t.Fatal(err)
			}
			if len(w.paused) > 0 {
				t.Error("still paused after a switch that succeeded")
			}
		})
	}
}

// TestHungSidecar checks that a sidecar that does not answer leads to a quarantine, which needs none.
func TestHungSidecar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.control(t, t.TempDir())
		w.attached(t, c, "web", id1)
		w.hang["sidecar apply"] = true
		_, err := c.Phase(t.Context(), "web", policy.Run, 0)
		if !errors.Is(err, control.ErrQuarantined) || !strings.Contains(err.Error(), "hangs") {
			t.Errorf("error %v", err)
		}
		compare(t, "gate", w.net(id1).gate.holds(), "nothing passes")
		compare(t, "guard", w.net(id1).guard.holds(), "nothing passes")
	})
}

// TestCallerGoesAway checks that a switch is not left in the middle.
func TestCallerGoesAway(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	ctx, cancel := context.WithCancel(t.Context())
	m, err := c.locked(ctx, "web")
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error)
	go func() {
		_, err := c.Phase(ctx, "web", policy.Run, 0)
		waiting <- err
	}()
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("who waits for a turn: %v", err)
	}
	if _, err := c.switchTo(ctx, m, m.record.set, policy.Run, 0); err != nil {
		t.Errorf("who has the turn: %v", err)
	}
	m.leave()
	compare(t, "gate", w.net(id1).gate.holds(), "run=no-network")
}

// TestMany switches many containers at once, several callers each, while one container hangs.
func TestMany(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	const containers, callers, times = 20, 3, 10
	ids := make([]string, containers)
	for i := range ids {
		ids[i] = fmt.Sprintf("%064x", i+1)
		w.attached(t, c, fmt.Sprint("c", i), ids[i])
	}
	slow, err := c.locked(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, id := range ids[1:] {
		for range callers {
			wg.Go(func() {
				for i := range times {
					if _, err := c.Phase(t.Context(), id, policy.Phase(i%policy.PhaseCount), 0); err != nil {
						t.Error(err)
					}
					if _, err := c.List(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	slow.leave()
	for _, id := range ids[1:] {
		s := status(t, c, id)
		n := w.net(id)
		want := s.Phase + "=" + s.Mode
		compare(t, "gate", n.gate.holds(), want)
		compare(t, "guard", n.guard.holds(), want)
		if got := w.session(id).spec; got.Phase != s.Phase || got.Generation != s.Generation {
			t.Errorf("session has phase %s and generation %d, the controller %s and %d", got.Phase, got.Generation, s.Phase, s.Generation)
		}
	}
}

func compare[T any](t *testing.T, what string, got, want T, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
