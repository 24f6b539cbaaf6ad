package direct

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/matcher"
	"sluice/policy"
)

const quicPort = 443

// Judge says for a phase what the rules say, so that nothing is cut that they let through, and nothing is left that they
// refuse.
type Judge struct {
	Spec *Spec
	// Phase is one of the Spec's, and Policy what it lets through ([policy.Policy.InForce]).
	Phase  *Phase
	Policy policy.Policy
}

// Refused reports whether what the container sends straight to a destination is refused.
func (j Judge) Refused(to netip.AddrPort, protocol uint8) bool {
	tcp, udp := protocol == unix.IPPROTO_TCP, protocol == unix.IPPROTO_UDP
	switch {
	case tcp && slices.Contains(j.Spec.Closed, to):
		return true
	case tcp && slices.Contains(j.Spec.Open, to):
		return false
	case !tcp && !udp && protocol != unix.IPPROTO_ICMP && protocol != unix.IPPROTO_ICMPV6:
		return true
	case (tcp || udp) && to.Port() == dnsPort && !j.names53(to.Addr()):
		return true // it was redirected, or there is no way
	}
	near := within(j.Spec.Networks, to.Addr()) || within(j.Spec.Direct, to.Addr())
	if !near && j.Spec.Internal {
		return true
	}
	allowed := j.Phase.Rules.Addr(to.Addr(), to.Port()).Verdict == matcher.Allow
	switch j.Policy.Mode {
	case policy.Allowlist:
		if tcp && !near && !j.Spec.StraightTCP() {
			return true
		}
		return !allowed && !j.named(to)
	case policy.Public, policy.Denylist:
		if !allowed || j.Policy.Mode == policy.Denylist && j.named(to) {
			return true
		}
		// A connection of the direct plane that was open before the phase came may stay, unless its name matters.
		names := j.Policy.Mode == policy.Denylist && j.Phase.Rules.HasNameRules()
		return names && !near && (tcp || udp && to.Port() == quicPort)
	}
	return true
}

// names53 reports whether an allowlist names a DNS server with its port.
func (j Judge) names53(a netip.Addr) bool {
	return j.Policy.Mode == policy.Allowlist && (slices.Contains(j.Phase.Named, netip.AddrPortFrom(a, dnsPort)) ||
		slices.ContainsFunc(j.Policy.Targets, func(t policy.Target) bool {
			return t.Port == dnsPort && t.Prefix.IsValid() && t.Prefix.IsSingleIP() && t.Prefix.Addr() == a
		}))
}

// named reports whether a name of the policy stands for the destination.
func (j Judge) named(to netip.AddrPort) bool {
	return slices.Contains(j.Phase.Named, to) || slices.Contains(j.Phase.Named, netip.AddrPortFrom(to.Addr(), 0))
}

func within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// RefusedInbound reports whether connections from an address are refused; nil if none are.
func (j Judge) RefusedInbound() func(netip.Addr) bool {
	switch j.Phase.Inbound {
	case policy.InboundAll:
		return nil
	case policy.InboundHost:
		return func(from netip.Addr) bool { return !slices.Contains(j.Spec.Host, from) }
	default:
		return func(netip.Addr) bool { return true }
	}
}
