// Package tally sums audit records up: what was tried in each phase, and what became of it. It does no I/O.
package tally

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/control"
)

// MaxAttempts is how many different attempts of a phase a [Summary] tells apart, if it has no limit of its own; more are
// only counted.
const MaxAttempts = 10_000

// Verdicts of records. A failed one was allowed, but could not be done; a cut one was allowed and is no more.
const (
	Allowed = "allow"
	Refused = "refuse"
	Failed  = "error"
	Cut     = "cut"
	// Observed was allowed because the policy only observes, which would refuse it.
	Observed = "observed"
)

// Attempt is what was tried, as often as it was tried in the same way with the same end.
type Attempt struct {
	Target   string    `json:"target"`
	Port     uint16    `json:"port,omitempty"`
	Protocol string    `json:"protocol"`
	Verdict  string    `json:"verdict"`
	Reason   string    `json:"reason,omitempty"`
	Rule     string    `json:"rule,omitempty"` // the target of the policy that decided; empty where none matches
	Count    uint64    `json:"count"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	BytesIn  uint64    `json:"bytes_in"`  // towards the container
	BytesOut uint64    `json:"bytes_out"` // from it
}

// isDNS reports whether a record is about a look-up: its target is the name, its port that of the server.
func isDNS(protocol string) bool { return strings.HasPrefix(protocol, "dns-") }

// IsLookUp reports whether a name was asked for, so that the attempt's port says nothing of it.
func (a Attempt) IsLookUp() bool { return isDNS(a.Protocol) }

// Where is the attempt's target with its port, if it has one.
func (a Attempt) Where() string {
	if a.Port == 0 || a.IsLookUp() {
		return a.Target
	}
	return net.JoinHostPort(a.Target, strconv.Itoa(int(a.Port)))
}

// Missing is the target that a policy would need for a refused attempt to succeed, or an observed one; "" where no target
// helps.
func (a Attempt) Missing() string {
	if a.Verdict != Refused && a.Verdict != Observed {
		return ""
	}
	switch a.Reason {
	case "not-listed", "port-not-listed", "no-network":
		return a.Where()
	}
	return ""
}

// Phase is what was tried in one phase.
type Phase struct {
	Phase   string `json:"phase"`
	Allowed uint64 `json:"allowed"`
	Refused uint64 `json:"refused"`
	Failed  uint64 `json:"failed"`
	Cut     uint64 `json:"cut"`
	// NamesRefused are those of the refused that asked for a name in DNS.
	NamesRefused uint64    `json:"names_refused"`
	BytesIn      uint64    `json:"bytes_in"`
	BytesOut     uint64    `json:"bytes_out"`
	First        time.Time `json:"first"`
	Last         time.Time `json:"last"`
	// Generations are those that decided, in their order.
	Generations []uint64 `json:"generations"`
	// Attempts are sorted: refused before others, the most frequent first.
	Attempts []Attempt `json:"attempts"`
	// Untold are attempts that are counted above, but of which there were too many different ones to be listed.
	Untold uint64 `json:"untold,omitempty"`
}

type key struct {
	target                          string
	port                            uint16
	protocol, verdict, reason, rule string
}

type tally struct {
	Phase
	attempts map[key]*Attempt
}

// Summary sums records up. Its zero value is ready; it is not safe for concurrent use.
type Summary struct {
	// Limit takes the place of [MaxAttempts] unless it is 0.
	Limit int

	phases map[string]*tally
	count  uint64
}

// Add takes a record in.
func (s *Summary) Add(e *control.Event) {
	if s.phases == nil {
		s.phases = map[string]*tally{}
	}
	t := s.phases[e.Phase]
	if t == nil {
		t = &tally{Phase: Phase{Phase: e.Phase, First: e.Time}, attempts: map[key]*Attempt{}}
		s.phases[e.Phase] = t
	}
	s.count++
	switch e.Verdict {
	case Allowed, Observed:
		t.Allowed++
	case Failed:
		t.Failed++
	case Cut:
		t.Cut++
	default:
		t.Refused++
		if isDNS(e.Protocol) {
			t.NamesRefused++
		}
	}
	t.BytesIn, t.BytesOut = t.BytesIn+e.BytesIn, t.BytesOut+e.BytesOut
	t.First, t.Last = earlier(t.First, e.Time), later(t.Last, e.Time)
	if at, found := slices.BinarySearch(t.Generations, e.Generation); !found {
		t.Generations = slices.Insert(t.Generations, at, e.Generation)
	}
	k := key{e.Target, e.Port, e.Protocol, e.Verdict, e.Reason, e.Rule}
	a := t.attempts[k]
	if a == nil {
		if len(t.attempts) >= cmp.Or(s.Limit, MaxAttempts) {
			t.Untold++
			return
		}
		a = &Attempt{Target: k.target, Port: k.port, Protocol: k.protocol, Verdict: k.verdict, Reason: k.reason, Rule: k.rule, First: e.Time}
		t.attempts[k] = a
	}
	a.Count++
	a.First, a.Last = earlier(a.First, e.Time), later(a.Last, e.Time)
	a.BytesIn, a.BytesOut = a.BytesIn+e.BytesIn, a.BytesOut+e.BytesOut
}

// Records returns how many records were taken in.
func (s *Summary) Records() uint64 { return s.count }

// Phases returns what was tried, phase by phase, in the order of a task.
func (s *Summary) Phases() []Phase {
	order := map[string]int{"baseline": 1, "run": 2, "evaluation": 3}
	phases := []Phase{}
	for _, name := range slices.SortedFunc(maps.Keys(s.phases), func(a, b string) int {
		return cmp.Or(cmp.Compare(order[a], order[b]), cmp.Compare(a, b))
	}) {
		t := s.phases[name]
		p := t.Phase
		p.Generations = slices.Clone(p.Generations)
		for _, a := range t.attempts {
			p.Attempts = append(p.Attempts, *a)
		}
		slices.SortFunc(p.Attempts, compare)
		phases = append(phases, p)
	}
	return phases
}

func compare(a, b Attempt) int {
	if refused := a.Verdict == Refused; refused != (b.Verdict == Refused) {
		if refused {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Target, b.Target), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Verdict, b.Verdict), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Rule, b.Rule))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
