package gate

import (
	"slices"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// framesID is the table that refuses frames which the workload has made itself (packet sockets of packet(7)). It is the
// same for all phases.
//
// The guard judges what such frames hold. But they can ask for a checksum at a place of their choice, which is written
// behind the guard: over a port, or a part of an IPv6 address. Policies that are public in all phases refuse no port that
// such a frame could come to, but addresses.
var framesID = nft.ID{Family: "netdev", Name: tableID.Name}

const framesCount = "frames"

// allPublic reports whether only the floor is refused.
func (s *Spec) allPublic() bool {
	return !slices.ContainsFunc(s.Phases[:], func(p direct.Phase) bool { return p.Rules.Mode() != policy.Public })
}

// framesChain is for what leaves through an interface: all frames of the workload's are refused, or those of IPv6 only.
// All packets of the kernel's sockets have a route, also of raw sockets, and so has what it sends by itself but ARP.
//
// It accepts what comes to its end because it is there for a moment before its rules are.
func framesChain(device string, only6 bool) nft.Chain {
	accepted := nft.Is(nft.EtherType, nft.Word("arp"))
	if only6 {
		accepted = nft.Not(nft.EtherType, nft.Word("ip6"))
	}
	return nft.Chain{
		Name: device,
		Hook: &nft.Hook{Type: "filter", At: "egress", Device: device, Priority: filterPriority, Accept: true},
		Rules: []nft.Rule{
			{nft.Not(nft.RouteClass, nft.Hex(0xffffffff)), nft.Accept},
			{accepted, nft.Accept},
			{nft.Count{Counter: framesCount}, nft.Drop},
		},
	}
}
