// Package trajectory says which steps of an agent's trajectory use the network, as AgentCompass 1.0.1's
// NetworkOperationAnalyzer does, and compares them with what was let through.
//
// It reads what agents wrote, and trusts none of it. It does no I/O.
package trajectory

import (
	"errors"
	"strconv"

	"sluice/policy/pyjson"
)

// DefaultThreshold is the ratio above which a trajectory counts as bad. AgentCompass has 20, which no ratio exceeds.
const DefaultThreshold = 0.2

// maxArgs is how many characters of a call's arguments are shown.
const maxArgs = 500

// Analysis is what a trajectory does with the network. The fields have AgentCompass's names.
type Analysis struct {
	ToolSteps    int     `json:"total_tool_steps"`
	NetworkSteps int     `json:"network_steps"`
	Ratio        float64 `json:"network_op_ratio"` // of the former, rounded to four digits
	// Types are the kinds of operations, each as often as it occurs, in the order in which they came first.
	Types   []string `json:"network_op_types"`
	Details []Step   `json:"network_details"`
}

// Step is one step that uses the network.
type Step struct {
	ID       int       `json:"step_id"`
	Commands []Command `json:"commands"`
}

// Command is one call of a tool that uses the network.
type Command struct {
	Tool  string `json:"tool"`
	Args  string `json:"args"` // the first 500 characters
	Match string `json:"match"`

	full string
}

// Bad reports whether too many steps use the network: more than the threshold, a ratio from 0 to 1.
func (a Analysis) Bad(threshold float64) bool { return a.Ratio > threshold }

// ErrNoSteps: there is nothing to analyse, so nothing is said.
var ErrNoSteps = errors.New("holds no trajectory: write an object with steps or trajectory.steps, or a list of messages")

// Analyze reads a trajectory in JSON: AgentCompass's (an object with steps, or with trajectory.steps, of which each has
// assistant_content with tool_calls), or messages of OpenAI's form (a list, or an object with messages), where every
// message of the assistant is a step.
func Analyze(data []byte) (Analysis, error) {
	v, err := pyjson.Parse(data)
	if err != nil {
		return Analysis{}, err
	}
	steps, err := stepsOf(&v)
	if err != nil {
		return Analysis{}, err
	}
	a := Analysis{Types: []string{}, Details: []Step{}}
	var order []string
	counts := map[string]int{}
	for _, s := range steps {
		if len(s.calls) == 0 {
			continue
		}
		a.ToolSteps++
		step := Step{ID: s.id}
		for i := range s.calls {
			name, args := callOf(&s.calls[i])
			match, ok := networkUse(name, args)
			if !ok {
				continue
			}
			step.Commands = append(step.Commands, Command{Tool: name, Args: first(args, maxArgs), Match: match, full: args})
			if counts[match] == 0 {
				order = append(order, match)
			}
			counts[match]++
		}
		if step.Commands != nil {
			a.NetworkSteps++
			a.Details = append(a.Details, step)
		}
	}
	for _, match := range order {
		for range counts[match] {
			a.Types = append(a.Types, match)
		}
	}
	if a.ToolSteps > 0 {
		a.Ratio = round4(float64(a.NetworkSteps) / float64(a.ToolSteps))
	}
	return a, nil
}

type step struct {
	id    int
	calls []pyjson.Value
}

func stepsOf(v *pyjson.Value) ([]step, error) {
	for _, path := range [][]string{{"trajectory", "steps"}, {"steps"}} {
		at := v
		for _, name := range path {
			at = at.Member(name)
		}
		if at != nil && at.Kind == pyjson.List && len(at.Values) > 0 {
			return compassSteps(at), nil
		}
	}
	messages := v
	if m := v.Member("messages"); m != nil {
		messages = m
	}
	if messages.Kind != pyjson.List || len(messages.Values) == 0 {
		return nil, ErrNoSteps
	}
	var steps []step
	for i := range messages.Values {
		m := &messages.Values[i]
		if role := m.Member("role"); role != nil && role.Kind == pyjson.String && role.Text == "assistant" {
			steps = append(steps, step{id: len(steps) + 1, calls: callsOf(m)})
		}
	}
	if steps == nil {
		return nil, ErrNoSteps
	}
	return steps, nil
}

func compassSteps(list *pyjson.Value) []step {
	steps := make([]step, len(list.Values))
	for i := range list.Values {
		s := &list.Values[i]
		steps[i] = step{id: i + 1, calls: callsOf(s.Member("assistant_content"))}
		if id := s.Member("step_id"); id != nil && id.Kind == pyjson.Number {
			if n, err := strconv.Atoi(id.Text); err == nil {
				steps[i].id = n
			}
		}
	}
	return steps
}

// callsOf returns the tool calls of a message.
func callsOf(m *pyjson.Value) []pyjson.Value {
	calls := m.Member("tool_calls")
	if calls == nil || calls.Kind != pyjson.List {
		return nil
	}
	return calls.Values
}

// callOf returns a call's name and arguments as texts.
func callOf(call *pyjson.Value) (name, args string) {
	function := call.Member("function")
	if function == nil || function.Kind != pyjson.Object {
		return "", ""
	}
	if n := function.Member("name"); n != nil && !falsy(n) {
		name = n.Str()
	}
	switch a := function.Member("arguments"); {
	case a == nil:
	case a.Kind == pyjson.Object:
		args = string(a.AppendDump(nil))
	default:
		args = a.Str()
	}
	return name, args
}

// falsy reports whether a value is false to Python.
func falsy(v *pyjson.Value) bool {
	switch v.Kind {
	case pyjson.Null:
		return true
	case pyjson.Bool:
		return v.Text == "false"
	case pyjson.String:
		return v.Text == ""
	case pyjson.Number:
		f, err := strconv.ParseFloat(v.Text, 64)
		return err == nil && f == 0
	}
	return len(v.Values) == 0
}

// first returns at most n characters of s.
func first(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// round4 rounds to four digits as Python's round does: the double's exact value, halves to even.
func round4(f float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', 4, 64), 64)
	return r
}
