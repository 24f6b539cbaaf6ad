package proxy

import (
	"net/netip"
	"slices"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dns"
	"sluice/proxy/resolve"
)

// rules are what a session judges by, from one switch to the next. They are immutable.
type rules struct {
	set        *matcher.Ruleset
	policy     policy.Policy // as it is in force
	phase      policy.Phase
	generation uint64
	digest     policy.Digest
	blocked    matcher.Reason // if set, everything is refused, and why
	denied     *deniedHosts   // addresses of denied hosts; nil outside denylist
	budget     *dns.Budget    // of questions for names; nil outside allowlist

	sent, received *counter // bytes of flows judged by these rules
}

// subject is an open or half-open connection as far as a judgement needs it.
type subject struct {
	target     endpoint
	chain      []string   // CNAME names behind the target
	address    netip.Addr // dialled, or to be dialled
	shown      string     // a name that the client showed inside (SNI, Host), if it is another one
	proven     bool       // shown was seen to stand for address
	nameless   bool       // TLS on port 443 that names no server
	direct     bool       // the flow came by redirection
	classified bool       // and what its client said is not SSH
	opaque     bool       // what the client says inside could not be judged by name
}

var refusedOwn = matcher.Decision{Verdict: matcher.Refuse, Reason: matcher.OwnAddress, Rule: matcher.NoRule}

// target judges what a client asks for before anything is looked up.
func (r *rules) target(e endpoint) matcher.Decision {
	if r.blocked != "" {
		return matcher.Decision{Verdict: matcher.Refuse, Reason: r.blocked, Rule: matcher.NoRule}
	}
	if !e.addr.IsValid() {
		return r.set.Name(e.host, e.port)
	}
	d := r.set.Addr(e.addr, e.port)
	if d.Verdict != matcher.Allow {
		return d
	}
	return r.denied.refine(d, e.addr, e.port)
}

// address judges one address behind a target whose own decision is d; chain is how the look-up got there.
func (r *rules) address(d matcher.Decision, e endpoint, chain []string, a netip.Addr) matcher.Decision {
	if e.addr.IsValid() {
		return d // it was judged as the target itself
	}
	if r.policy.Mode == policy.Denylist {
		for _, name := range chain { // an alias of a denied name is denied
			if alias := r.set.Name(name, e.port); alias.Verdict == matcher.Refuse && alias.Reason == matcher.NameRule {
				return alias
			}
		}
	}
	return r.set.Resolved(d, a, e.port)
}

// addresses returns those of found that may be dialled for a target whose own decision is d, in their order, and
// the decision for the first of them; or none, and why the last one is refused.
func (r *rules) addresses(d matcher.Decision, e endpoint, chain []string, found []netip.Addr) ([]netip.Addr, matcher.Decision) {
	decision := matcher.Decision{Verdict: matcher.Refuse, Reason: reasonNoAddress, Rule: matcher.NoRule}
	allowed, all := 0, found
	for i, a := range found {
		one := r.address(d, e, chain, a)
		if allowed == 0 {
			decision = one
		}
		if one.Verdict != matcher.Allow {
			continue
		}
		if allowed == i { // found is shared: it is copied only if it must be cut
			allowed++
			continue
		}
		all = append(all[:allowed:allowed], a)
		allowed++
	}
	return all[:allowed], decision
}

// reach returns the addresses of an answer that may be dialled, and the decision for the first of them.
func (s *Session) reach(r *rules, d matcher.Decision, e endpoint, answer resolve.Answer) ([]netip.Addr, matcher.Decision) {
	may, d := r.addresses(d, e, answer.Chain, answer.Addrs)
	if slices.ContainsFunc(may, func(a netip.Addr) bool { return s.isOwn(a, e.port) }) {
		return nil, refusedOwn
	}
	return may, d
}

// isOwn reports whether an address and port is one of the proxy's own listeners. The health check's echo is none, though
// a listener in another network namespace may have its port.
func (s *Session) isOwn(a netip.Addr, port uint16) bool { return !s.hidden && s.server.isOwn(a, port) }

// needsName reports whether a flow allowed by d stands or falls with the name that the client shows inside it.
func (r *rules) needsName(d matcher.Decision) bool {
	switch r.policy.Mode {
	case policy.Allowlist:
		return d.Reason == matcher.NameRule
	case policy.Denylist:
		return r.set.HasNameRules()
	default:
		return false
	}
}

// refusesNameless reports whether TLS on port 443 must name a server in a flow allowed by d.
func (r *rules) refusesNameless(d matcher.Decision) bool {
	return r.policy.Mode == policy.Allowlist && d.Reason == matcher.NameRule
}

// inner judges a name that the client shows inside a flow to another name or to an address (design 3.11). found are
// the addresses of that name, if they are known.
//
// In an allowlist the shown name must itself be allowed on the port and stand for the very address that was dialled:
// else an allowed name on a shared address would open its neighbours.
func (r *rules) inner(s subject, d matcher.Decision, shown string, found []netip.Addr, known bool) (_ matcher.Decision, lookUp bool) {
	if shown == "" || shown == s.target.host || !r.needsName(d) {
		return d, false
	}
	e := endpoint{host: shown, port: s.target.port}
	name := r.set.Name(shown, e.port)
	if name.Verdict == matcher.Refuse {
		if name.Reason != matcher.NameRule {
			name.Reason = reasonOtherName
		}
		return name, false
	}
	if r.policy.Mode == policy.Denylist {
		return name, false
	}
	if s.proven && shown == s.shown {
		return r.set.Resolved(name, s.address, e.port), false
	}
	if !known {
		return matcher.Decision{Verdict: matcher.Refuse, Reason: reasonOtherName, Rule: matcher.NoRule}, true
	}
	for _, a := range found {
		if a == s.address {
			return r.set.Resolved(name, a, e.port), false
		}
	}
	return matcher.Decision{Verdict: matcher.Refuse, Reason: reasonOtherAddress, Rule: name.Rule}, false
}

// flow judges an open flow again, from what is remembered of it.
func (s *Session) flow(r *rules, f subject) matcher.Decision {
	if f.direct {
		return s.direct(r, f)
	}
	d := r.target(f.target)
	if d.Verdict == matcher.Refuse {
		return d
	}
	if s.isOwn(f.address, f.target.port) {
		return refusedOwn
	}
	if d = r.address(d, f.target, f.chain, f.address); d.Verdict != matcher.Allow {
		d.Verdict = matcher.Refuse
		return d
	}
	if f.opaque && r.needsName(d) {
		return matcher.Decision{Verdict: matcher.Refuse, Reason: reasonOpaque, Rule: matcher.NoRule}
	}
	if f.nameless && r.refusesNameless(d) {
		return matcher.Decision{Verdict: matcher.Refuse, Reason: reasonNoSNI, Rule: matcher.NoRule}
	}
	if f.shown != "" {
		answer, known := s.resolver().Cached(f.shown)
		d, _ = r.inner(f, d, f.shown, answer.Addrs, known)
	}
	return d
}
