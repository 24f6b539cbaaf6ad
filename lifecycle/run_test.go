package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/controller/api"
	"sluice/policy"
)

// world is an engine of Environments that logs what is done to them, a word each, and fails where a test says.
type world struct {
	log        []string
	generation uint64
	// fail is asked before everything; an error is what the call returns.
	fail func(op string) error
}

type fake struct {
	w     *world
	role  Role
	phase policy.Phase
}

func (w *world) do(op string) error {
	w.log = append(w.log, op)
	if w.fail == nil {
		return nil
	}
	return w.fail(op)
}

func (w *world) receipt(p policy.Phase) api.Receipt {
	w.generation++
	return api.Receipt{Phase: p.String(), Generation: w.generation}
}

func (w *world) Open(_ context.Context, role Role) (Environment, api.Receipt, error) {
	if err := w.do(fmt.Sprintf("open/%s@baseline", role)); err != nil {
		return nil, api.Receipt{}, err
	}
	return &fake{w, role, policy.Baseline}, w.receipt(policy.Baseline), nil
}

func (f *fake) Switch(ctx context.Context, p policy.Phase) (api.Receipt, error) {
	if err := f.w.do(fmt.Sprintf("switch/%s>%s", f.role, p)); err != nil {
		return api.Receipt{}, err
	}
	if err := ctx.Err(); err != nil {
		return api.Receipt{}, err
	}
	f.phase = p
	return f.w.receipt(p), nil
}

var errExit = errors.New("exit code 3")

func (f *fake) Exec(ctx context.Context, c Command) (int, error) {
	switch err := f.w.do(fmt.Sprintf("%s/%s@%s", c.Argv[0], f.role, f.phase)); {
	case err == errExit:
		return 3, nil
	case err == errTimeout:
		<-ctx.Done()
		return 0, context.Cause(ctx)
	case err != nil:
		return 0, err
	}
	return 0, ctx.Err()
}

func (f *fake) Copy(_ context.Context, a Artifact) ([]string, error) {
	return []string{"link in " + a.From}, f.w.do(fmt.Sprintf("copy:%s/%s@%s", a.From, f.role, f.phase))
}

func (f *fake) Close(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return f.w.do(fmt.Sprintf("closed/%s@%s", f.role, f.phase))
}

// everything is a task with a command at every boundary.
func everything() Task {
	t := Task{Commands: map[Boundary]Command{}, Artifacts: []Artifact{{From: "/out"}}}
	for _, b := range Boundaries {
		t.Commands[b] = Command{Argv: []string{string(b)}, Timeout: time.Minute}
	}
	return t
}

const (
	reuseOrder = "open/shared@baseline open/shared@baseline prepare_task/shared@baseline start_session/shared@baseline switch/shared>run " +
		"run_task/shared@run close_session/shared@run collect_artifacts/shared@run copy:/out/shared@run switch/shared>evaluation " +
		"evaluate/shared@evaluation switch/shared>baseline close/shared@baseline closed/shared@baseline"
	freshOrder = "open/agent@baseline open/agent@baseline prepare_task/agent@baseline start_session/agent@baseline switch/agent>run " +
		"run_task/agent@run close_session/agent@run collect_artifacts/agent@run copy:/out/agent@run close/agent@run closed/agent@run " +
		"open/evaluation@baseline evaluation_open/evaluation@baseline switch/evaluation>evaluation evaluate/evaluation@evaluation " +
		"switch/evaluation>baseline evaluation_close/evaluation@baseline closed/evaluation@baseline"
)

func TestOrder(t *testing.T) {
	minimal := func(boundaries ...Boundary) Task {
		task := Task{Commands: map[Boundary]Command{}}
		for _, b := range boundaries {
			task.Commands[b] = Command{Argv: []string{string(b)}}
		}
		return task
	}
	for _, row := range []struct {
		name        string
		task        Task
		fresh, keep bool
		want        string
	}{
		{"reuse", everything(), false, false, reuseOrder},
		{"fresh", everything(), true, false, freshOrder},
		{"reuse-kept", everything(), false, true, strings.TrimSuffix(reuseOrder, " closed/shared@baseline")},
		{"fresh-kept", everything(), true, true, strings.TrimSuffix(strings.Replace(freshOrder, " closed/agent@run", "", 1), " closed/evaluation@baseline")},
		{"nothing", Task{}, false, false, "open/shared@baseline switch/shared>run switch/shared>evaluation switch/shared>baseline closed/shared@baseline"},
		{"no-session", minimal(RunTask, CloseSession, Evaluate), false, false, "open/shared@baseline switch/shared>run run_task/shared@run " +
			"switch/shared>evaluation evaluate/shared@evaluation switch/shared>baseline closed/shared@baseline"},
		{"fresh-minimal", minimal(RunTask, Evaluate), true, false, "open/agent@baseline switch/agent>run run_task/agent@run closed/agent@run " +
			"open/evaluation@baseline switch/evaluation>evaluation evaluate/evaluation@evaluation switch/evaluation>baseline closed/evaluation@baseline"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := &world{}
			row.task.Fresh, row.task.Keep = row.fresh, row.keep
			var shown []Step
			steps, err := Run(t.Context(), row.task, w, func(s Step) { shown = append(shown, s) })
			if got := strings.Join(w.log, " "); err != nil || got != row.want {
				t.Errorf("%v\n got %s\nwant %s", err, got, row.want)
			}
			if len(shown) != len(steps) {
				t.Errorf("%d steps were shown of %d", len(shown), len(steps))
			}
			last := steps[len(steps)-1]
			if last.Kept != row.keep || last.Phase != policy.Baseline {
				t.Errorf("the last step is %+v", last)
			}
			for i, s := range steps {
				if s.Generation == 0 || i > 0 && s.Environment == steps[i-1].Environment && s.Generation < steps[i-1].Generation {
					t.Errorf("step %d has the generation %d", i, s.Generation)
				}
			}
		})
	}
}

var errBroken = errors.New("broken")

// TestEveryFailure lets each call of a task fail, in every way, and checks what must hold whatever fails.
func TestEveryFailure(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		ops := len(strings.Fields(map[bool]string{false: reuseOrder, true: freshOrder}[fresh]))
		for at := range ops {
			for _, how := range []error{errBroken, errExit, errTimeout, context.Canceled} {
				synctest.Test(t, func(t *testing.T) { failAt(t, fresh, at, how) })
			}
		}
	}
}

func failAt(t *testing.T, fresh bool, at int, how error) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	failed := ""
	w := &world{}
	w.fail = func(op string) error {
		if len(w.log)-1 != at {
			return nil
		}
		_, command := everything().Commands[Boundary(strings.Split(op, "/")[0])]
		command = command && at > 0 // the first op opens the Environment
		if strings.HasPrefix(op, "open/evaluation") {
			command = false
		}
		switch {
		case how == context.Canceled:
			cancel(errBroken)
			if command {
				failed = op
				return errBroken
			}
		case command || how == errBroken:
			failed = op
			return how
		}
		return nil
	}
	task := everything()
	task.Fresh = fresh
	_, err := Run(ctx, task, w, nil)
	what := fmt.Sprintf("fresh %v, %v at %d (%s):\n%s", fresh, how, at, failed, strings.Join(w.log, "\n"))

	result := strings.HasPrefix(failed, "run_task") && (how == errExit || how == errTimeout) || strings.HasPrefix(failed, "evaluate/") && how == errExit
	if wantError := failed != "" && !result; wantError && err == nil {
		t.Errorf("no error: %s", what)
	}
	if failed == "" && how != context.Canceled && err != nil {
		t.Errorf("%v: %s", err, what)
	}
	if how == errBroken && failed != "" && !errors.Is(err, errBroken) {
		t.Errorf("%v does not tell the cause: %s", err, what)
	}
	if failed == "" {
		at = -1
	}
	checkLog(t, w.log, at, what)
	if result {
		if err != nil {
			t.Errorf("%v, but it is a result: %s", err, what)
		}
		if !slices.ContainsFunc(w.log, func(op string) bool { return strings.HasPrefix(op, "evaluate/") }) {
			t.Errorf("not evaluated: %s", what)
		}
	}
}

// checkLog checks that no command ran under a policy that was not in force, that baseline came back and that every
// Environment was closed. failed is the index of what failed, or negative.
func checkLog(t *testing.T, log []string, failed int, what string) {
	t.Helper()
	phases := map[Boundary]string{
		Open: "baseline", PrepareTask: "baseline", StartSession: "baseline", RunTask: "run", CloseSession: "run", CollectArtifacts: "run",
		EvaluationOpen: "baseline", Evaluate: "evaluation", EvaluationClose: "baseline",
	}
	open := map[string]bool{}
	inForce := map[string]string{}
	for i, op := range log {
		name, rest, _ := strings.Cut(op, "/")
		switch {
		case name == "switch":
			role, to, _ := strings.Cut(rest, ">")
			inForce[role] = to
			if i == failed {
				inForce[role] = "unknown"
			}
			continue
		case strings.HasPrefix(op, "copy:"):
			continue
		}
		role, phase, _ := strings.Cut(rest, "@")
		switch {
		case name == "open" && !open[role]:
			open[role] = i != failed
			inForce[role] = "baseline"
			continue
		case name == "closed":
			if want := map[string]string{"shared": "baseline", "evaluation": "baseline"}[role]; want != "" && inForce[role] != want && inForce[role] != "unknown" {
				t.Errorf("%s was closed under %s: %s", role, inForce[role], what)
			}
			open[role] = false
			continue
		}
		if inForce[role] != phase || !open[role] {
			t.Errorf("%s while %s is in force: %s", op, inForce[role], what)
		}
		if want := phases[Boundary(name)]; want != "" && want != phase {
			t.Errorf("%s belongs to %s: %s", op, want, what)
		}
	}
	for role, is := range open {
		if is {
			t.Errorf("%s is still open: %s", role, what)
		}
	}
}

// TestFirstErrorFirst checks that a restoration that fails hides nothing, and that nothing runs after it.
func TestFirstErrorFirst(t *testing.T) {
	errFirst, errRestore := errors.New("the evaluation broke"), errors.New("the restoration broke")
	w := &world{}
	w.fail = func(op string) error {
		switch op {
		case "evaluate/shared@evaluation":
			return errFirst
		case "switch/shared>baseline":
			return errRestore
		}
		return nil
	}
	_, err := Run(t.Context(), everything(), w, nil)
	if !errors.Is(err, errFirst) || !errors.Is(err, errRestore) || !strings.HasPrefix(err.Error(), "evaluate: "+errFirst.Error()) {
		t.Errorf("got %v", err)
	}
	want := []string{"evaluate/shared@evaluation", "switch/shared>baseline", "closed/shared@evaluation"}
	if got := w.log[len(w.log)-3:]; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestInterrupted checks that a session is closed, and that nothing is kept whose policy is not certain.
func TestInterrupted(t *testing.T) {
	for _, row := range []struct {
		name string
		keep bool
		fail map[string]error
		want string // the end of the log
	}{
		{"in-run", false, nil, "run_task/shared@run close_session/shared@run switch/shared>baseline close/shared@baseline closed/shared@baseline"},
		{"in-close-session", false, map[string]error{"close_session/shared@run": errBroken}, "run_task/shared@run close_session/shared@run switch/shared>baseline close/shared@baseline closed/shared@baseline"},
		{"in-run-kept", true, nil, "run_task/shared@run close_session/shared@run switch/shared>baseline close/shared@baseline"},
		{"not-restored", true, map[string]error{"switch/shared>baseline": errBroken}, "run_task/shared@run close_session/shared@run switch/shared>baseline closed/shared@run"},
	} {
		t.Run(row.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			w := &world{}
			w.fail = func(op string) error {
				if op == "run_task/shared@run" && row.name != "in-close-session" {
					cancel(errBroken)
					return errBroken
				}
				return row.fail[op]
			}
			task := everything()
			task.Keep = row.keep
			_, err := Run(ctx, task, w, nil)
			if got := strings.Join(w.log, " "); !errors.Is(err, errBroken) || !strings.HasSuffix(got, row.want) {
				t.Errorf("%v\n got %s\nwant the end %s", err, got, row.want)
			}
		})
	}
}

// TestStillRunning checks that a command that could not be ended is not taken for one that has.
func TestStillRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.fail = func(op string) error {
			if op == "run_task/shared@run" {
				time.Sleep(2 * time.Minute)
				return fmt.Errorf("no kill in this image: %w", ErrStillRuns)
			}
			return nil
		}
		steps, err := Run(t.Context(), everything(), w, nil)
		if !errors.Is(err, ErrStillRuns) || slices.ContainsFunc(w.log, func(op string) bool { return strings.HasPrefix(op, "evaluate") }) {
			t.Errorf("%v: %q", err, w.log)
		}
		if i := slices.IndexFunc(steps, func(s Step) bool { return s.Boundary == RunTask }); !steps[i].TimedOut {
			t.Errorf("got %+v", steps[i])
		}
	})
}

// What was not copied of artifacts stands in the step, also if another one could not be copied.
func TestLeftOut(t *testing.T) {
	errTest := errors.New("test")
	w := &world{fail: func(op string) error {
		if strings.HasPrefix(op, "copy:/b/") {
			return errTest
		}
		return nil
	}}
	task := Task{Artifacts: []Artifact{{From: "/a"}, {From: "/b"}, {From: "/c"}}}
	steps, err := Run(t.Context(), task, w, nil)
	i := slices.IndexFunc(steps, func(s Step) bool { return s.Boundary == CollectArtifacts })
	if want := []string{"link in /a", "link in /b"}; !errors.Is(err, errTest) || i < 0 || !slices.Equal(steps[i].LeftOut, want) {
		t.Errorf("error %v, steps %+v", err, steps)
	}
}
