package controller

import (
	"net/netip"

	"sluice/matcher"
	"sluice/policy"
)

// observed judges a packet that went straight in a phase which only watches, by what its policy says itself.
func (p *Plan) observed(phase policy.Phase, to netip.AddrPort, rules *matcher.Ruleset) matcher.Decision {
	d := rules.Addr(to.Addr(), to.Port())
	for _, n := range p.Direct.Phases[phase].Named {
		if n.Addr() == to.Addr() && (n.Port() == 0 || n.Port() == to.Port()) && d.Reason != matcher.Floor {
			d = matcher.Decision{Reason: matcher.NameRule, Rule: matcher.NoRule}
			if rules.Mode() == policy.Allowlist {
				d.Verdict = matcher.Allow
			}
		}
	}
	return d
}
