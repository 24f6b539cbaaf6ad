package dns

import (
	"hash/maphash"
	"maps"
	"sync"

	"sluice/matcher"
	"sluice/policy"
)

// countedNames is how many different names are told apart at least. Beyond it, and beyond the budget, every name
// that is not known counts whenever it is asked for: too many rather than too few.
const countedNames = 4096

// questionOverhead is what a question holds beside its name as a text: the lengths at its ends, type and class.
const questionOverhead = 2 + 4

// A Budget counts what is asked of name servers, from when a phase's policy comes into force until the next switch, in
// names that whoever asks can make up: those under wildcards, those of services (_service._proto.NAME), and those that
// only an address may allow. Data can leave in them. It holds as long as its policy's options say.
//
// A nil Budget counts nothing. It is safe for concurrent use.
type Budget struct {
	ruleset *matcher.Ruleset
	options policy.Options

	mu       sync.Mutex     // guards what follows
	rule     matcher.RuleID // the last one seen, and whether it is a wildcard: most come in a row
	wildcard bool
	seed     maphash.Seed
	seen     map[uint64]struct{}
	names    int
	bytes    int
}

// NewBudget makes the budget of a policy that has come into force, nil if its mode is no allowlist.
func NewBudget(set *matcher.Ruleset, o policy.Options) *Budget {
	if set == nil || set.Mode() != policy.Allowlist {
		return nil
	}
	return &Budget{ruleset: set, options: o, rule: matcher.NoRule, seed: maphash.MakeSeed()}
}

// Spend counts some questions for a name, lower case without trailing dot, that d allows, and reports whether the
// budget holds them. If it does not, none may be asked, and none was counted.
func (b *Budget) Spend(d matcher.Decision, name []byte, questions int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.Rule != b.rule {
		b.rule, b.wildcard = d.Rule, b.ruleset.Target(d.Rule).Kind == policy.Wildcard
	}
	if !b.wildcard && d.Verdict != matcher.ByAddress && (len(name) == 0 || name[0] != '_') {
		return true
	}
	bytes := b.bytes + questions*(len(name)+questionOverhead)
	if most := b.options.DNSQuestionBytes; most > 0 && bytes > most {
		return false
	}
	hash := maphash.Bytes(b.seed, name)
	if _, ok := b.seen[hash]; !ok {
		most := b.options.DNSUniqueNames
		if most > 0 && len(b.seen) >= most {
			return false
		}
		b.names++
		if len(b.seen) < max(most, countedNames) {
			if b.seen == nil {
				b.seen = make(map[uint64]struct{})
			}
			b.seen[hash] = struct{}{}
		}
	}
	b.bytes = bytes
	return true
}

// Carry makes what former has counted count for b too, which is for the same policy and not in use yet.
func (b *Budget) Carry(former *Budget) {
	if b == nil || former == nil {
		return
	}
	former.mu.Lock()
	defer former.mu.Unlock()
	b.seed, b.seen, b.names, b.bytes = former.seed, maps.Clone(former.seen), former.names, former.bytes
}

// Spent returns how many different names were asked for, and how many bytes all questions for them had, the ones that
// were repeated too. After 4096 names, or the budget of names if that is more, names that come again count again.
func (b *Budget) Spent() (names, bytes int) {
	if b == nil {
		return 0, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.names, b.bytes
}
