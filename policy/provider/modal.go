package provider

import "sluice/policy"

// modal is the hosted sandboxes of that name. Its settings are the arguments of its SDK's Sandbox.create and of
// _experimental_set_outbound_network_policy.
var modal = Provider{
	Name:     "modal",
	Modes:    []policy.Mode{policy.Public, policy.NoNetwork, policy.Allowlist},
	Switches: true,
	Kinds: []policy.Kind{policy.Hostname, policy.Wildcard, policy.IPv4Address, policy.IPv6Address,
		policy.IPv4CIDR, policy.IPv6CIDR},
	Native: []string{"block_network", "outbound_domain_allowlist", "outbound_cidr_allowlist", "cidr_allowlist"},
	create: func(s Spec, p policy.Phase, dynamic bool) any {
		value := s.Phases[p]
		return struct {
			Block bool `json:"block_network"`
			Modal
		}{value.Mode == policy.NoNetwork, modalOf(value, dynamic)}
	},
	update: func(s Spec, p policy.Phase) any { return modalOf(s.Phases[p], true) },
}

// Modal is the outbound lists of a sandbox. Two empty lists are no access in an update, and no limit at creation.
type Modal struct {
	Domains  []string `json:"outbound_domain_allowlist"`
	Networks []string `json:"outbound_cidr_allowlist"`
}

func modalOf(p policy.Policy, dynamic bool) Modal {
	if p.Mode == policy.Public && dynamic {
		return Modal{Domains: []string{"*"}, Networks: []string{"0.0.0.0/0"}}
	}
	names, networks := split(p.Targets)
	return Modal{Domains: names, Networks: networks}
}
