package proxy

import (
	"context"
	"errors"

	"sluice/matcher"
	"sluice/proxy/dns"
	"sluice/proxy/resolve"
)

// begin starts on a target: are the rules up to date, may the target be, and where is it?
func (c *conn) begin() {
	c.timer.Stop()
	if source := c.session.source.Load(); source != nil && !(*source).Unchanged() {
		c.state = looking
		c.worker.limits.Start(&c.timer, c)
		later := c.later(looking)
		c.session.server.running.Go(func() {
			(*source).Fresh()
			later(c.judge)
		})
		return
	}
	c.judge()
}

// judge judges the target under the rules in force and looks its name up, if it has one.
func (c *conn) judge() {
	c.rules = c.session.rules()
	if c.direct {
		c.judgeDirect()
		return
	}
	c.decision = c.rules.target(c.target)
	switch {
	case c.decision.Verdict == matcher.Refuse:
		if c.decision.Reason == matcher.BadName {
			c.refuse(statusBad, reasonMalformed)
			return
		}
		c.refuse(statusForbidden, c.decision.Reason)
	case c.target.addr.IsValid():
		c.single[0] = c.target.addr
		c.found(resolve.Answer{Addrs: c.single[:]}, nil)
	default:
		if answer, ok := c.resolver().Cached(c.target.host); ok {
			c.found(answer, nil)
			return
		}
		c.state = looking
		c.worker.limits.Start(&c.timer, c)
		later, r, target, session, server := c.later(looking), c.rules, c.target, c.session, c.session.server
		server.running.Go(func() {
			ctx, cancel := context.WithTimeout(server.context, server.config.DialTimeout)
			defer cancel()
			answer, err := session.resolveFor(ctx, r, target)
			later(func() { c.found(answer, err) })
		})
	}
}

// found judges the addresses of the target and dials those that are allowed.
func (c *conn) found(answer resolve.Answer, err error) {
	if now := c.session.rules(); now != c.rules { // switched meanwhile
		c.rules = now
		if c.decision = now.target(c.target); c.decision.Verdict == matcher.Refuse {
			c.refuse(statusForbidden, c.decision.Reason)
			return
		}
	}
	if err != nil {
		c.lookupFailed(err)
		return
	}
	allowed, d := c.session.reach(c.rules, c.decision, c.target, answer)
	if len(allowed) == 0 {
		c.decision = d
		c.refuse(statusForbidden, d.Reason)
		return
	}
	c.decision, c.chain = d, answer.Chain
	c.dialTo(allowed)
}

func (c *conn) lookupFailed(err error) { c.answer(lookupFailure(err)) }

// lookupFailure says what a failed look-up is for the client.
func lookupFailure(err error) (status int, o outcome, reason matcher.Reason) {
	o = failed
	switch {
	case errors.Is(err, resolve.ErrForbidden):
		return statusForbidden, refused, dns.ReasonNameBudget
	case errors.Is(err, resolve.ErrNotFound):
		return statusGateway, o, reasonNoSuchName
	case errors.Is(err, resolve.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return statusTimeout, o, reasonLookupTimeout
	case errors.Is(err, resolve.ErrBusy):
		return statusBusy, o, reasonCapacity
	default:
		return statusGateway, o, reasonLookupFailed
	}
}
