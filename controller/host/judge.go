package host

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/matcher"
	"sluice/policy"
)

const dnsPort, quicPort = 53, 443

// judge says for a phase what the rules of gate and guard say, so that nothing is cut that they let through, and
// nothing is left that they refuse.
type judge struct {
	spec   *direct.Spec
	phase  *direct.Phase
	policy policy.Policy
}

// refused reports whether what the container sends straight to a destination is refused.
func (j judge) refused(to netip.AddrPort, protocol uint8) bool {
	tcp, udp := protocol == unix.IPPROTO_TCP, protocol == unix.IPPROTO_UDP
	switch {
	case tcp && slices.Contains(j.spec.Closed, to):
		return true
	case tcp && slices.Contains(j.spec.Open, to):
		return false
	case !tcp && !udp && protocol != unix.IPPROTO_ICMP && protocol != unix.IPPROTO_ICMPV6:
		return true
	case (tcp || udp) && to.Port() == dnsPort && !j.names53(to.Addr()):
		return true // it was redirected, or there is no way
	}
	near := within(j.spec.Networks, to.Addr()) || within(j.spec.Direct, to.Addr())
	if !near && j.spec.Internal {
		return true
	}
	allowed := j.phase.Rules.Addr(to.Addr(), to.Port()).Verdict == matcher.Allow
	switch j.policy.Mode {
	case policy.Allowlist:
		if tcp && !near && !j.spec.StraightTCP() {
			return true
		}
		return !allowed && !j.named(to)
	case policy.Public, policy.Denylist:
		if !allowed || j.policy.Mode == policy.Denylist && j.named(to) {
			return true
		}
		// A connection of the direct plane that was open before the phase came may stay, unless its name matters.
		names := j.policy.Mode == policy.Denylist && j.phase.Rules.HasNameRules()
		return names && !near && (tcp || udp && to.Port() == quicPort)
	}
	return true
}

// names53 reports whether an allowlist names a DNS server with its port.
func (j judge) names53(a netip.Addr) bool {
	return j.policy.Mode == policy.Allowlist && (slices.Contains(j.phase.Named, netip.AddrPortFrom(a, dnsPort)) ||
		slices.ContainsFunc(j.policy.Targets, func(t policy.Target) bool {
			return t.Port == dnsPort && t.Prefix.IsValid() && t.Prefix.IsSingleIP() && t.Prefix.Addr() == a
		}))
}

// named reports whether a name of the policy stands for the destination.
func (j judge) named(to netip.AddrPort) bool {
	return slices.Contains(j.phase.Named, to) || slices.Contains(j.phase.Named, netip.AddrPortFrom(to.Addr(), 0))
}

func within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// refusedInbound reports whether connections from an address are refused; nil if none are.
func (j judge) refusedInbound() func(netip.Addr) bool {
	switch j.phase.Inbound {
	case policy.InboundAll:
		return nil
	case policy.InboundHost:
		return func(from netip.Addr) bool { return !slices.Contains(j.spec.Host, from) }
	default:
		return func(netip.Addr) bool { return true }
	}
}
