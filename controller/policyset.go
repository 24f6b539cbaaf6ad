package controller

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"weak"

	"sluice/matcher"
	"sluice/policy"
)

// policySet is the policies of all phases with what is made of them, which takes long, and much room, for long lists.
// Containers whose policies are written alike share one. Nothing in it changes.
type policySet struct {
	phases  policy.Phases
	digest  policy.Digest // of all
	digests [policy.PhaseCount]policy.Digest
	// wire has the policies as the wire has them; err says why it does not.
	wire map[string]json.RawMessage
	err  error

	mu      sync.Mutex // guards what follows, which is made when it is needed
	rules   *[policy.PhaseCount]*matcher.Ruleset
	options matcher.Options
}

// sets are those that are in use.
var sets = struct {
	mu    sync.Mutex // guards known
	known map[setKey]weak.Pointer[policySet]
}{known: map[setKey]weak.Pointer[policySet]{}}

type setKey [sha256.Size]byte

func newPolicySet(phases policy.Phases) *policySet {
	s := &policySet{phases: phases}
	key := s.write()
	if s.err != nil {
		s.sum()
		return s
	}
	if known := knownSet(key); known != nil {
		return known
	}
	s.sum()
	sets.mu.Lock()
	defer sets.mu.Unlock()
	if known := sets.known[key].Value(); known != nil {
		return known
	}
	sets.known[key] = weak.Make(s)
	runtime.AddCleanup(s, forgetSet, key)
	return s
}

// write makes the texts, and the key from them.
func (s *policySet) write() setKey {
	s.wire = map[string]json.RawMessage{}
	all := new(bytes.Buffer)
	for i, p := range s.phases {
		phase := policy.Phase(i).String()
		text, err := json.Marshal(p)
		if err != nil {
			s.wire, s.err = nil, fmt.Errorf("policy of phase %s: %w", phase, err)
			return setKey{}
		}
		s.wire[phase] = text
		all.Write(text)
		all.WriteByte(0)
	}
	return sha256.Sum256(all.Bytes())
}

func knownSet(key setKey) *policySet {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	return sets.known[key].Value()
}

// forgetSet is called when nobody has one any more, unless there is another one by now.
func forgetSet(key setKey) {
	sets.mu.Lock()
	defer sets.mu.Unlock()
	if sets.known[key].Value() == nil {
		delete(sets.known, key)
	}
}

func (s *policySet) sum() {
	s.digest = s.phases.Digest()
	for i, p := range s.phases {
		s.digests[i] = p.Digest()
	}
}

// policies are those of all phases, as the wire has them. They are not to be changed.
func (s *policySet) policies() (map[string]json.RawMessage, error) { return s.wire, s.err }

// compiled are the rules of all phases. Those that are written alike have the same.
func (s *policySet) compiled(options matcher.Options) (*[policy.PhaseCount]*matcher.Ruleset, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rules != nil && reflect.DeepEqual(s.options, options) {
		return s.rules, nil
	}
	rules := new([policy.PhaseCount]*matcher.Ruleset)
	for i, one := range s.phases {
		if same := s.alike(i); same < i {
			rules[i] = rules[same]
			continue
		}
		var err error
		if rules[i], err = matcher.Compile(one, options); err != nil {
			return nil, fmt.Errorf("policy of phase %v: %w", policy.Phase(i), err)
		}
	}
	s.rules, s.options = rules, options
	return rules, nil
}

// alike is the first phase that is written like one of them.
func (s *policySet) alike(phase int) int {
	text := func(i int) []byte { return s.wire[policy.Phase(i).String()] }
	for i := range phase {
		if text(i) != nil && bytes.Equal(text(i), text(phase)) {
			return i
		}
	}
	return phase
}
