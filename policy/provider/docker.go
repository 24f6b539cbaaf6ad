package provider

import (
	"fmt"
	"strings"

	"sluice/policy"
)

// docker runs containers that are under Sluice. Its settings are the bodies of POST /v1/containers and of
// PUT /v1/containers/ID/phase on the controller's socket.
var docker = Provider{
	Name:     "docker",
	Modes:    []policy.Mode{policy.Public, policy.NoNetwork, policy.Allowlist, policy.Denylist},
	Switches: true,
	Ports:    true,
	Kinds: []policy.Kind{policy.Hostname, policy.Wildcard, policy.IPv4Address, policy.IPv6Address,
		policy.IPv4CIDR, policy.IPv6CIDR},
	environment: dockerNetwork,
	create: func(s Spec, p policy.Phase, _ bool) any {
		return struct {
			Policy policy.Phases `json:"policy"`
			Phase  policy.Phase  `json:"phase"`
		}{s.Phases, p}
	},
	update: func(_ Spec, p policy.Phase) any {
		return struct {
			Phase policy.Phase `json:"phase"`
		}{p}
	},
}

// dockerNetwork refuses networks that are no bridge, as far as that matters for the policies.
func dockerNetwork(s Spec, phases []policy.Policy) *problem {
	network := s.Params["network"]
	if network != "none" && network != "host" && !strings.HasPrefix(network, "container:") {
		return nil
	}
	limit := fmt.Sprintf("docker needs a bridge network for that, and the parameter network is %q", network)
	const repair = "remove the parameter network, or name a bridge network"
	for _, p := range phases[1:] {
		if p.Digest() != phases[0].Digest() {
			return &problem{"differs from another phase of the same Environment", limit, repair}
		}
	}
	if mode := phases[0].Mode; mode != policy.Public && (mode != policy.NoNetwork || network != "none") {
		return &problem{fmt.Sprintf("the mode %s", mode), limit, repair}
	}
	return nil
}
