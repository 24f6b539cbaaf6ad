package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/docker/docker/client"
	"github.com/docker/go-units"
	"github.com/moby/term"
	"github.com/spf13/cobra"

	"sluice/controller/api"
	"sluice/controller/launch"
	"sluice/lifecycle"
	"sluice/lifecycle/docker"
	"sluice/lifecycle/evidence"
	"sluice/policy"
	"sluice/policy/provider"
)

// taskResult is what a task leaves: its --result file, and the last line of its JSON output.
type taskResult struct {
	Task string `json:"task"`
	planned
	EvaluationEnvironment string    `json:"evaluation_environment"`
	Began                 time.Time `json:"began"`
	Seconds               float64   `json:"seconds"`
	// Steps are the boundaries and switches in their order, with the receipts.
	Steps       []taskStep           `json:"steps"`
	ExitCodes   map[string]int       `json:"exit_codes"` // by boundary
	Traffic     []evidence.Phase     `json:"traffic"`    // by phase
	Packets     []api.Packets        `json:"packets"`    // by phase: what was judged by address alone, of which there are no records
	Audit       taskAudit            `json:"audit"`
	Enforcement evidence.Enforcement `json:"enforcement"`
	Violation   bool                 `json:"policy_violation"`
	Evidence    []evidence.Attempt   `json:"violations"` // what was refused in the phase run
	// Advice says of each step that failed what may have kept it from succeeding, and what to do.
	Advice []string `json:"advice"`
	Kept   []string `json:"kept,omitempty"` // containers that were left running
	Error  string   `json:"error,omitempty"`
}

// taskStep is a step with the mode in force, and the head of the audit when it ended.
type taskStep struct {
	lifecycle.Step
	Receipt   *taskReceipt `json:"receipt,omitempty"` // in place of the step's own
	Mode      policy.Mode  `json:"network_mode"`
	AuditHead string       `json:"audit_head,omitempty"`
}

// taskReceipt is a controller's receipt, tied to the audit file, of which the controller does not know.
type taskReceipt struct {
	api.Receipt
	AuditHead string `json:"audit_head,omitempty"` // digest of the line that has this receipt
}

// taskAudit says how good the evidence is.
type taskAudit struct {
	Records uint64 `json:"records"`
	// Complete: the stream of records never broke off. What was refused before a name or an address could be told
	// stands in counters only.
	Complete bool   `json:"complete"`
	Problem  string `json:"problem,omitempty"`
	Head     string `json:"head,omitempty"` // digest of the audit file's last line
}

func newTask(g *globals) *cobra.Command {
	var f taskFlags
	cmd := &cobra.Command{
		Use:   "task FILE",
		Short: "Take one task through its phases, each under its policy",
		Long: `Task takes a task through the boundaries of an evaluation: open, prepare_task and start_session under the baseline
policy, run_task, close_session and collect_artifacts under that of the run, evaluate under that of the evaluation, in
the same container or, with "evaluation_environment: fresh", in one of its own. Baseline is restored whatever happens,
and no command runs under a policy whose switch failed. FILE is YAML or JSON; "-" is stdin.

What the agent has to be told of its network is in SLUICE_NOTICE in the environment of run_task, if it has less than
128 KiB.

A line is printed for each boundary: JSON where stdout is no terminal. What commands print goes to stderr. The exit code
is that of evaluate, or 1 if anything went wrong.`,
		Example: "  sluice task task.yaml --result result.json --audit audit.jsonl",
		Args:    cobra.ExactArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.envParams, "env-params", "", "what this run says: `JSON` with the phases' policies, or @FILE; it goes before the task's")
	addHarnessParams(cmd, &f.harnessParams)
	flags.StringVar(&f.result, "result", "", "write the result to `FILE`")
	flags.StringVar(&f.audit, "audit", "", "write every decision and step to `FILE`, each line chained to the one before")
	flags.BoolVar(&f.keep, "keep", false, "leave the Environments running, under the policy that the task ends with")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := readTask(cmd, args[0])
		if err != nil {
			return failed(err)
		}
		t.Keep = t.Keep || f.keep
		return f.run(cmd, g, t)
	}
	return cmd
}

// noticeVariable has what the agent is told of its network, in the environment of run_task.
const noticeVariable = "SLUICE_NOTICE"

// maxVariable is how long a variable may be, MAX_ARG_STRLEN of execve(2) without the byte at its end: with a longer one no
// command starts.
const maxVariable = 128<<10 - 1

// withNotice gives a command the notice, if that fits in a variable.
func withNotice(c lifecycle.Command, notice string) (told lifecycle.Command, fits bool) {
	variable := noticeVariable + "=" + notice
	if len(variable) > maxVariable {
		return c, false
	}
	c.Env = append(slices.Clone(c.Env), variable)
	return c, true
}

type taskFlags struct {
	envParams, harnessParams, result, audit string
	keep                                    bool
}

func (f *taskFlags) run(cmd *cobra.Command, g *globals, t *taskFile) error {
	plan, err := f.plan(cmd, t)
	if err != nil {
		return err
	}
	task, err := t.task()
	if err != nil {
		return failed(err)
	}
	if c, ok := task.Commands[lifecycle.RunTask]; ok && plan.Notice != "" {
		told, fits := withNotice(c, plan.Notice)
		if !fits {
			note := fmt.Sprintf("the notice has %d bytes, too many for %s: tell the agent by sluice notice, or name fewer targets", len(plan.Notice), noticeVariable)
			plan.Notes = append(plan.Notes, note)
			cmd.PrintErrf("sluice: note: %s\n", note)
		}
		task.Commands[lifecycle.RunTask] = told
	}
	policies, err := plan.phases.MarshalJSON()
	if err != nil {
		return failed(err)
	}
	spec, err := t.container(policies)
	if err != nil {
		return failed(err)
	}
	engine, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return failed(fmt.Errorf("engine client: %w", err))
	}
	defer engine.Close()
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the program at once
	}()

	r := &taskRun{cmd: cmd, g: g, records: newRecorder(g.client()), containers: map[lifecycle.Role]string{}, generations: map[lifecycle.Role][]evidence.Generation{}, result: taskResult{
		Task: t.Name, planned: plan, Enforcement: evidence.Enforcement{BeforeFirstProcess: true}, EvaluationEnvironment: t.EvaluationEnvironment, Began: time.Now(), ExitCodes: map[string]int{}, Evidence: []evidence.Attempt{}, Packets: []api.Packets{},
	}}
	r.asJSON = g.json || !term.IsTerminal(os.Stdout.Fd())
	for _, a := range task.Artifacts {
		// Now rather than when the work is done; the same holds for the result.
		if err := docker.MakeRoom(a.To); err != nil {
			return failed(fmt.Errorf("artifact %s: %w", a.From, err))
		}
	}
	if f.result != "" {
		// Now rather than when the work is done; and what an earlier task has left is not taken for this one's.
		if err := os.WriteFile(f.result, nil, 0o644); err != nil {
			return failed(fmt.Errorf("--result: %w", err))
		}
	}
	if f.audit != "" {
		if sameFile(f.audit, f.result) {
			return failed(errors.New("--audit and --result are the same file: give each its own"))
		}
		file, err := os.OpenFile(f.audit, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return failed(err)
		}
		defer file.Close()
		r.records.chain = evidence.NewChain(file)
	}
	images := map[lifecycle.Role]string{}
	for role, image := range t.Images {
		images[lifecycle.Role(role)] = image
	}
	r.engine = &docker.Engine{Docker: engine, Controller: &taskController{g.client(), attacher{g}, r}, Spec: docker.Spec{
		Container: spec, Images: images, Idle: t.Idle, Out: cmd.ErrOrStderr(), Err: cmd.ErrOrStderr(),
		Started: func(role lifecycle.Role, id string) { r.containers[role] = id },
	}}
	_, taskErr := lifecycle.Run(ctx, task, r, r.step)
	return r.finish(f, taskErr)
}

// plan resolves the task's policies as plan does; the provider is Docker.
func (f *taskFlags) plan(cmd *cobra.Command, t *taskFile) (planned, error) {
	to, err := provider.Find("docker")
	if err != nil {
		return planned{}, failed(err)
	}
	in := policy.Inputs{Sample: t.params, Task: policy.Task{Benchmark: t.Benchmark, Harness: t.Harness, Provider: to.Name}}
	if in.Explicit, err = readParams(cmd, "--env-params", f.envParams); err != nil {
		return planned{}, err
	}
	if len(t.EnvParams) > 0 {
		text, err := json.Marshal(t.EnvParams)
		if err != nil {
			return planned{}, failed(err)
		}
		own, err := readParams(cmd, "/env_params", string(text))
		if err != nil {
			return planned{}, err
		}
		in.Explicit = in.Explicit.Over(own)
	}
	if in.Explicit.Other == nil {
		in.Explicit.Other = map[string]string{}
	}
	if t.Network != "" {
		in.Explicit.Other["network"] = t.Network
	}
	if t.ModelBaseURL != "" {
		if in.Model, err = policy.ParseEndpoint(t.ModelBaseURL); err != nil {
			return planned{}, failed(fmt.Errorf("/model_base_url: %w", err))
		}
	}
	for _, name := range t.Recipes {
		data, err := readFile(cmd, t.path(name))
		if err != nil {
			return planned{}, failed(err)
		}
		r, err := policy.ParseRecipe(data)
		if err != nil {
			return planned{}, failed(fmt.Errorf("%s is refused:\n%w", name, err))
		}
		in.Recipes = append(in.Recipes, r)
	}
	told, err := wantsNotice(cmd, f.harnessParams)
	if err != nil {
		return planned{}, err
	}
	return makePlan(in, to, t.EvaluationEnvironment == "fresh", told)
}

// container is how the task's containers are run.
func (t *taskFile) container(policies json.RawMessage) (launch.Spec, error) {
	s := launch.Spec{
		Name: t.Name, Image: t.Image, Env: pairs(t.Env), Volumes: t.Volumes, Workdir: t.Workdir, User: t.User, Network: t.Network,
		DNS: t.DNS, Policies: policies, AllowWeak: t.AllowWeak,
	}
	if s.Network == "" {
		s.Network = "bridge"
	}
	if t.Memory != "" {
		var err error
		if s.Memory, err = units.RAMInBytes(t.Memory); err != nil {
			return s, fmt.Errorf("/memory: %w", err)
		}
	}
	return s, nil
}

// taskRun is a task on its way.
type taskRun struct {
	cmd     *cobra.Command
	g       *globals
	engine  *docker.Engine
	records *recorder
	// containers are the ids of those that were opened.
	containers map[lifecycle.Role]string
	starting   string // the container that was attached last
	// generations are those of Environments that have ended, as the controller knows them.
	generations map[lifecycle.Role][]evidence.Generation
	result      taskResult
	asJSON      bool
	problem     error
}

// Open implements [lifecycle.Opener]: there is a controller before there is a container.
func (r *taskRun) Open(ctx context.Context, role lifecycle.Role) (lifecycle.Environment, api.Receipt, error) {
	if err := ensureController(ctx, r.g.socket); err != nil {
		return nil, api.Receipt{}, err
	}
	env, receipt, err := r.engine.Open(ctx, role)
	if err != nil {
		r.records.failed(r.starting)
		return nil, receipt, reachable(err)
	}
	r.checkEnforced(ctx, role)
	return &recorded{env, r, role}, receipt, nil
}

// taskController is the controller, or the one that takes the place of one that was started for an earlier container and
// ends with it.
type taskController struct {
	*api.Client
	attacher attacher
	task     *taskRun
}

// Attach implements [launch.Controller]: the records of a container are read before it starts.
func (c *taskController) Attach(ctx context.Context, a api.Attach) (api.Status, error) {
	status, err := c.attacher.Attach(ctx, a)
	if err != nil {
		return status, err
	}
	c.task.starting = a.Workload
	return status, c.task.records.attached(ctx, a.Workload)
}

// recorded looks once more at an Environment before it goes.
type recorded struct {
	lifecycle.Environment
	task *taskRun
	role lifecycle.Role
}

func (e *recorded) Close(ctx context.Context) error {
	e.task.records.closing(e.task.containers[e.role])
	e.task.checkEnforced(ctx, e.role)
	e.task.askReport(ctx, e.role)
	return e.Environment.Close(ctx)
}

// checkEnforced asks the controller whether a container has had its policy all the time.
func (r *taskRun) checkEnforced(ctx context.Context, role lifecycle.Role) {
	e := &r.result.Enforcement
	s, err := r.g.client().Status(ctx, r.containers[role])
	if err != nil {
		if e.Unknown == "" {
			e.Unknown = err.Error()
		}
		return
	}
	// Another container holds the network of one whose policy comes first.
	e.BeforeFirstProcess = e.BeforeFirstProcess && s.Holder != "" && s.Holder != s.ID
	e.UncoveredMilliseconds = max(e.UncoveredMilliseconds, s.UncoveredMilliseconds)
}

// askReport asks the controller for what it alone knows: what a container's rules have counted, and every generation.
// Without an answer the rest of the evidence stands alone.
func (r *taskRun) askReport(ctx context.Context, role lifecycle.Role) {
	report, err := r.g.client().Report(ctx, r.containers[role])
	if err != nil {
		return
	}
	if all, ok := evidence.GenerationsOf(role, report); ok {
		r.generations[role] = all
	}
	for _, p := range report.Packets {
		i := slices.IndexFunc(r.result.Packets, func(known api.Packets) bool { return known.Phase == p.Phase })
		if i < 0 {
			r.result.Packets = append(r.result.Packets, p)
			continue
		}
		r.result.Packets[i].Allowed += p.Allowed
		r.result.Packets[i].AllowedBytes += p.AllowedBytes
		r.result.Packets[i].Refused += p.Refused
	}
}

// step shows a step and keeps it.
func (r *taskRun) step(s lifecycle.Step) {
	t := taskStep{Step: s, Mode: r.result.phases[s.Phase].Mode}
	t.AuditHead = r.records.step(s)
	if s.Receipt != nil {
		t.Receipt = &taskReceipt{*s.Receipt, t.AuditHead}
	}
	r.result.Steps = append(r.result.Steps, t)
	if s.ExitCode != nil {
		r.result.ExitCodes[string(s.Boundary)] = *s.ExitCode
	}
	if s.Kept {
		r.result.Kept = append(r.result.Kept, r.containers[s.Environment])
	}
	if r.asJSON {
		r.keep(printJSON(r.cmd, t))
	} else {
		r.cmd.Println(t.line())
	}
	for _, what := range s.LeftOut {
		r.cmd.PrintErrf("sluice: warning: an artifact was copied without %s\n", clean(what))
	}
	r.keep(flush(r.cmd))
}

func (r *taskRun) keep(err error) {
	if r.problem == nil {
		r.problem = err
	}
}

// line is a step for a person.
func (t taskStep) line() string {
	what := string(t.Boundary)
	if t.Switch {
		what = "-> " + t.Phase.String()
	}
	line := fmt.Sprintf("%s  %-17s %-10s %-10s %-10s generation %-3d %8.3f s", t.Began.Local().Format("15:04:05"), what, t.Environment, t.Phase, t.Mode, t.Generation, t.Seconds)
	switch {
	case t.Error != "":
		line += "  failed: " + clean(t.Error)
	case t.TimedOut:
		line += "  timed out"
	case t.ExitCode != nil:
		line += fmt.Sprintf("  exit code %d", *t.ExitCode)
	case t.Kept:
		line += "  kept"
	case t.Switch && t.Receipt != nil:
		line += fmt.Sprintf("  %s cut, %d kept", count(t.Receipt.FlowsCut, "flow"), t.Receipt.FlowsKept)
	}
	return line
}

// shownAttempts is how many attempts of a phase stand in a result; the audit file has them all.
const shownAttempts = 50

// finish gathers the evidence, writes the result and says how the task ended.
func (r *taskRun) finish(f *taskFlags, taskErr error) error {
	summary, about := r.records.stop()
	res := &r.result
	res.Seconds = time.Since(res.Began).Seconds()
	res.Audit, res.Traffic = about, summary.Phases()
	steps := make([]lifecycle.Step, len(res.Steps))
	for i, s := range res.Steps {
		steps[i] = s.Step
	}
	res.Enforcement.Generations = evidence.Generations(steps, r.generations)
	res.Advice = evidence.Advise(steps, res.Traffic, map[string]string{"baseline": res.BaselineMode.String(), "run": res.RunMode.String(),
		"evaluation": res.EvaluationMode.String()}, res.SetupMode != "")
	if len(r.containers) == 0 {
		res.Enforcement.BeforeFirstProcess, res.Enforcement.Unknown = false, "nothing was started"
	}
	for i := range res.Traffic {
		p := &res.Traffic[i]
		for _, a := range p.Attempts {
			if p.Phase == policy.Run.String() && a.Verdict == evidence.Refused && len(res.Evidence) < shownAttempts {
				res.Evidence = append(res.Evidence, a)
			}
		}
		res.Violation = res.Violation || p.Phase == policy.Run.String() && p.Refused > 0
		p.Attempts = p.Attempts[:min(len(p.Attempts), shownAttempts)]
	}
	if taskErr != nil {
		res.Error = taskErr.Error()
	}
	for _, a := range res.Advice {
		r.cmd.PrintErrf("sluice: note: %s\n", clean(a))
	}
	err := errors.Join(taskErr, r.problem)
	if f.result != "" {
		text, encodeErr := json.MarshalIndent(res, "", "  ")
		if encodeErr == nil {
			encodeErr = os.WriteFile(f.result, append(text, '\n'), 0o644)
		}
		err = errors.Join(err, encodeErr)
	}
	if r.asJSON {
		err = errors.Join(err, printJSON(r.cmd, res))
	} else {
		r.summary()
	}
	if err != nil {
		return failed(err)
	}
	if code := res.ExitCodes[string(lifecycle.Evaluate)]; code != 0 {
		return exitCode(code)
	}
	return nil
}

// summary says in a few lines what was tried.
func (r *taskRun) summary() {
	r.cmd.Println(clean(r.result.Enforcement.String()))
	for _, p := range r.result.Traffic {
		r.cmd.Printf("%s: %d allowed, %d refused, %d cut\n", clean(p.Phase), p.Allowed, p.Refused, p.Cut)
	}
	for _, a := range r.result.Evidence {
		r.cmd.Printf("  refused in run: %s (%s) %d times\n", clean(a.Where()), clean(a.Reason), a.Count)
	}
	if !r.result.Audit.Complete {
		r.cmd.PrintErrf("sluice: warning: the evidence is not complete: %s\n", clean(r.result.Audit.Problem))
	}
}

// sameFile reports whether two names are of one file that exists; what only looks like a file has nothing to lose.
func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	two, again := os.Stat(b)
	return err == nil && again == nil && one.Mode().IsRegular() && os.SameFile(one, two)
}
