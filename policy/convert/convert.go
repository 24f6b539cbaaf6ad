// Package convert reads what other harnesses and proxies are told of a network, and says it as a policy.
//
// Nothing is ever widened without being asked for: what cannot be said exactly is an error, or, where that is the
// caller's wish, a note. It does no I/O.
package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice/policy"
)

// Options change how something is read.
type Options struct {
	// Deny makes a denylist of a list of names that does not say what it is for (Squid).
	Deny bool
	// Wider accepts a policy that allows more than the original, where the difference is noted.
	Wider bool
}

// Result is a policy for all phases, or policies of phases.
type Result struct {
	Policy *policy.Policy
	Phases policy.Layer
	// Notes are differences to the original, a sentence each.
	Notes []string
}

// Document is the policy file that says the same.
func (r Result) Document() ([]byte, error) {
	var v any = r.Policy
	if r.Policy == nil {
		fields := map[string]*policy.Policy{}
		for phase, p := range r.Phases {
			if p != nil {
				fields[policy.Phase(phase).Field(false)] = p
			}
		}
		v = fields
	}
	return json.MarshalIndent(v, "", "  ")
}

// formats are the readers, by the name of what they read.
var formats = map[string]func([]byte, Options) (Result, error){
	"harbor": harbor, "e2b": e2b, "inspect": inspect, "squid": squid,
}

// Formats returns the names of what can be read, sorted.
func Formats() []string { return slices.Sorted(maps.Keys(formats)) }

// Convert reads a file of a format.
func Convert(format string, data []byte, o Options) (Result, error) {
	read, ok := formats[format]
	if !ok {
		return Result{}, fmt.Errorf("%q is not a known format: write %s", format, strings.Join(Formats(), ", "))
	}
	if len(data) > policy.MaxYAMLBytes {
		return Result{}, fmt.Errorf("has more than %d bytes", policy.MaxYAMLBytes)
	}
	return read(data, o)
}

// list makes a policy of a mode and its targets, by the rules of a policy file.
func list(mode policy.Mode, targets []string) (*policy.Policy, error) {
	if len(targets) == 0 {
		if mode == policy.Denylist {
			return &policy.Policy{Mode: policy.Public}, nil
		}
		return &policy.Policy{}, nil
	}
	fields := map[policy.Mode]string{policy.Allowlist: "allowed_hosts", policy.Denylist: "denied_hosts"}
	text, err := json.Marshal(map[string]any{"network_mode": mode, fields[mode]: targets})
	if err != nil {
		return nil, err
	}
	p, err := policy.ParsePolicy(text)
	if err != nil {
		return nil, err
	}
	return &p, nil
}

// object reads an object in JSON or YAML.
func object(data []byte) (map[string]any, error) {
	var v map[string]any
	if err := yaml.Unmarshal(data, &v); err != nil {
		return nil, fmt.Errorf("is not valid YAML or JSON: %w", err)
	}
	if v == nil {
		return nil, errors.New("is empty")
	}
	return v, nil
}

// texts is a value that must be a list of strings; nil for a value that is not there.
func texts(name string, v any) ([]string, error) {
	if v == nil {
		return nil, nil
	}
	items, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%s is not a list", name)
	}
	out := make([]string, len(items))
	for i, item := range items {
		if out[i], ok = item.(string); !ok {
			return nil, fmt.Errorf("%s/%d is not a string", name, i)
		}
	}
	return out, nil
}

// wider notes a difference that allows more, or refuses it.
func (r *Result) wider(o Options, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if !o.Wider {
		return fmt.Errorf("%s; name what is meant instead, or accept the difference with --accept-wider", text)
	}
	r.Notes = append(r.Notes, "wider: "+text)
	return nil
}

func (r *Result) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}
