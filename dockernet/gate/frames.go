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

// held says which frames are refused.
type held uint8

const (
	heldIPv6    held = iota // those of IPv6
	heldAll                 // all but ARP, which the guard judges
	heldSockets             // all that sockets have sent, ARP too
)

// framesChain is for what leaves through an interface. All packets of the kernel's sockets have a route, also of raw
// sockets, and so has what it sends by itself but ARP.
//
// It accepts what comes to its end because it is there for a moment before its rules are.
func framesChain(device string, which held) nft.Chain {
	refused := []nft.Part{nft.Count{Counter: framesCount}, nft.Drop}
	rules := []nft.Rule{{nft.Not(nft.RouteClass, nft.Hex(0xffffffff)), nft.Accept}}
	switch which {
	case heldIPv6:
		rules = append(rules, nft.Rule{nft.Not(nft.EtherType, nft.Word("ip6")), nft.Accept})
	case heldSockets:
		rules = append(rules, append(nft.Rule{nft.Not(nft.SocketOwner, nft.Number(0xffffffff))}, refused...))
		fallthrough
	default:
		rules = append(rules, nft.Rule{nft.Is(nft.EtherType, nft.Word("arp")), nft.Accept})
	}
	return nft.Chain{
		Name:  device,
		Hook:  &nft.Hook{Type: "filter", At: "egress", Device: device, Priority: filterPriority, Accept: true},
		Rules: append(rules, refused),
	}
}
