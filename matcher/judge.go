package matcher

import (
	"net/netip"

	"sluice/policy"
)

// Addr judges a destination that is known by its address only. Zones are ignored and an IPv4-mapped address is the
// IPv4 one; the invalid Addr is refused with [BadName].
func (r *Ruleset) Addr(a netip.Addr, port uint16) Decision {
	return r.judge(Decision{Verdict: ByAddress, Reason: NotListed, Rule: NoRule}, a, int(port))
}

// Resolved judges one of the addresses that a name has, to be dialled on a port. The decision is the one of
// [Ruleset.Name] for that name and port; what was refused stays refused.
//
// Whatever the name's rule, the floor and Options.Never hold and denied addresses are denied. A wildcard's name may
// have private addresses only if its zone or WildcardPrivate says so, or an address target covers them.
// For [ByAddress] an address target must cover the address.
func (r *Ruleset) Resolved(name Decision, a netip.Addr, port uint16) Decision {
	return r.judge(name, a, int(port))
}

// Answer is [Ruleset.Resolved] for an address in a DNS answer, where the port is not known yet: it allows what may be
// dialled on any port. The decision is the one of [Ruleset.Query].
func (r *Ruleset) Answer(query Decision, a netip.Addr) Decision {
	if r.mode == policy.Denylist {
		return r.judge(query, a, 0) // only a target for every port denies
	}
	return r.judge(query, a, anyPort)
}

// judge judges an address for which d holds so far.
func (r *Ruleset) judge(d Decision, a netip.Addr, port int) Decision {
	if d.Verdict != Allow && d.Verdict != ByAddress {
		d.Verdict = Refuse
		return d
	}
	if !a.IsValid() {
		return Decision{Reason: BadName, Rule: NoRule}
	}
	c := candidatesOf(a)
	if d = r.judgeCandidates(d, &c, port); d.Verdict == Allow {
		for i := range c.n + 1 {
			if r.never.Contains(c.at(i)) {
				return Decision{Reason: OwnAddress, Rule: NoRule}
			}
		}
	}
	return d
}

// judgeCandidates says what the policy and the floor say.
func (r *Ruleset) judgeCandidates(d Decision, c *candidates, port int) Decision {
	if r.mode == policy.NoNetwork {
		return Decision{Reason: NoNetworkMode, Rule: NoRule}
	}
	if r.mode == policy.Denylist {
		for i := range c.n + 1 {
			if id, _, ok := r.addresses.cover(c.at(i), port); ok {
				return Decision{Reason: AddressRule, Rule: id}
			}
		}
	}
	for i := range c.n + 1 {
		if !r.options.NoFloor && floorTable.Contains(c.at(i)) && !r.lifted(c, i, port) {
			return Decision{Reason: Floor, Rule: NoRule}
		}
	}
	switch r.mode {
	case policy.Public:
		return Decision{Verdict: Allow, Reason: PublicMode, Rule: NoRule}
	case policy.Denylist:
		return Decision{Verdict: Allow, Reason: NotDenied, Rule: NoRule}
	}
	if d.Verdict == Allow && (d.privateOK || !c.private()) {
		return d
	}
	id, listed, ok := r.covered(c, port)
	switch {
	case ok:
		return Decision{Verdict: Allow, Reason: AddressRule, Rule: id}
	case d.Verdict == Allow:
		return Decision{Reason: PrivateWildcard, Rule: d.Rule}
	case listed:
		return Decision{Reason: PortNotListed, Rule: NoRule}
	default:
		return Decision{Reason: d.Reason, Rule: NoRule}
	}
}

// lifted reports whether a target names the very address that is on the floor, or the address that it is hidden in.
// In a denylist such an address is refused before.
func (r *Ruleset) lifted(c *candidates, i, port int) bool {
	return r.addresses.names(c.at(i), port) || i > 0 && r.addresses.names(c.addr, port)
}

// covered returns the target that covers the address, or what it is translated to.
func (r *Ruleset) covered(c *candidates, port int) (id RuleID, listed, ok bool) {
	id, listed, ok = r.addresses.cover(c.addr, port)
	if ok || !c.translated {
		return id, listed, ok
	}
	for i := c.n; i > 0; i-- {
		var inner bool
		if id, inner, ok = r.addresses.cover(c.at(i), port); !ok {
			return NoRule, listed || inner, false
		}
	}
	return id, true, true
}
