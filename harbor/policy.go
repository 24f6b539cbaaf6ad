package harbor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"sluice/policy"
)

// Variables of the environment by which Harbor's compose file says what to begin with.
const (
	ModeVariable  = "EGRESS_CONTROL_INITIAL_NETWORK_MODE"
	HostsVariable = "EGRESS_CONTROL_INITIAL_ALLOWED_HOSTS"
)

// initial reads the policy to begin with. Nothing stands for public here: the compose file always names a mode, and a
// Harbor that has other names for its variables must not have everything opened.
func initial(mode, hosts string) (policy.Policy, error) {
	targets := strings.Fields(hosts)
	switch {
	case mode == "":
		return policy.Policy{}, fmt.Errorf("%s is not set: it is public, no-network or allowlist", ModeVariable)
	case mode == policy.Allowlist.String():
		p, err := allowlist(targets)
		if err != nil {
			err = fmt.Errorf("%s: %w", HostsVariable, err)
		}
		return p, err
	case mode != policy.Public.String() && mode != policy.NoNetwork.String():
		return policy.Policy{}, fmt.Errorf("%s is %.40q: it is public, no-network or allowlist", ModeVariable, mode)
	case len(targets) > 0:
		return policy.Policy{}, fmt.Errorf("%s has hosts, which belong to the mode allowlist, not to %s", HostsVariable, mode)
	case mode == policy.Public.String():
		return public(), nil
	}
	return refuseAll(), nil
}

func public() policy.Policy    { return policy.Policy{Mode: policy.Public} }
func refuseAll() policy.Policy { return policy.Policy{Mode: policy.NoNetwork} }

// allowlist makes a policy of targets in their short form. Empty ones are left out, as Harbor's own sidecar does, and
// without any the policy refuses everything.
func allowlist(texts []string) (policy.Policy, error) {
	var targets []policy.Target
	var failed []error
	for _, text := range texts {
		if text == "" {
			continue
		}
		t, err := policy.ParseTarget(text)
		if err != nil {
			if failed = append(failed, err); len(failed) == 10 {
				break
			}
			continue
		}
		targets = append(targets, t)
	}
	switch {
	case len(failed) > 0:
		return policy.Policy{}, errors.Join(failed...)
	case len(targets) > policy.MaxTargets:
		return policy.Policy{}, fmt.Errorf("%d targets: at most %d are allowed", len(targets), policy.MaxTargets)
	case len(targets) == 0:
		return refuseAll(), nil
	}
	slices.SortFunc(targets, policy.Target.Compare)
	return policy.Policy{Mode: policy.Allowlist, Targets: slices.Compact(targets)}, nil
}
