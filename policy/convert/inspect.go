package convert

import (
	"fmt"
	"slices"
	"strings"

	"sluice/policy"
)

// inspect reads the Helm values of Inspect's Kubernetes sandbox: allowDomains, allowCIDR, allowEntities. Without any of
// them nothing outside is reachable.
//
// There a "*" stands for part of one label; a policy's "*.x" stands for any number of labels, which is wider.
func inspect(data []byte, o Options) (Result, error) {
	v, err := object(data)
	if err != nil {
		return Result{}, err
	}
	var r Result
	entities, err := texts("allowEntities", v["allowEntities"])
	if err != nil {
		return r, err
	}
	for _, e := range entities {
		if e != "world" && e != "all" {
			return r, fmt.Errorf("allowEntities: %q is about a cluster, which a container has not", e)
		}
	}
	if len(entities) > 0 {
		r.Policy = &policy.Policy{Mode: policy.Public}
		return r, nil
	}
	domains, err := texts("allowDomains", v["allowDomains"])
	if err != nil {
		return r, err
	}
	networks, err := texts("allowCIDR", v["allowCIDR"])
	if err != nil {
		return r, err
	}
	if slices.Contains(domains, "*") {
		r.Policy = &policy.Policy{Mode: policy.Public}
		err := r.wider(o, `allowDomains: "*" is every address behind a name that was looked up; the policy public is every address`)
		return r, err
	}
	for _, d := range domains {
		under, wildcard := strings.CutPrefix(d, "*.")
		switch {
		case strings.Contains(under, "*"):
			return r, fmt.Errorf("allowDomains: %q has a star that a policy cannot have: name the hosts", d)
		case wildcard:
			if err := r.wider(o, "allowDomains: %q is one label under %s in Inspect, and any number of labels in a policy", d, under); err != nil {
				return r, err
			}
		}
	}
	targets := slices.Concat(domains, networks)
	r.Policy, err = list(policy.Allowlist, targets)
	return r, err
}
