package controller

import (
	"sluice/control"
	"sluice/controller/tally"
	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/refusal"
)

// Reasons of records about packets that were refused in the kernel, where the policy gives none.
const (
	reasonPlane  = "not-direct" // the policy allows the address, but not by this way: UDP beside denied names, for instance
	reasonAlways = "never"      // no phase allows it
)

// event is the audit record of a packet.
func (s *shown) event(r *Refused) control.Event {
	e := control.Event{
		Time: r.Time, Container: s.status.Name, ContainerID: s.status.ID, Phase: s.phase.String(), Generation: s.status.Generation,
		Protocol: r.Protocol, Port: r.Destination.Port(), Verdict: matcher.Refuse.String(), Reason: reasonAlways, Rule: r.By,
		Decision: refusal.NewDecisionID(),
	}
	if r.Destination.Addr().IsValid() {
		e.Target = r.Destination.Addr().String()
	}
	phase, err := policy.ParsePhase(r.By)
	if err != nil || s.plan == nil {
		return e
	}
	// The rules that have refused it may be those of a phase that has ended since.
	e.Phase, e.Reason, e.Rule = phase.String(), reasonPlane, ""
	rules := s.plan.Direct.Phases[phase].Rules
	if observed := rules.Observed(); r.Observed && observed != nil {
		d := s.plan.observed(phase, r.Destination, observed)
		e.Verdict, e.Reason = tally.Observed, string(d.Reason)
		if d.Verdict == matcher.Allow {
			e.Verdict = tally.Allowed
		}
		if d.Rule != matcher.NoRule {
			e.Rule = observed.Target(d.Rule).String()
		}
		return e
	}
	if d := rules.Addr(r.Destination.Addr(), r.Destination.Port()); d.Verdict == matcher.Refuse {
		e.Reason = string(d.Reason)
		if d.Rule != matcher.NoRule {
			e.Rule = rules.Target(d.Rule).String()
		}
	}
	return e
}
