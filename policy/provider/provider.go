// Package provider says what each provider of Environments can enforce of a plan, refuses what it cannot enforce
// exactly, and translates the rest into the provider's own settings.
//
// Everything about a provider is in the file that is named after it. Nothing here does I/O.
package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sluice/policy"
)

// Provider is one provider of Environments. The limits are facts about the provider.
type Provider struct {
	Name string
	// Modes are the modes that it enforces.
	Modes []policy.Mode
	// Switches reports whether the policy of a running Environment can be changed.
	Switches bool
	// Ports reports whether targets may have ports.
	Ports bool
	// Kinds are the forms of targets that it enforces.
	Kinds []policy.Kind
	// Native are parameters of the provider with which users set its network themselves.
	Native []string

	// entries says what else is wrong with the targets of an allowlist; nil if nothing can be.
	entries func([]policy.Target) *problem
	// environment says what is wrong with an Environment that has these policies, one after the other.
	environment func(s Spec, phases []policy.Policy) *problem
	// create and update are the provider's settings for a policy; dynamic is set if the Environment changes its policy.
	create func(s Spec, p policy.Phase, dynamic bool) any
	update func(s Spec, p policy.Phase) any
}

var all = []Provider{daytona, docker, hostProcess, modal}

// Names returns the names of all providers, sorted.
func Names() []string {
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = p.Name
	}
	return names
}

// Find returns the provider of a name.
func Find(name string) (Provider, error) {
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
	}
	return Provider{}, fmt.Errorf("%q is not a known provider: write %s", name, strings.Join(Names(), ", "))
}

// Spec is what a provider shall enforce.
type Spec struct {
	Phases policy.Phases
	// Fresh: the evaluation has an Environment of its own, else it has the agent's.
	Fresh bool
	// Older: name fields as the older generation does.
	Older bool
	// Params are the provider's parameters, by name; "" for those that have no plain text.
	Params map[string]string
}

// Refusal is a policy that a provider cannot enforce exactly. Nothing weaker is ever taken for it.
type Refusal struct {
	Provider string `json:"provider"`
	// Field is the phase's field.
	Field   string `json:"field"`
	Problem string `json:"problem"`
	// Limit is the provider's, Override what to do about it.
	Limit    string `json:"limit"`
	Override string `json:"override"`
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s: %s; %s; %s", r.Field, r.Problem, r.Limit, r.Override)
}

// problem is a refusal to be.
type problem struct {
	what, limit, repair string
}

// Settings are a provider's own settings for a plan, in the order of their use. A nil one is nothing to be done.
type Settings struct {
	// Create are the settings with which the Environment is created: under the baseline.
	Create json.RawMessage `json:"create"`
	// EvaluationCreate are those of the evaluation's own Environment.
	EvaluationCreate json.RawMessage `json:"evaluation_create,omitempty"`
	// Update are those that put a phase's policy in force in a running Environment, by the phase's name; empty if all
	// phases have the same policy.
	Update map[string]json.RawMessage `json:"update,omitempty"`
}

// Check refuses what the provider cannot enforce exactly. The error joins a *[Refusal] for every phase with a fault.
func (p Provider) Check(s Spec) error {
	var errs []error
	refuse := func(phase policy.Phase, what *problem) {
		errs = append(errs, p.refusal(s, phase, what))
	}
	for phase, value := range s.Phases {
		if what := p.checkPolicy(value); what != nil {
			refuse(policy.Phase(phase), what)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, phases := range s.environments() {
		if what := p.checkEnvironment(s, phases); what != nil {
			refuse(phases[len(phases)-1], what)
		}
	}
	return errors.Join(errs...)
}

// environments are the phases that each Environment goes through.
func (s Spec) environments() [][]policy.Phase {
	if s.Fresh {
		return [][]policy.Phase{{policy.Baseline, policy.Run}, {policy.Baseline, policy.Evaluation}}
	}
	return [][]policy.Phase{{policy.Baseline, policy.Run, policy.Evaluation}}
}

// dynamic reports whether an Environment that goes through phases changes its policy.
func (s Spec) dynamic(phases []policy.Phase) bool {
	first := s.Phases[phases[0]].Digest()
	return slices.ContainsFunc(phases, func(p policy.Phase) bool { return s.Phases[p].Digest() != first })
}

func (p Provider) checkPolicy(value policy.Policy) *problem {
	if !slices.Contains(p.Modes, value.Mode) {
		return &problem{fmt.Sprintf("the mode %s", value.Mode), p.Name + " enforces " + words(p.Modes), ""}
	}
	for _, t := range value.Targets {
		if !slices.Contains(p.Kinds, t.Kind) {
			return &problem{fmt.Sprintf("%q is of the kind %s", t, t.Kind), p.Name + " enforces " + words(p.Kinds), ""}
		}
		if t.Port != 0 && !p.Ports {
			return &problem{fmt.Sprintf("%q has a port", t), p.Name + " enforces no ports",
				fmt.Sprintf("write %q if every port of it may be reached", t.Host)}
		}
	}
	if value.Mode == policy.Allowlist && p.entries != nil {
		if what := p.entries(value.Targets); what != nil {
			return what
		}
	}
	if value.Options != (policy.Options{}) && !p.options() {
		return &problem{"has options beside its targets", p.Name + " has no such options", "remove them"}
	}
	return nil
}

// options reports whether the options that stand beside targets are enforced: only where Sluice does it.
func (p Provider) options() bool { return p.Name == docker.Name }

func (p Provider) checkEnvironment(s Spec, phases []policy.Phase) *problem {
	if s.dynamic(phases) && !p.Switches {
		return &problem{"differs from another phase of the same Environment", p.Name + " cannot change the policy of an Environment", ""}
	}
	if p.environment == nil {
		return nil
	}
	values := make([]policy.Policy, len(phases))
	for i, phase := range phases {
		values[i] = s.Phases[phase]
	}
	return p.environment(s, values)
}

func (p Provider) refusal(s Spec, phase policy.Phase, what *problem) *Refusal {
	r := &Refusal{Provider: p.Name, Field: phase.Field(s.Older), Problem: what.what, Limit: what.limit}
	mode := policy.NoNetwork
	if !slices.Contains(p.Modes, mode) {
		mode = policy.Public
	}
	r.Override = fmt.Sprintf(`if you accept another network than the task was made for, override it: --env-params '{"%s": "%s"}'`, r.Field, mode)
	if what.repair != "" {
		r.Override = what.repair + ", or " + r.Override
	}
	return r
}

// Settings returns the provider's settings for a plan, after [Provider.Check].
func (p Provider) Settings(s Spec) (Settings, error) {
	if err := p.Check(s); err != nil {
		return Settings{}, err
	}
	var out Settings
	var err error
	encode := func(v any) json.RawMessage {
		text, encodeErr := json.Marshal(v)
		err = errors.Join(err, encodeErr)
		return text
	}
	environments := s.environments()
	out.Create = encode(p.create(s, policy.Baseline, s.dynamic(environments[0])))
	if s.Fresh {
		out.EvaluationCreate = encode(p.create(s, policy.Baseline, s.dynamic(environments[1])))
	}
	if p.update != nil && slices.ContainsFunc(environments, s.dynamic) {
		out.Update = map[string]json.RawMessage{}
		for phase := range s.Phases {
			out.Update[policy.Phase(phase).String()] = encode(p.update(s, policy.Phase(phase)))
		}
	}
	return out, err
}

// NativeSet are the provider's own network parameters that a user has set beside the policies, sorted.
func (p Provider) NativeSet(params map[string]string) []string {
	var set []string
	for _, name := range p.Native {
		if _, ok := params[name]; ok {
			set = append(set, name)
		}
	}
	return set
}

// words joins what a provider enforces.
func words[T fmt.Stringer](list []T) string {
	var texts []string
	for _, v := range list {
		texts = append(texts, v.String())
	}
	if len(texts) == 1 {
		return texts[0] + " only"
	}
	return strings.Join(texts[:len(texts)-1], ", ") + " and " + texts[len(texts)-1]
}

// Update returns the settings that put a phase's policy in force in an Environment that runs, after [Provider.Check].
// It is nil where that is not done by settings.
func (p Provider) Update(s Spec, phase policy.Phase) (json.RawMessage, error) {
	if err := p.Check(s); err != nil || p.update == nil {
		return nil, err
	}
	return json.Marshal(p.update(s, phase))
}
