package evidence

import (
	"fmt"

	"sluice/controller/api"
	"sluice/lifecycle"
)

// Enforcement is what can be said of a task's policies from its first instruction to its last.
type Enforcement struct {
	// BeforeFirstProcess: in every Environment the first policy was in force before the first process began.
	BeforeFirstProcess bool `json:"policy_before_first_process"`
	// UncoveredMilliseconds is how long processes ran without a policy.
	UncoveredMilliseconds float64 `json:"uncovered_ms"`
	// Unknown says why the two above may be wrong; empty if they are not.
	Unknown string `json:"unknown,omitempty"`
	// Generations are all sets of rules that were in force, in their order.
	Generations []Generation `json:"generations"`
}

// Generation is a set of rules that was in force.
type Generation struct {
	Environment lifecycle.Role `json:"environment"`
	Generation  uint64         `json:"generation"`
	Phase       string         `json:"phase"`
	Digest      string         `json:"digest"`
}

// Generations lists the sets of rules that the receipts of steps name; those in known, by Environment, take the place of
// these.
func Generations(steps []lifecycle.Step, known map[lifecycle.Role][]Generation) []Generation {
	list := []Generation{}
	told := map[lifecycle.Role]bool{}
	for _, s := range steps {
		if all := known[s.Environment]; all != nil {
			if !told[s.Environment] {
				list = append(list, all...)
			}
			told[s.Environment] = true
			continue
		}
		if s.Receipt != nil {
			list = append(list, Generation{s.Environment, s.Receipt.Generation, s.Receipt.Phase, s.Receipt.Digest})
		}
	}
	return list
}

// GenerationsOf lists those that a container has had, also those that nobody asked for: its controller makes one when
// its networks change. ok is false if the controller does not know all.
func GenerationsOf(role lifecycle.Role, r api.Report) (list []Generation, ok bool) {
	for _, s := range r.Switches {
		if s.Problem == "" {
			list = append(list, Generation{role, s.Generation, s.Phase, s.Digest})
		}
	}
	return list, r.Partial == "" && r.Earlier == 0
}

// Whole reports whether there was a policy in force for every instruction, as far as is known.
func (e Enforcement) Whole() bool {
	return e.BeforeFirstProcess && e.UncoveredMilliseconds == 0 && e.Unknown == ""
}

// String says it in a sentence.
func (e Enforcement) String() string {
	switch {
	case e.Whole():
		return fmt.Sprintf("a policy was in force before the first process and ever after, in %d generations", len(e.Generations))
	case e.Unknown != "":
		return "whether a policy was in force all the time is not known: " + e.Unknown
	case e.UncoveredMilliseconds > 0:
		return fmt.Sprintf("for %.1f ms no policy was in force", e.UncoveredMilliseconds)
	}
	return "the first process may have begun before its policy was in force"
}
