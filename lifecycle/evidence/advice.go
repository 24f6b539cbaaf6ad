package evidence

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/lifecycle"
	"sluice/policy"
)

// advisedTargets is how many targets an advice names.
const advisedTargets = 5

// Advise says of each step that has failed which of its phase's refusals may be the cause, and what to do: what was
// refused while it ran, by which field, and the targets to add if they may be reached. modes are those of the phases;
// older says that their fields have the older names.
func Advise(steps []lifecycle.Step, phases []Phase, modes map[string]string, older bool) []string {
	advice := []string{}
	for _, s := range steps {
		if s.Switch || s.Error == "" && !s.TimedOut && (s.ExitCode == nil || *s.ExitCode == 0) {
			continue
		}
		mode := modes[s.Phase.String()]
		refused, missing := during(s, phases, mode == policy.Denylist.String())
		if len(refused) == 0 {
			continue
		}
		field := s.Phase.Field(older)
		text := fmt.Sprintf("%s failed, and %s (%s) refused %s meanwhile", s.Boundary, field, mode, list(refused))
		if len(missing) > 0 {
			text += fmt.Sprintf(": if it needs that, %s, or %s", add(mode, field, missing), without(s.Boundary))
		}
		advice = append(advice, text)
	}
	return advice
}

// during lists what was refused of a step's phase while it ran, and the targets that would have let it through, or those
// that stood in the way of it.
func during(s lifecycle.Step, phases []Phase, denylist bool) (refused, missing []string) {
	ended := s.Began.Add(time.Duration(s.Seconds * float64(time.Second)))
	for _, p := range phases {
		if p.Phase != s.Phase.String() {
			continue
		}
		for _, a := range p.Attempts {
			if a.Verdict != Refused || a.First.After(ended) || a.Last.Before(s.Began) {
				continue
			}
			if where := a.Where(); !slices.Contains(refused, where) {
				refused = append(refused, where)
			}
			target := a.Missing()
			if denylist {
				target = a.Rule
			}
			if target != "" && !slices.Contains(missing, target) {
				missing = append(missing, target)
			}
		}
	}
	return refused, missing
}

func list(targets []string) string {
	if more := len(targets) - advisedTargets; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(targets[:advisedTargets], ", "), more)
	}
	return strings.Join(targets, ", ")
}

// add says how a policy comes to allow targets.
func add(mode, field string, missing []string) string {
	switch mode {
	case policy.Allowlist.String():
		return fmt.Sprintf("add %s to %s.allowed_hosts", list(missing), field)
	case policy.Denylist.String():
		return fmt.Sprintf("take %s out of %s.denied_hosts", list(missing), field)
	}
	return fmt.Sprintf("make %s an allowlist with %s", field, list(missing))
}

// without says how a boundary can do without the network.
func without(b lifecycle.Boundary) string {
	switch b {
	case lifecycle.RunTask:
		return "call the model from outside of the Environment"
	case lifecycle.CloseSession, lifecycle.CollectArtifacts:
		return "keep the artifacts in the Environment and name them in artifacts"
	case lifecycle.Evaluate, lifecycle.EvaluationOpen, lifecycle.EvaluationClose:
		return "put what it needs into the evaluation's image"
	}
	return "put what it needs into the image"
}
