package controller

import (
	"runtime"
	"testing"
	"time"

	"sluice/matcher"
	"sluice/policy"
)

const setText = `{"baseline_network_policy": "public", "run_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["a.test", "10.0.0.1"]},
	"evaluation_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["a.test", "10.0.0.1"]}}`

func TestPolicySetsAreShared(t *testing.T) {
	s := newPolicySet(parse(t, setText))
	if newPolicySet(parse(t, setText)) != s {
		t.Error("policies that are written alike have two sets")
	}
	// It means the same and is to be shown as it was written.
	other := newPolicySet(parse(t, `{"baseline_network_policy": "public", "run_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["a.test", "10.0.0.1/32"]},
		"evaluation_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["a.test", "10.0.0.1"]}}`))
	if other == s || other.digest != s.digest {
		t.Errorf("the same set: %v, digests %v and %v; want two with one digest", other == s, other.digest, s.digest)
	}
	rules, err := s.compiled(matcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.compiled(matcher.Options{}); err != nil || again != rules {
		t.Errorf("compiled twice, %v", err)
	}
	if rules[policy.Run] != rules[policy.Evaluation] || rules[policy.Run] == rules[policy.Baseline] {
		t.Error("phases that are written alike have rules of their own, or others have not")
	}
	apart, err := other.compiled(matcher.Options{})
	if err != nil || apart[policy.Run] == apart[policy.Evaluation] {
		t.Errorf("phases that are written otherwise have one set of rules, %v", err)
	}
	if floorless, err := s.compiled(matcher.Options{NoFloor: true}); err != nil || floorless[policy.Run] == rules[policy.Run] {
		t.Errorf("with other options the rules are the same, %v", err)
	}
	runtime.KeepAlive(other)
}

// A set that nobody has any more is forgotten.
func TestPolicySetsAreForgotten(t *testing.T) {
	text := `{"baseline_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["forgotten.test"]}, "run_network_policy": "public",
		"evaluation_network_policy": "public"}`
	key := (&policySet{phases: parse(t, text)}).write()
	known := func() bool {
		sets.mu.Lock()
		defer sets.mu.Unlock()
		_, ok := sets.known[key]
		return ok
	}
	s := newPolicySet(parse(t, text))
	if !known() {
		t.Fatal("the set is not known")
	}
	runtime.KeepAlive(s)
	for deadline := time.Now().Add(10 * time.Second); known(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the set is still known")
		}
		runtime.GC()
	}
}
