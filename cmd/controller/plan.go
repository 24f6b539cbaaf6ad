package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"sluice/matcher"
	"sluice/policy"
	"sluice/policy/provider"
	"sluice/policy/pyjson"
)

// planned is what plan finds, and its --json output.
type planned struct {
	Provider       string                   `json:"provider"`
	Baseline       policy.Policy            `json:"baseline_network_policy"`
	Run            policy.Policy            `json:"run_network_policy"`
	Evaluation     policy.Policy            `json:"evaluation_network_policy"`
	BaselineMode   policy.Mode              `json:"baseline_network_mode"`
	RunMode        policy.Mode              `json:"run_network_mode"`
	EvaluationMode policy.Mode              `json:"evaluation_network_mode"`
	SetupMode      string                   `json:"setup_network_mode,omitempty"`    // of a task in the older field names
	VerifierMode   string                   `json:"verifier_network_mode,omitempty"` // the same
	Sources        map[string]policy.Source `json:"sources"`
	Digests        map[string]policy.Digest `json:"digests"`
	Recipes        []string                 `json:"applied_recipes"`
	Settings       provider.Settings        `json:"settings"`
	Notice         string                   `json:"notice"` // empty if the agent is told nothing
	Notes          []string                 `json:"notes,omitempty"`

	phases  policy.Phases
	sources policy.Sources
}

// planFlags are those of all commands that resolve a task's policies.
type planFlags struct {
	provider, envParams, sample, benchmark, harness, harnessParams, model, evaluation string
	recipes                                                                           []string
}

func (f *planFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.provider, "provider", "docker", "the provider of the Environment: "+strings.Join(provider.Names(), ", "))
	flags.StringVar(&f.envParams, "env-params", "", "what the run says: `JSON` with the phases' policies, or @FILE")
	flags.StringVar(&f.sample, "sample", "", "the task's sample, a `FILE` that may name the phases' policies")
	flags.StringArrayVar(&f.recipes, "recipe", nil, "a recipe `FILE`; give it again for more")
	flags.StringVar(&f.benchmark, "benchmark", "", "the task's benchmark, for recipes")
	flags.StringVar(&f.harness, "harness", "", "the task's harness, for recipes")
	flags.StringVar(&f.model, "model-base-url", "", "the `URL` of the model, which names its endpoint and port")
	addHarnessParams(cmd, &f.harnessParams)
	flags.StringVar(&f.evaluation, "evaluation-environment", "reuse", "the Environment of the evaluation: reuse or fresh")
}

func newPlan(g *globals) *cobra.Command {
	var f planFlags
	var rollout string
	var encoded bool
	cmd := &cobra.Command{
		Use:   "plan [flags]",
		Short: "Say which policy each phase of a task gets, and what its provider makes of it",
		Long: `Plan decides which policy each phase gets: that of --env-params, else the sample's, else a recipe's, else public, each
phase by itself. It checks that the provider enforces exactly that and that no endpoint is blocked which a recipe
requires, and prints the policies with their sources, the provider's own settings and what the agent is told.
A plan that cannot be kept is refused; nothing is ever widened.

With --rollout it prints instead that input ("-" is stdin) as the agent gets it: a JSON object with prompt or messages,
with the statement about the network behind it.`,
		Example: `  sluice plan --provider daytona --env-params '{"run_network_policy": "no-network"}'`,
		Args:    cobra.NoArgs,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&rollout, "rollout", "", "print the input in `FILE` as the agent gets it")
	cmd.Flags().BoolVar(&encoded, "json-prompt", false, "with --rollout: a prompt that is the JSON text of messages is taken for messages")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := f.plan(cmd)
		if err != nil {
			return err
		}
		switch {
		case rollout != "":
			return printRollout(cmd, rollout, p.Notice, encoded)
		case g.json:
			return printJSON(cmd, p)
		}
		return p.print(cmd)
	}
	return cmd
}

// plan resolves and checks what the flags say.
func (f *planFlags) plan(cmd *cobra.Command) (planned, error) {
	to, err := provider.Find(f.provider)
	if err != nil {
		return planned{}, fmt.Errorf("--provider: %w", err)
	}
	if f.evaluation != "reuse" && f.evaluation != "fresh" {
		return planned{}, fmt.Errorf(`--evaluation-environment: %q is neither "reuse" nor "fresh"`, f.evaluation)
	}
	in := policy.Inputs{Task: policy.Task{Benchmark: f.benchmark, Harness: f.harness, Provider: f.provider}}
	if f.model != "" {
		if in.Model, err = policy.ParseEndpoint(f.model); err != nil {
			return planned{}, fmt.Errorf("--model-base-url: %w", err)
		}
	}
	if in.Explicit, err = readParams(cmd, "--env-params", f.envParams); err != nil {
		return planned{}, err
	}
	sample := ""
	if f.sample != "" {
		sample = "@" + f.sample
	}
	if in.Sample, err = readParams(cmd, display(f.sample), sample); err != nil {
		return planned{}, err
	}
	for _, name := range f.recipes {
		data, err := readFile(cmd, name)
		if err != nil {
			return planned{}, failed(err)
		}
		r, err := policy.ParseRecipe(data)
		if err != nil {
			return planned{}, failed(fmt.Errorf("%s is refused:\n%w", display(name), err))
		}
		in.Recipes = append(in.Recipes, r)
	}
	told, err := wantsNotice(cmd, f.harnessParams)
	if err != nil {
		return planned{}, err
	}
	return makePlan(in, to, f.evaluation == "fresh", told)
}

func addHarnessParams(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, "harness-params", "", "what the run says of the harness: `JSON`, or @FILE; of it, inject_network_restriction_notice")
}

// wantsNotice reports whether a harness's parameters let the agent be told of its network.
func wantsNotice(cmd *cobra.Command, params string) (bool, error) {
	harness, err := readParams(cmd, "--harness-params", params)
	if err != nil {
		return false, err
	}
	if harness.Layer != (policy.Layer{}) {
		return false, failed(errors.New("--harness-params: policies belong into --env-params"))
	}
	told, err := policy.NoticeWanted(harness.Other)
	if err != nil {
		return false, failed(fmt.Errorf("--harness-params: %w", err))
	}
	return told, nil
}

// makePlan resolves and checks inputs; told says that the agent is to be told of its network.
func makePlan(in policy.Inputs, to provider.Provider, fresh, told bool) (planned, error) {
	plan, err := policy.MakePlan(in, reaches)
	if err != nil {
		return planned{}, failed(err)
	}
	settings, err := to.Settings(provider.Spec{Phases: plan.Phases, Fresh: fresh, Older: plan.Older, Params: in.Explicit.Other})
	if err != nil {
		return planned{}, failed(fmt.Errorf("%s cannot enforce this plan:\n%w", to.Name, err))
	}
	p := planned{
		Provider: to.Name, Baseline: plan.Phases[policy.Baseline], Run: plan.Phases[policy.Run], Evaluation: plan.Phases[policy.Evaluation],
		Sources: map[string]policy.Source{}, Digests: map[string]policy.Digest{}, Recipes: append([]string{}, plan.Recipes...),
		Settings: settings, Notes: plan.Notes, phases: plan.Phases, sources: plan.Sources,
	}
	p.BaselineMode, p.RunMode, p.EvaluationMode = p.Baseline.Mode, p.Run.Mode, p.Evaluation.Mode
	if plan.Older {
		p.SetupMode, p.VerifierMode = p.BaselineMode.String(), p.EvaluationMode.String()
	}
	for i, value := range plan.Phases {
		phase := policy.Phase(i)
		p.Sources[phase.String()], p.Digests[phase.String()] = plan.Sources[phase], value.Digest()
	}
	if told {
		p.Notice = policy.Notice(p.Run)
	}
	if set := to.NativeSet(in.Explicit.Other); len(set) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s: %s's own network parameters are not part of this plan and may change what is in force: leave them out",
			strings.Join(set, ", "), to.Name))
	}
	return p, nil
}

// readParams reads JSON from a flag, or from a file that the flag names after an "@".
func readParams(cmd *cobra.Command, what, text string) (policy.Params, error) {
	if text == "" {
		return policy.Params{}, nil
	}
	data := []byte(text)
	if file, found := strings.CutPrefix(text, "@"); found {
		var err error
		if data, err = readFile(cmd, file); err != nil {
			return policy.Params{}, failed(err)
		}
	}
	p, err := policy.ParseParams(data)
	if err != nil {
		return policy.Params{}, failed(fmt.Errorf("%s is refused:\n%w", what, err))
	}
	return p, nil
}

// reaches judges an endpoint as it is judged when it is asked for.
func reaches(p policy.Policy, endpoint policy.Target) (bool, string) {
	rules, err := matcher.Compile(p, matcher.Options{})
	if err != nil {
		return false, err.Error()
	}
	var d matcher.Decision
	if endpoint.Kind.IsName() {
		d = rules.Name(endpoint.Host, endpoint.Port)
	} else {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(endpoint.Host); err != nil {
			return false, err.Error()
		}
		d = rules.Addr(addr, endpoint.Port)
	}
	return d.Verdict == matcher.Allow, rules.Explain(d, endpoint.Host, endpoint.Port)
}

func (p planned) print(cmd *cobra.Command) error {
	rows := [][]string{{"PHASE", "MODE", "SOURCE", "TARGETS"}}
	for i, value := range p.phases {
		var targets []string
		for _, t := range value.Targets {
			targets = append(targets, t.String())
		}
		rows = append(rows, []string{policy.Phase(i).String(), value.Mode.String(), p.sources[i].String(), cmp.Or(strings.Join(targets, " "), "-")})
	}
	if err := printTable(cmd, rows); err != nil {
		return err
	}
	if len(p.Recipes) > 0 {
		cmd.Printf("\napplied recipes: %s\n", strings.Join(p.Recipes, ", "))
	}
	cmd.Printf("\nsettings of %s:\n", p.Provider)
	settings := [][]string{{"  create", string(p.Settings.Create)}}
	if p.Settings.EvaluationCreate != nil {
		settings = append(settings, []string{"  create for the evaluation", string(p.Settings.EvaluationCreate)})
	}
	for i := range p.phases {
		if update, ok := p.Settings.Update[policy.Phase(i).String()]; ok {
			settings = append(settings, []string{"  switch to " + policy.Phase(i).String(), string(update)})
		}
	}
	if err := printTable(cmd, settings); err != nil {
		return err
	}
	if p.Notice != "" {
		cmd.Printf("\nthe agent is told:\n%s\n", p.Notice)
	} else {
		cmd.Println("\nthe agent is told nothing about its network")
	}
	for _, note := range p.Notes {
		cmd.PrintErrf("sluice: note: %s\n", note)
	}
	return nil
}

// printRollout prints an input with the notice behind it.
func printRollout(cmd *cobra.Command, name, notice string, encoded bool) error {
	data, err := readAll(cmd, name, pyjson.MaxBytes)
	if err != nil {
		return failed(err)
	}
	copied, _, err := policy.AppendNotice(data, notice, encoded)
	if err != nil {
		return failed(fmt.Errorf("%s: %w", display(name), err))
	}
	cmd.Println(string(copied))
	return nil
}
