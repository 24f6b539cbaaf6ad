package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"sluice/lifecycle"
	"sluice/policy"
)

// taskFile is a task as its file describes it. The policies in it are the sample's.
type taskFile struct {
	Name   string            `json:"name"`
	Image  string            `json:"image"`
	Images map[string]string `json:"images"` // by role: agent, evaluation

	// The policies are read by package policy; they stand here so that they are known fields.
	Baseline   any `json:"baseline_network_policy"`
	Run        any `json:"run_network_policy"`
	Evaluation any `json:"evaluation_network_policy"`
	Network_   any `json:"network_policy"`
	Verifier   any `json:"verifier_network_policy"`

	Recipes               []string       `json:"recipes"` // files, relative to this one
	EnvParams             map[string]any `json:"env_params"`
	Benchmark             string         `json:"benchmark"`
	Harness               string         `json:"harness"`
	ModelBaseURL          string         `json:"model_base_url"`
	EvaluationEnvironment string         `json:"evaluation_environment"` // reuse or fresh
	Keep                  bool           `json:"keep"`

	Network   string            `json:"network"`
	User      string            `json:"user"`
	Workdir   string            `json:"workdir"`
	Memory    string            `json:"memory"`
	Env       map[string]string `json:"env"`
	Volumes   []string          `json:"volumes"`
	DNS       []string          `json:"dns"`
	AllowWeak bool              `json:"allow_weak"`
	Idle      []string          `json:"idle"`

	Commands  map[string]taskCommand `json:"commands"`
	Artifacts []taskArtifact         `json:"artifacts"`

	dir    string
	params policy.Params
}

type taskCommand struct {
	Argv    []string          `json:"argv"`
	Shell   string            `json:"shell"`
	Timeout string            `json:"timeout"`
	Env     map[string]string `json:"env"`
	Workdir string            `json:"workdir"`
	User    string            `json:"user"`
}

type taskArtifact struct {
	From string `json:"from"`
	To   string `json:"to"` // relative to the file
}

// readTask reads a task file in YAML or JSON. Nothing in it is optional by accident: a field that is not known is an
// error.
func readTask(cmd *cobra.Command, name string) (*taskFile, error) {
	data, err := readFile(cmd, name)
	if err != nil {
		return nil, err
	}
	refused := func(err error) error { return fmt.Errorf("%s is refused:\n%w", display(name), err) }
	t := &taskFile{EvaluationEnvironment: "reuse"}
	if t.params, err = policy.ParseParams(data, "env_params"); err != nil {
		return nil, refused(err)
	}
	var plain any
	if err := yaml.Unmarshal(data, &plain); err != nil { // JSON is YAML; duplicate fields are errors here
		return nil, refused(err)
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return nil, refused(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(t); err != nil {
		return nil, refused(err)
	}
	if name != "-" {
		t.dir = filepath.Dir(name)
	}
	if err := t.check(); err != nil {
		return nil, refused(err)
	}
	return t, nil
}

func (t *taskFile) check() error {
	fresh := t.EvaluationEnvironment == "fresh"
	switch {
	case !fresh && t.EvaluationEnvironment != "reuse":
		return fmt.Errorf(`/evaluation_environment: %q is neither "reuse" nor "fresh"`, t.EvaluationEnvironment)
	case len(t.Commands) == 0:
		return fmt.Errorf("/commands: there is nothing to run; name at least run_task or evaluate")
	}
	for _, role := range slices.Sorted(maps.Keys(t.Images)) {
		if !fresh || role != string(lifecycle.Agent) && role != string(lifecycle.Evaluation) {
			return fmt.Errorf(`/images/%s: only a task with "evaluation_environment: fresh" has images by role, agent and evaluation; write "image" for one image`, role)
		}
	}
	if t.Image == "" && (!fresh || t.Images["agent"] == "" || t.Images["evaluation"] == "") {
		return fmt.Errorf("/image: is missing; name the image of the Environment")
	}
	for _, name := range slices.Sorted(maps.Keys(t.Commands)) {
		b, c := lifecycle.Boundary(name), t.Commands[name]
		if !slices.Contains(lifecycle.Boundaries, b) {
			return fmt.Errorf("/commands/%s: is no boundary; write %s", name, joinWords(lifecycle.Boundaries))
		}
		if !fresh && (b == lifecycle.EvaluationOpen || b == lifecycle.EvaluationClose) {
			return fmt.Errorf(`/commands/%s: only a task with "evaluation_environment: fresh" has it`, name)
		}
		if (c.Shell == "") == (len(c.Argv) == 0) {
			return fmt.Errorf("/commands/%s: write argv, a list, or shell, a text", name)
		}
		if b == lifecycle.CloseSession && t.Commands[string(lifecycle.StartSession)].empty() {
			return fmt.Errorf("/commands/%s: there is no session without start_session", name)
		}
	}
	for i, a := range t.Artifacts {
		if !strings.HasPrefix(a.From, "/") || a.To == "" {
			return fmt.Errorf("/artifacts/%d: write from, an absolute path in the Environment, and to, a path beside the task file", i)
		}
		for j, other := range t.Artifacts {
			in, err := filepath.Rel(t.path(other.To), t.path(a.To))
			if i != j && err == nil && filepath.IsLocal(in) {
				return fmt.Errorf("/artifacts/%d/to: %s lies in that of /artifacts/%d, %s: give each a place of its own", i, a.To, j, other.To)
			}
		}
	}
	return nil
}

func (c taskCommand) empty() bool { return c.Shell == "" && len(c.Argv) == 0 }

// task is what package lifecycle runs.
func (t *taskFile) task() (lifecycle.Task, error) {
	out := lifecycle.Task{Commands: map[lifecycle.Boundary]lifecycle.Command{}, Fresh: t.EvaluationEnvironment == "fresh", Keep: t.Keep}
	for name, c := range t.Commands {
		command := lifecycle.Command{Argv: c.Argv, Env: pairs(c.Env), Workdir: c.Workdir, User: c.User}
		if c.Shell != "" {
			command.Argv = []string{"/bin/sh", "-c", c.Shell}
		}
		if c.Timeout != "" {
			var err error
			if command.Timeout, err = time.ParseDuration(c.Timeout); err != nil || command.Timeout <= 0 {
				return out, fmt.Errorf(`/commands/%s/timeout: %q is no time; write "90s" or "10m"`, name, c.Timeout)
			}
		}
		out.Commands[lifecycle.Boundary(name)] = command
	}
	for _, a := range t.Artifacts {
		out.Artifacts = append(out.Artifacts, lifecycle.Artifact{From: a.From, To: t.path(a.To)})
	}
	return out, nil
}

// path is a path that the file names, relative to it.
func (t *taskFile) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(t.dir, name)
}

func pairs(env map[string]string) []string {
	var list []string
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}

func joinWords[T ~string](words []T) string {
	var list []string
	for _, w := range words {
		list = append(list, string(w))
	}
	return strings.Join(list, ", ")
}
