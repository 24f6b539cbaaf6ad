package gate

import (
	"errors"

	"sluice/dockernet/nft"
	"sluice/policy"
)

// Shared is for a sidecar that lives in the workload's namespace, where no guard stands behind the gate. Then
//
//   - what the sidecar's own sockets send is accepted: connections that an [Own] was told of, from sockets that have
//     the Mark and were opened by the Group
//   - phases that are not public let TCP out, and answers to nobody: no UDP, no ICMP, and no connections into the
//     namespace, whatever Inbound says
//   - no frame of the workload's own making leaves, ARP neither, and no neighbour discovery of its own. Kernels that
//     cannot refuse such frames get [ErrFrames], unless all phases are public
//   - no such frame comes in by the loopback, or the workload could answer somebody who has never asked, and forge
//     answers to the sidecar
//
// The workload may set marks too (CAP_NET_RAW), open sockets by any group, and send packets that belong to the sidecar's
// connections, with headers that it has made itself. So Mark and Group are numbers that nobody can guess; one alone would
// be found by trying, for four billion packets take an hour or two. Nobody can see them: the kernel shows a socket's mark to
// CAP_NET_ADMIN alone (it shows everybody the priority, SO_PRIORITY, as INET_DIAG_CLASS_ID of sock_diag(7)) and its group to
// nobody; rules clear the mark before a packet comes to where others could look.
//
// What the workload can still forge are answers of the engine's resolver, 127.0.0.11, for that is a loopback address like
// its own. The sidecar asks the servers behind it where it can.
type Shared struct {
	// Mark is that of the sidecar's sockets (SO_MARK of socket(7)), and Group whom the sidecar's process belongs to when it
	// opens them, by the numbers of its user namespace (setgid(2)). Neither is 0.
	Mark, Group uint32
}

// ErrFrames is in the error for a kernel that cannot refuse frames of the workload's own making where nothing else does.
var ErrFrames = errors.New("this kernel lets the workload send frames past all rules inside, by packet sockets: " +
	"it takes Linux 5.16 or newer to have another policy than public here")

func (s *Shared) check() error {
	if s != nil && (s.Mark == 0 || s.Group == 0) {
		return errors.New("the mark or the group of the sidecar's sockets is 0, which all have")
	}
	return nil
}

// checkFrames refuses what the kernel cannot do.
func (s *Spec) checkFrames(unheld bool) error {
	if unheld && s.Shared != nil && !s.allPublic() {
		return ErrFrames
	}
	return nil
}

// confined reports whether a phase is one of those that let nothing but TCP out of a shared namespace.
func (s *Spec) confined(n policy.Phase) bool {
	return s.Shared != nil && s.Phases[n].Rules.Mode() != policy.Public
}

// inbound says which connections into the container work in a phase.
func (s *Spec) inbound(n policy.Phase) policy.Inbound {
	if s.confined(n) {
		return policy.InboundNone
	}
	return s.Phases[n].Inbound
}

// OwnMark is the mark of the sidecar's connections in conntrack, which nothing but rules sets: netlink needs
// CAP_NET_ADMIN for it. It is no secret.
const OwnMark = 0x51

// Sets of the sidecar's connections that are about to be opened, by the family.
var ownSets = map[nft.Kind]nft.Set{
	nft.IPv4: {Name: "own4", Type: nft.Address4Ports},
	nft.IPv6: {Name: "own6", Type: nft.Address6Ports},
}

// sets are those that belong to no generation.
func (s *Shared) sets() []nft.Set {
	if s == nil {
		return nil
	}
	return []nft.Set{ownSets[nft.IPv4], ownSets[nft.IPv6]}
}

// opening lets the sidecar's connections begin, before anything redirects them. That is before the engine's rules too,
// which change where questions to its resolver go.
func (s *Shared) opening() []nft.Rule {
	if s == nil {
		return nil
	}
	var rules []nft.Rule
	for _, f := range []nft.Kind{nft.IPv4, nft.IPv6} {
		rules = append(rules, nft.Rule{nft.Is(nft.Mark, nft.Hex(s.Mark)), nft.Is(nft.SocketGroup, nft.Number(s.Group)),
			nft.In{Fields: []*nft.Field{f.Destination(), nft.AnyPort, nft.AnySource}, Set: ownSets[f].Name},
			nft.SetCTMark(OwnMark), nft.Accept})
	}
	return rules
}

// own accepts what the sidecar's sockets send. What only looks like it gets no answer, which would go to the sidecar.
//
// A connection that was closed has no group any more, and may have data to send. What the workload sends without a group
// (sockets within sockets, as of AF_SMC) begins with a segment with SYN, or is no TCP.
func (s *Shared) own() []nft.Rule {
	if s == nil {
		return nil
	}
	return []nft.Rule{
		{nft.Is(nft.Mark, nft.Hex(s.Mark)), nft.Is(nft.SocketGroup, nft.Number(s.Group)), unmark,
			nft.Is(nft.CTMark, nft.Hex(OwnMark)), nft.Accept},
		{nft.Is(nft.Mark, nft.Hex(s.Mark)), nft.Not(nft.SocketGroup, nft.Number(s.Group)), unmark},
		{nft.Is(nft.Mark, nft.Hex(s.Mark)), unmark,
			nft.Is(nft.CTMark, nft.Hex(OwnMark)), nft.Masked{Field: nft.TCPFlags, Mask: 2, Words: []nft.Word{"syn"}, Value: nft.Number(0)}, nft.Accept},
		{nft.Is(nft.CTMark, nft.Hex(OwnMark)), nft.Jump(claimedChain)},
	}
}

// unmark takes away what others may not see.
var unmark = nft.SetMark{Clear: ^uint32(0)}

// hiding does that in a quarantine, where the loopback stays open.
func (s *Shared) hiding() []nft.Rule {
	if s == nil {
		return nil
	}
	return []nft.Rule{{nft.Is(nft.Mark, nft.Hex(s.Mark)), unmark}}
}

// claimedChain is for packets that are sent inside, without the mark, and belong to the sidecar's connections by their
// addresses and ports. The workload has made those to the sidecar's servers, and those from them: true answers come from
// elsewhere. Only the engine's resolver is inside too.
const claimedChain = "claimed"

// sealed is what is refused of that in a quarantine, behind the resets by which the kernel itself refuses what the sidecar
// sends then.
func (s *Shared) sealed() []nft.Rule {
	if s == nil {
		return nil
	}
	return []nft.Rule{{nft.Is(nft.CTMark, nft.Hex(OwnMark)), nft.Not(nft.FibSource, nft.Word("local")), nft.Goto(swallowChain)}}
}

// onlyTCP refuses the rest in phases that are confined.
func (b *builder) onlyTCP(n policy.Phase, refused nft.Verdict) []nft.Rule {
	if !b.confined(n) {
		return nil
	}
	return []nft.Rule{{nft.Not(nft.Protocol, nft.Word("tcp")), refused}}
}

// returningChain is for what comes in by the loopback.
const returningChain = "returning"

// returningPriority is before the kernel puts fragments together, and before conntrack (NF_IP_PRI_RAW_BEFORE_DEFRAG).
const returningPriority = -450

// chains are those that belong to no generation. Frames on the loopback are dropped: what the kernel has sent there itself
// has its route already.
func (s *Shared) chains() []nft.Chain {
	if s == nil {
		return nil
	}
	return []nft.Chain{{
		Name: claimedChain,
		Rules: []nft.Rule{
			{nft.Is(nft.CTDirection, nft.Original), nft.Goto(swallowChain)},
			{nft.Not(nft.FibSource, nft.Word("local")), nft.Goto(swallowChain)},
		},
	}, {
		Name: returningChain,
		Hook: &nft.Hook{Type: "filter", At: "prerouting", Priority: returningPriority, Accept: true},
		Rules: []nft.Rule{
			{nft.Not(nft.InIndex, loopback), nft.Accept},
			{nft.Not(nft.RouteClass, nft.Hex(0xffffffff)), nft.Accept},
			{nft.Count{Counter: refusedCount}, nft.Drop},
		},
	}}
}
