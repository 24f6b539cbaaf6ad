package dns

import (
	"hash/maphash"
	"sync"

	"sluice/matcher"
	"sluice/policy"
)

// countedNames is how many different names are told apart at least. Beyond it, and beyond the budget, every name
// that is not known counts whenever it is asked for: too many rather than too few.
const countedNames = 4096

// names counts the different names under wildcards that were looked up since the last switch: data can leave in
// them. Names of services (_service._proto.NAME), and those that only an address may allow, can be made up too, and
// count.
type names struct {
	mu         sync.Mutex // guards what follows
	generation uint64
	ruleset    *matcher.Ruleset
	rule       matcher.RuleID // the last one seen, and whether it is a wildcard: most come in a row
	wildcard   bool
	seed       maphash.Seed
	seen       map[uint64]struct{}
	count      int
}

// admit counts the name of a query that d allows, and reports whether the budget holds it.
func (n *names) admit(rules *Rules, d matcher.Decision, name []byte) bool {
	if rules.Ruleset.Mode() != policy.Allowlist {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if rules.Generation != n.generation || rules.Ruleset != n.ruleset {
		if rules.Generation < n.generation {
			return true // the rules have been replaced meanwhile, and the answer will be judged by the new ones
		}
		n.generation, n.ruleset, n.rule = rules.Generation, rules.Ruleset, matcher.NoRule
		n.seed, n.seen, n.count = maphash.MakeSeed(), nil, 0
	}
	if d.Rule != n.rule {
		n.rule, n.wildcard = d.Rule, rules.Ruleset.Target(d.Rule).Kind == policy.Wildcard
	}
	if !n.wildcard && d.Verdict != matcher.ByAddress && name[0] != '_' {
		return true
	}
	hash := maphash.Bytes(n.seed, name)
	if _, ok := n.seen[hash]; ok {
		return true
	}
	budget := rules.Options.DNSUniqueNames
	if budget > 0 && len(n.seen) >= budget {
		return false
	}
	n.count++
	if len(n.seen) < max(budget, countedNames) {
		if n.seen == nil {
			n.seen = make(map[uint64]struct{})
		}
		n.seen[hash] = struct{}{}
	}
	return true
}

// UniqueNames returns how many different names under wildcards were looked up since the last switch. After 4096 of
// them, or the budget if that is more, names that come again count again.
func (s *Server) UniqueNames() int {
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	return s.names.count
}
