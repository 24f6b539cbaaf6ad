package provider

import (
	"fmt"
	"strings"

	"sluice/policy"
)

// Limits of one allowlist.
const (
	daytonaMaxNames    = 20
	daytonaMaxNetworks = 10
)

// daytona is the hosted sandboxes of that name. Its settings are the arguments of its SDK's create call and of
// update_network_settings.
var daytona = Provider{
	Name:     "daytona",
	Modes:    []policy.Mode{policy.Public, policy.NoNetwork, policy.Allowlist},
	Switches: true,
	Kinds:    []policy.Kind{policy.Hostname, policy.Wildcard, policy.IPv4Address, policy.IPv4CIDR},
	Native:   []string{"network_block_all", "domain_allow_list", "network_allow_list"},
	entries:  daytonaEntries,
	create:   func(s Spec, p policy.Phase, _ bool) any { return daytonaOf(s.Phases[p]) },
	update:   func(s Spec, p policy.Phase) any { return daytonaOf(s.Phases[p]) },
}

// Daytona is the network settings of a sandbox; lists are separated by commas.
type Daytona struct {
	BlockAll *bool  `json:"network_block_all,omitempty"`
	Domains  string `json:"domain_allow_list,omitempty"`
	Networks string `json:"network_allow_list,omitempty"`
}

func daytonaOf(p policy.Policy) Daytona {
	if p.Mode != policy.Allowlist {
		block := p.Mode != policy.Public
		return Daytona{BlockAll: &block}
	}
	names, networks := split(p.Targets)
	return Daytona{Domains: strings.Join(names, ","), Networks: strings.Join(networks, ",")}
}

func daytonaEntries(targets []policy.Target) *problem {
	names, networks := split(targets)
	limit := fmt.Sprintf("daytona takes up to %d domains or up to %d IPv4 networks, never both", daytonaMaxNames, daytonaMaxNetworks)
	switch {
	case len(names) > 0 && len(networks) > 0:
		return &problem{fmt.Sprintf("mixes %d domains and %d networks", len(names), len(networks)), limit, "keep one kind of entries"}
	case len(names) > daytonaMaxNames:
		return &problem{fmt.Sprintf("has %d domains", len(names)), limit, "name fewer"}
	case len(networks) > daytonaMaxNetworks:
		return &problem{fmt.Sprintf("has %d networks", len(networks)), limit, "name fewer"}
	}
	return nil
}

// split returns the names and the networks of targets that have no ports, both in their order. A single address is a
// network of all its bits.
func split(targets []policy.Target) (names, networks []string) {
	names, networks = []string{}, []string{}
	for _, t := range targets {
		switch t.Kind {
		case policy.IPv4Address:
			networks = append(networks, t.Host+"/32")
		case policy.IPv6Address:
			networks = append(networks, t.Host+"/128")
		case policy.IPv4CIDR, policy.IPv6CIDR:
			networks = append(networks, t.Host)
		default:
			names = append(names, t.Host)
		}
	}
	return names, networks
}
