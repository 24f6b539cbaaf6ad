package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/controller/api"
	"sluice/policy"
)

// CleanupTimeout bounds each thing that is done after a task has ended, failed or been interrupted, where nothing else
// does.
const CleanupTimeout = 30 * time.Second

// Run takes a task through its boundaries. progress, if not nil, is called with each step as it ends.
//
// The steps are returned even with an error, which joins everything that went wrong, the first cause first. It is an
// error if a command fails (but for run_task and evaluate, whose exit codes are results), if one takes too long (but
// for run_task, after which artifacts are collected and evaluated), if a switch fails, or if ctx ends. After the first
// error only what cleans up is done: close_session if there is a session, the restoration of baseline, close.
func Run(ctx context.Context, t Task, open Opener, progress func(Step)) ([]Step, error) {
	r := &runner{task: t, open: open, progress: progress}
	r.run(ctx)
	return r.steps, errors.Join(r.errs...)
}

type runner struct {
	task     Task
	open     Opener
	progress func(Step)
	steps    []Step
	errs     []error
}

// environment is an open one.
type environment struct {
	Environment
	role       Role
	phase      policy.Phase
	generation uint64
	// unsure: a switch has failed, so no command may run until one succeeds.
	unsure bool
}

func (r *runner) run(ctx context.Context) {
	role := Shared
	if r.task.Fresh {
		role = Agent
	}
	env := r.enter(ctx, role, Open)
	if env == nil {
		return
	}
	evaluate := r.agent(ctx, env)
	if !r.task.Fresh {
		_ = evaluate && r.change(ctx, env, policy.Evaluation) && r.command(ctx, env, Evaluate)
		r.leave(ctx, env, Close)
		return
	}
	r.leave(ctx, env, Close)
	if !evaluate {
		return
	}
	if env = r.enter(ctx, Evaluation, EvaluationOpen); env != nil {
		_ = r.command(ctx, env, EvaluationOpen) && r.change(ctx, env, policy.Evaluation) && r.command(ctx, env, Evaluate)
		r.leave(ctx, env, EvaluationClose)
	}
}

// agent does everything from the opening to the artifacts, and reports whether there is something to evaluate.
func (r *runner) agent(ctx context.Context, env *environment) bool {
	for _, b := range []Boundary{Open, PrepareTask, StartSession} {
		if !r.command(ctx, env, b) {
			return false
		}
	}
	if !r.change(ctx, env, policy.Run) {
		return false
	}
	ended := r.command(ctx, env, RunTask)
	if _, session := r.task.Commands[StartSession]; session {
		cleanup, cancel := r.cleanup(ctx, CloseSession)
		ended = r.command(cleanup, env, CloseSession) && ended // what still runs must not get the evaluation's policy
		cancel()
	}
	return ended && r.collect(ctx, env)
}

func (r *runner) collect(ctx context.Context, env *environment) bool {
	if len(r.task.Artifacts) == 0 {
		return r.command(ctx, env, CollectArtifacts)
	}
	step := r.begin(env, CollectArtifacts)
	err := r.exec(ctx, env, &step)
	for _, a := range r.task.Artifacts {
		if err != nil {
			break
		}
		var leftOut []string
		if leftOut, err = env.Copy(ctx, a); err != nil {
			err = fmt.Errorf("copy %s: %w", a.From, err)
		}
		step.LeftOut = append(step.LeftOut, leftOut...)
	}
	return r.end(step, err)
}

// restore puts baseline in force again, and reports whether it is.
func (r *runner) restore(ctx context.Context, env *environment) bool {
	if env.phase == policy.Baseline && !env.unsure {
		return true
	}
	cleanup, cancel := r.cleanup(ctx, "")
	defer cancel()
	return r.change(cleanup, env, policy.Baseline)
}

// leave ends an Environment. The agent's own one stays under the policy that it has; in every other one baseline comes
// back first, whatever has become of the task.
func (r *runner) leave(ctx context.Context, env *environment, b Boundary) {
	certain := !env.unsure
	if env.role != Agent {
		certain = r.restore(ctx, env)
	}
	cleanup, cancel := r.cleanup(ctx, b)
	defer cancel()
	step := r.begin(env, b)
	var err error
	if certain {
		err = r.exec(cleanup, env, &step)
	}
	if r.task.Keep && certain {
		step.Kept = true
		r.end(step, err)
		return
	}
	closing, stop := context.WithTimeout(context.WithoutCancel(ctx), CleanupTimeout)
	defer stop()
	r.end(step, errors.Join(err, env.Close(closing)))
}

// enter opens an Environment; nil if that fails.
func (r *runner) enter(ctx context.Context, role Role, b Boundary) *environment {
	env := &environment{role: role}
	step := r.begin(env, b)
	opened, receipt, err := r.open.Open(ctx, role)
	if err == nil {
		env.Environment, env.generation = opened, receipt.Generation
		step.Generation, step.Receipt = receipt.Generation, &receipt
	}
	if !r.end(step, err) {
		return nil
	}
	return env
}

// change switches to another phase. After a failure nothing is certain but that no command may run.
func (r *runner) change(ctx context.Context, env *environment, to policy.Phase) bool {
	step := r.begin(env, "")
	step.Switch, step.Phase = true, to
	err := context.Cause(ctx)
	if err == nil {
		var receipt api.Receipt
		if receipt, err = env.Switch(ctx, to); err == nil {
			env.phase, env.generation, env.unsure = to, receipt.Generation, false
			step.Generation, step.Receipt = receipt.Generation, &receipt
		} else {
			env.unsure = true
			err = fmt.Errorf("switch to %s: %w", to, err)
		}
	}
	return r.end(step, err)
}

// command passes a boundary, and reports whether the task goes on. A boundary without a command leaves no step.
func (r *runner) command(ctx context.Context, env *environment, b Boundary) bool {
	if _, has := r.task.Commands[b]; !has {
		return context.Cause(ctx) == nil || r.end(r.begin(env, b), context.Cause(ctx))
	}
	step := r.begin(env, b)
	err := r.exec(ctx, env, &step)
	return r.end(step, err)
}

// exec runs the command of a step's boundary, if it has one.
func (r *runner) exec(ctx context.Context, env *environment, step *Step) error {
	c, has := r.task.Commands[step.Boundary]
	if !has {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	limited, cancel := ctx, context.CancelFunc(func() {})
	if c.Timeout > 0 {
		limited, cancel = context.WithTimeoutCause(ctx, c.Timeout, errTimeout)
	}
	defer cancel()
	code, err := env.Exec(limited, c)
	result := step.Boundary == RunTask || step.Boundary == Evaluate
	switch {
	case err == nil:
		step.ExitCode = &code
		if code != 0 && !result {
			return fmt.Errorf("its command ended with the exit code %d", code)
		}
	case context.Cause(limited) == errTimeout:
		step.TimedOut = true
		if step.Boundary == RunTask && !errors.Is(err, ErrStillRuns) {
			return nil
		}
		return fmt.Errorf("its command did not end within %v: %w", c.Timeout, err)
	default:
		return err
	}
	return nil
}

var errTimeout = errors.New("it took too long")

// ErrStillRuns is part of the error of [Environment.Exec] if what it should have ended may still run.
var ErrStillRuns = errors.New("what it has started may still run")

// cleanup is a context for what has to be done although ctx has ended.
func (r *runner) cleanup(ctx context.Context, b Boundary) (context.Context, context.CancelFunc) {
	limit := CleanupTimeout
	if c := r.task.Commands[b]; c.Timeout > 0 {
		limit = c.Timeout + time.Second // the command's own one comes first
	}
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

func (r *runner) begin(env *environment, b Boundary) Step {
	return Step{Boundary: b, Environment: env.role, Phase: env.phase, Generation: env.generation, Began: time.Now()}
}

// end records a step, and reports whether it succeeded.
func (r *runner) end(step Step, err error) bool {
	step.Seconds = time.Since(step.Began).Seconds()
	if err != nil {
		step.Error = err.Error()
		if step.Boundary != "" {
			err = fmt.Errorf("%s: %w", step.Boundary, err)
		}
		r.errs = append(r.errs, err)
	}
	r.steps = append(r.steps, step)
	if r.progress != nil {
		r.progress(step)
	}
	return err == nil
}
