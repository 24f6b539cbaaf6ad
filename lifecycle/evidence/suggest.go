package evidence

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sluice/controller/tally"
	"sluice/matcher"
	"sluice/policy"
)

// SuggestOptions say what a suggestion is made of.
type SuggestOptions struct {
	Phase string
	// Refused takes what was refused in too, else only what was allowed, or observed.
	Refused bool
	// Wildcards are domains of which all names below become one target "*.domain" a port.
	Wildcards []string
}

// Suggestion is the smallest allowlist with which what was tried would work.
type Suggestion struct {
	Policy policy.Policy
	// Notes are what it leaves out or cannot know, a sentence each.
	Notes []string
}

// Suggest makes the smallest allowlist with ports for what was tried in a phase; no-network if nothing was. Names stay
// as they are but for the wildcards that are asked for.
func Suggest(phases []Phase, o SuggestOptions) (Suggestion, error) {
	var s Suggestion
	domains := make([]string, len(o.Wildcards))
	for i, w := range o.Wildcards {
		t, err := policy.ParseTarget("*." + strings.TrimPrefix(w, "*."))
		if err != nil || t.Port != 0 {
			return s, fmt.Errorf("%q is no domain for a wildcard: write it as in example.com", w)
		}
		domains[i] = strings.TrimPrefix(t.Host, "*")
	}
	targets := map[policy.Target]bool{}
	var lookUps []string
	noted := map[string]bool{}
	note := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !noted[text] {
			noted[text] = true
			s.Notes = append(s.Notes, text)
		}
	}
	for _, p := range phases {
		if p.Phase != o.Phase {
			continue
		}
		if p.Untold > 0 {
			note("%d attempts were at more targets than a summary holds: some may be missing here", p.Untold)
		}
		for _, a := range p.Attempts {
			switch {
			case a.Verdict == Refused && !o.Refused:
				continue
			case a.Verdict == Refused && a.Missing() == "":
				note("%s is left out: it was refused for another reason than its absence (%s)", a.Where(), a.Reason)
				continue
			case a.Verdict == tally.Observed && a.Missing() == "" && (a.Reason == string(matcher.NameRule) || a.Reason == string(matcher.AddressRule)):
				note("%s is left out: the policy that was observed denies it (%s)", a.Where(), a.Rule)
				continue
			case a.IsLookUp():
				lookUps = append(lookUps, a.Target)
				continue
			}
			t, err := policy.ParseTarget(a.Where())
			if err != nil || t.Kind == policy.Wildcard || t.Kind == policy.IPv4CIDR || t.Kind == policy.IPv6CIDR {
				note("%q is left out: no policy can name it", a.Where())
				continue
			}
			if t.Port == 0 {
				note("%s by %s is left out: it has no port, so every port would be open; add %[1]s if that is meant", a.Where(), a.Protocol)
				continue
			}
			targets[widen(t, domains)] = true
		}
	}
	known := map[string]bool{}
	for t := range targets {
		known[t.Host] = true
	}
	var only []string
	for _, name := range lookUps {
		t, err := policy.ParseTarget(name)
		if err != nil {
			note("%q is left out: no policy can name it", name)
			continue
		}
		if host := widen(t, domains).Host; !known[host] {
			known[host] = true
			only = append(only, host)
		}
	}
	if len(only) > 0 { // without a port it would be more than was tried
		note("only looked up, so left out, for their ports are not known: %s; add those that are meant, with their ports", list(only))
	}
	if len(targets) == 0 {
		return s, nil
	}
	s.Policy = policy.Policy{Mode: policy.Allowlist, Targets: slices.SortedFunc(slices.Values(keys(targets)), policy.Target.Compare)}
	return s, nil
}

func keys(m map[policy.Target]bool) []policy.Target {
	list := make([]policy.Target, 0, len(m))
	for t := range m {
		list = append(list, t)
	}
	return list
}

// widen returns the wildcard of the domain that a name is under, of those that are asked for; domains begin with a dot.
func widen(t policy.Target, domains []string) policy.Target {
	for _, d := range domains {
		if t.Kind == policy.Hostname && strings.HasSuffix(t.Host, d) {
			return policy.Target{Host: "*" + d, Port: t.Port, Kind: policy.Wildcard}
		}
	}
	return t
}

// Change is a line of a comparison with a present policy.
type Change struct {
	Target policy.Target `json:"target"`
	// What is "add": the present policy refuses it; "keep"; or "unused": it is in the present policy and nothing needs
	// it.
	What string `json:"what"`
}

// Compare says what would change if the suggestion took the place of a present policy.
func (s Suggestion) Compare(present policy.Policy) ([]Change, error) {
	present.Options.Observe = false // what it says itself, not that it refuses nothing
	rules, err := matcher.Compile(present, matcher.Options{})
	if err != nil {
		return nil, err
	}
	var changes []Change
	for _, t := range s.Policy.Targets {
		change := Change{t, "keep"}
		if !covers(rules, t) {
			change.What = "add"
		}
		changes = append(changes, change)
	}
	if present.Mode == policy.Allowlist {
		suggested, err := matcher.Compile(s.Policy, matcher.Options{})
		if err != nil {
			return nil, err
		}
		for _, t := range present.Targets {
			if !covers(suggested, t) && !slices.ContainsFunc(s.Policy.Targets, func(needed policy.Target) bool { return within(needed, t) }) {
				changes = append(changes, Change{t, "unused"})
			}
		}
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Or(a.Target.Compare(b.Target), cmp.Compare(a.What, b.What)) })
	return changes, nil
}

// covers reports whether a policy allows a target, as far as one can say of all that a wildcard stands for.
func covers(rules *matcher.Ruleset, t policy.Target) bool {
	switch {
	case t.Kind == policy.Wildcard:
		return rules.Name("x"+strings.TrimPrefix(t.Host, "*"), t.Port).Verdict == matcher.Allow
	case t.Kind == policy.Hostname:
		return rules.Name(t.Host, t.Port).Verdict == matcher.Allow
	}
	return t.Prefix.IsSingleIP() && rules.Addr(t.Prefix.Addr(), t.Port).Verdict == matcher.Allow
}

// within reports whether a target of a policy is what lets another one through.
func within(needed, by policy.Target) bool {
	if by.Port != 0 && by.Port != needed.Port {
		return false
	}
	switch {
	case needed.Host == by.Host:
		return true
	case by.Kind == policy.Wildcard:
		return strings.HasSuffix(needed.Host, strings.TrimPrefix(by.Host, "*"))
	case by.Kind.IsName() || needed.Kind.IsName():
		return false
	}
	return by.Prefix.Bits() <= needed.Prefix.Bits() && by.Prefix.Contains(needed.Prefix.Addr())
}
