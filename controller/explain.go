package controller

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sluice/control"
	"sluice/controller/api"
	"sluice/matcher"
	"sluice/policy"
)

// Explain says what would happen to a connection to target, "host:port", and why.
func (c *Controller) Explain(ctx context.Context, ref, target string) (control.Explanation, error) {
	now, err := c.show(ctx, ref)
	if err != nil {
		return control.Explanation{}, err
	}
	x := control.Explanation{Target: target, Phase: now.phase.String(), Verdict: matcher.Refuse.String()}
	switch {
	case now.status.State == api.Stopped:
		return x, &control.Error{Code: control.CodeConflict, Message: fmt.Sprintf("container %s does not run: start it first", now.status.Name)}
	case now.status.State == api.Quarantined:
		x.Reason, x.Text = "quarantined", "everything is refused: "+now.status.Problem
		return x, nil
	case now.plan == nil:
		return x, &control.Error{Code: control.CodeInternal, Message: fmt.Sprintf(
			"container %s is being taken up after a restart of the controller: ask again in a few seconds", now.status.Name)}
	}
	host, port, err := splitTarget(target)
	if err != nil {
		return x, control.InvalidError(err)
	}
	if near := now.plan.near(host); len(near) > 0 {
		return now.plan.explain(x, now.phase, host, port, near), nil
	}
	return c.config.Sidecar.Explain(ctx, now.session, target)
}

func splitTarget(target string) (string, uint16, error) {
	host, text, err := net.SplitHostPort(target)
	port, portErr := strconv.ParseUint(text, 10, 16)
	if err != nil || portErr != nil || host == "" || port == 0 {
		return "", 0, fmt.Errorf("target %q is not host:port: give a port, and brackets round an IPv6 address", target)
	}
	return host, uint16(port), nil
}

// near are the addresses of a host that are on the direct plane whatever the policy says: siblings and the host's own.
func (p *Plan) near(host string) (found []netip.Addr) {
	var addresses []netip.Addr
	if a, err := netip.ParseAddr(host); err == nil {
		addresses = []netip.Addr{a.Unmap()}
	} else {
		addresses = p.Container.Hosts[strings.ToLower(strings.TrimSuffix(host, "."))]
	}
	for _, a := range addresses {
		within := func(n netip.Prefix) bool { return n.Contains(a) }
		if slices.ContainsFunc(p.Direct.Networks, within) || slices.ContainsFunc(p.Direct.Direct, within) {
			found = append(found, a)
		}
	}
	return found
}

// explain judges addresses of the direct plane.
func (p *Plan) explain(x control.Explanation, phase policy.Phase, host string, port uint16, near []netip.Addr) control.Explanation {
	rules := p.Direct.Phases[phase].Rules
	for i, a := range near {
		d := rules.Addr(a, port)
		named := slices.ContainsFunc(p.Direct.Phases[phase].Named, func(n netip.AddrPort) bool {
			return n.Addr() == a && (n.Port() == 0 || n.Port() == port)
		})
		if named {
			d = rules.Name(strings.ToLower(strings.TrimSuffix(host, ".")), port)
			if _, err := netip.ParseAddr(host); err == nil {
				d = matcher.Decision{Reason: matcher.NameRule, Rule: matcher.NoRule, Verdict: matcher.Allow}
				if rules.Mode() == policy.Denylist {
					d.Verdict = matcher.Refuse
				}
			}
		}
		rule := ""
		if d.Rule != matcher.NoRule {
			rule = rules.Target(d.Rule).String()
		}
		x.Addresses = append(x.Addresses, control.ExplainedAddress{
			Address: a.String(), Verdict: d.Verdict.String(), Reason: string(d.Reason), Rule: rule})
		if i == 0 || d.Verdict == matcher.Allow {
			x.Verdict, x.Reason, x.Rule = d.Verdict.String(), string(d.Reason), rule
			x.Text = rules.Explain(d, host, port) + "; it is on the container's own networks or the host, so it is reached directly, not through the proxy"
		}
	}
	return x
}
