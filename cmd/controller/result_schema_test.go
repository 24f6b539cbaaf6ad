package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"sluice/controller/api"
	"sluice/lifecycle"
	"sluice/lifecycle/evidence"
	"sluice/policy"
	"sluice/policy/provider"
)

const resultSchema = "../../docs/schema/result.schema.json"

// The schema of results has every field that the program writes.
func TestResultSchemaHasAllFields(t *testing.T) {
	schema := readSchema(t, resultSchema)
	for what, row := range map[string]struct {
		described described
		v         any
	}{
		"result":      {schema.described, taskResult{}},
		"settings":    {schema.inner(t, "settings"), provider.Settings{}},
		"step":        {schema.Defs["step"], taskStep{}},
		"traffic":     {schema.Defs["traffic"], evidence.Phase{}},
		"attempt":     {schema.Defs["attempt"], evidence.Attempt{}},
		"packets":     {schema.Defs["packets"], api.Packets{}},
		"audit":       {schema.inner(t, "audit"), taskAudit{}},
		"enforcement": {schema.inner(t, "enforcement"), evidence.Enforcement{}},
		"generation":  {schema.inner(t, "enforcement", "generations"), evidence.Generation{}},
	} {
		want := jsonFields(row.v)
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(row.described.Properties)); !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("%s: the schema has %q, the program %q", what, got, want)
		}
	}
}

// aResult is a result with something in every field.
func aResult(t *testing.T) taskResult {
	t.Helper()
	digest := policy.Policy{}.Digest()
	list, err := policy.ParsePolicy([]byte(`{"network_mode": "allowlist", "allowed_hosts": ["example.com:443"]}`))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1, 0)
	attempt := evidence.Attempt{Target: "example.org", Port: 443, Protocol: "tls", Verdict: evidence.Refused, Reason: "not-listed", Count: 1, First: at, Last: at}
	receipt := taskReceipt{api.Receipt{Container: "web", ContainerID: "1", Generation: 1, Phase: "baseline", Digest: digest.String()}, digest.String()}
	code := 0
	step := func(s lifecycle.Step) taskStep {
		s.Environment, s.Generation, s.Began = lifecycle.Shared, 1, at
		return taskStep{Step: s, AuditHead: digest.String()}
	}
	opened, switched := step(lifecycle.Step{Boundary: lifecycle.Open, ExitCode: &code}), step(lifecycle.Step{Switch: true, Phase: policy.Run})
	opened.Receipt, switched.Receipt = &receipt, &receipt
	return taskResult{
		Task: "t",
		planned: planned{Provider: "docker", Run: list, RunMode: policy.Allowlist, SetupMode: "public", VerifierMode: "public",
			Sources: map[string]policy.Source{"run": policy.FromSample}, Digests: map[string]policy.Digest{"run": digest}, Recipes: []string{"r"},
			Settings: provider.Settings{Create: json.RawMessage(`{}`), Update: map[string]json.RawMessage{"run": json.RawMessage(`{}`)}}, Notice: "n", Notes: []string{"n"}},
		EvaluationEnvironment: "reuse", Began: at, Seconds: 1,
		Steps:     []taskStep{opened, switched, step(lifecycle.Step{Boundary: lifecycle.CollectArtifacts, LeftOut: []string{"l"}, TimedOut: true, Kept: true, Error: "e"})},
		ExitCodes: map[string]int{"evaluate": 3},
		Traffic:   []evidence.Phase{{Phase: "run", Refused: 1, First: at, Last: at, Generations: []uint64{1}, Attempts: []evidence.Attempt{attempt}, Untold: 1}},
		Packets:   []api.Packets{{Phase: "run", Refused: 1}},
		Audit:     taskAudit{Records: 1, Complete: true, Problem: "p", Head: digest.String()},
		Enforcement: evidence.Enforcement{BeforeFirstProcess: true, Unknown: "u",
			Generations: []evidence.Generation{{Environment: lifecycle.Shared, Generation: 1, Phase: "run", Digest: digest.String()}}},
		Violation: true, Evidence: []evidence.Attempt{attempt}, Advice: []string{"a"}, Kept: []string{"1"}, Error: "e",
	}
}

func TestResultSchema(t *testing.T) {
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	schema, err := compiler.Compile(resultSchema)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name   string
		change func(*taskResult)
		ok     bool
	}{
		{"full", func(*taskResult) {}, true},
		{"nothing-started", func(r *taskResult) {
			*r = taskResult{planned: planned{Provider: "docker", Settings: r.Settings, Digests: r.Digests, Sources: r.Sources}, EvaluationEnvironment: "fresh",
				Steps: []taskStep{}, ExitCodes: map[string]int{}, Traffic: []evidence.Phase{}, Packets: []api.Packets{}, Evidence: []evidence.Attempt{},
				Enforcement: evidence.Enforcement{Generations: []evidence.Generation{}}}
		}, true},
		{"step-of-nothing", func(r *taskResult) { r.Steps[1].Switch = false }, false},
		{"boundary", func(r *taskResult) { r.Steps[0].Boundary = "later" }, false},
		{"receipt", func(r *taskResult) { r.Steps[0].Receipt = &taskReceipt{} }, false},
		{"receipt-head", func(r *taskResult) { r.Steps[0].Receipt.AuditHead = "x" }, false},
		{"exit-code", func(r *taskResult) { r.ExitCodes["never"] = 1 }, false},
		{"verdict", func(r *taskResult) { r.Evidence[0].Verdict = "deny" }, false},
		{"head", func(r *taskResult) { r.Audit.Head = "x" }, false},
		{"environment", func(r *taskResult) { r.EvaluationEnvironment = "other" }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := aResult(t)
			row.change(&r)
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(v); (err == nil) != row.ok {
				t.Errorf("%s: %v", text, err)
			}
		})
	}
}
