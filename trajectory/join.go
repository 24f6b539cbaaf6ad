package trajectory

import (
	"net/url"
	"regexp"
	"strings"

	"sluice/lifecycle/evidence"
)

// Use is one operation that names a target, and what became of attempts to reach that target.
type Use struct {
	Step   int    `json:"step_id"`
	Match  string `json:"match"`
	Target string `json:"target"`
	// Allowed and Refused count attempts of the phase run to reach the target, whatever made them.
	Allowed uint64 `json:"allowed"`
	Refused uint64 `json:"refused"`
	// Verdict is "allowed", "refused", "both" or "none": no attempt is on record.
	Verdict string `json:"verdict"`
}

// Unexplained is a target that was tried in the phase run although no operation names it.
type Unexplained struct {
	Target  string `json:"target"`
	Allowed uint64 `json:"allowed"`
	Refused uint64 `json:"refused"`
}

// maxUses bounds what is listed of a trajectory.
const maxUses = 10_000

// urls finds what looks like a URL, or a host as git and scp take it.
var (
	urls   = regexp.MustCompile(`(?i)\b(?:https?|ftp|ssh|git)://[^\s"'<>\\]+`)
	remote = regexp.MustCompile(`\b[A-Za-z0-9_.-]+@([A-Za-z0-9.-]+):`)
)

// Join compares what an agent's operations name with what was tried in the phase run and what became of it.
func (a Analysis) Join(phases []evidence.Phase) ([]Use, []Unexplained) {
	type count struct{ allowed, refused uint64 }
	tried := map[string]count{}
	var order []string
	for _, p := range phases {
		if p.Phase != "run" {
			continue
		}
		for _, t := range p.Attempts {
			c, seen := tried[t.Target]
			if !seen {
				order = append(order, t.Target)
			}
			if t.Verdict == evidence.Refused {
				c.refused += t.Count
			} else {
				c.allowed += t.Count
			}
			tried[t.Target] = c
		}
	}
	uses, named := []Use{}, map[string]bool{}
	for _, s := range a.Details {
		for _, c := range s.Commands {
			for _, target := range targets(c.full) {
				named[target] = true
				if len(uses) == maxUses {
					continue
				}
				n := tried[target]
				uses = append(uses, Use{Step: s.ID, Match: c.Match, Target: target, Allowed: n.allowed, Refused: n.refused, Verdict: verdict(n.allowed, n.refused)})
			}
		}
	}
	rest := []Unexplained{}
	for _, target := range order {
		if n := tried[target]; !named[target] {
			rest = append(rest, Unexplained{target, n.allowed, n.refused})
		}
	}
	return uses, rest
}

func verdict(allowed, refused uint64) string {
	switch {
	case allowed > 0 && refused > 0:
		return "both"
	case allowed > 0:
		return "allowed"
	case refused > 0:
		return "refused"
	}
	return "none"
}

// targets returns the hosts that a command names, each once.
func targets(args string) []string {
	var hosts []string
	seen := map[string]bool{}
	add := func(host string) {
		host = strings.TrimSuffix(strings.ToLower(host), ".")
		if host != "" && !seen[host] {
			seen[host] = true
			hosts = append(hosts, host)
		}
	}
	for _, text := range urls.FindAllString(args, maxUses) {
		if u, err := url.Parse(text); err == nil {
			add(u.Hostname())
		}
	}
	for _, m := range remote.FindAllStringSubmatch(args, maxUses) {
		add(m[1])
	}
	return hosts
}
