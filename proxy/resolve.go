package proxy

import (
	"context"
	"errors"

	"sluice/matcher"
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
		later, host, session, server := c.later(looking), c.target.host, c.session, c.session.server
		server.running.Go(func() {
			ctx, cancel := context.WithTimeout(server.context, server.config.DialTimeout)
			defer cancel()
			answer, err := session.resolveName(ctx, host)
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

func (c *conn) lookupFailed(err error) { c.fail(lookupFailure(err)) }

// lookupFailure gives the status and reason for a failed look-up.
func lookupFailure(err error) (int, matcher.Reason) {
	switch {
	case errors.Is(err, resolve.ErrNotFound):
		return statusGateway, reasonNoSuchName
	case errors.Is(err, resolve.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return statusTimeout, reasonLookupTimeout
	case errors.Is(err, resolve.ErrBusy):
		return statusBusy, reasonCapacity
	default:
		return statusGateway, reasonLookupFailed
	}
}
