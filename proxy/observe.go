package proxy

import (
	"net/netip"

	"sluice/matcher"
)

// observe says what a policy that only observes says itself of what was allowed: it may change the outcome and the
// reason, and returns the text of the rule.
func (r *report) observe(rule string) string {
	watched := r.rules.set.Observed()
	if watched == nil {
		return rule
	}
	d := wouldBe(watched, r.target, r.address)
	if d.Verdict != matcher.Allow {
		r.outcome = observed
	}
	r.reason = d.Reason
	return ruleText(watched, d.Rule)
}

// wouldBe judges a target, with the address that was dialled for it.
func wouldBe(set *matcher.Ruleset, e endpoint, a netip.Addr) matcher.Decision {
	if e.addr.IsValid() {
		return set.Addr(e.addr, e.port)
	}
	if asked, err := netip.ParseAddr(e.host); err == nil {
		return set.Addr(asked, e.port)
	}
	d := set.Name(e.host, e.port)
	if d.Verdict == matcher.Refuse || !a.IsValid() {
		return d
	}
	return set.Resolved(d, a, e.port)
}
