package controller

import (
	"context"
	"slices"
	"strings"
	"time"

	"sluice/control"
	"sluice/controller/api"
)

// List returns the status of all members, sorted by name, without their policies.
func (c *Controller) List(context.Context) ([]api.Status, error) {
	all := []api.Status{}
	for _, m := range c.all() {
		if s := m.status(); s.State != "" {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b api.Status) int { return strings.Compare(a.Name+a.ID, b.Name+b.ID) })
	return all, nil
}

// Uncovered says that rules on the host were not in force until now, because others had changed them: those of the
// container whose network has that [Net.ID], or of all if it is "". Rules inside of the container were in force.
func (c *Controller) Uncovered(namespace string, gap time.Duration) {
	end := time.Now()
	for _, m := range c.all() {
		s := m.shown.Load()
		if namespace != "" && s.namespace != namespace || s.status.State == api.Stopped {
			continue
		}
		// Rules of the host and of the container are restored one after the other: the same time counts once.
		from := max(end.Add(-gap).UnixNano(), m.gapEnd.Swap(end.UnixNano()))
		m.gaps.Add(max(0, end.UnixNano()-from))
	}
}

// status is what readers are told of a member, but for its policies.
func (m *member) status() api.Status {
	s := m.shown.Load().status
	s.UncoveredMilliseconds += milliseconds(time.Duration(m.gaps.Load()))
	return s
}

// Events is where audit records are published.
func (c *Controller) Events() *control.Hub { return &c.events }

// Status returns a member's status with its policies.
func (c *Controller) Status(ctx context.Context, ref string) (api.Status, error) {
	m, err := c.present(ctx, ref)
	if err != nil {
		return api.Status{}, err
	}
	s := m.status()
	s.Policies, err = m.shown.Load().set.policies()
	return s, err
}

// present returns a member of which something holds. While it is being attached, that is waited for.
func (c *Controller) present(ctx context.Context, ref string) (*member, error) {
	m, err := c.member(ref)
	if err == nil && m.shown.Load().status.State == "" {
		if m, err = c.locked(ctx, ref); err == nil {
			m.leave()
		}
	}
	return m, err
}

// show returns what holds for a member.
func (c *Controller) show(ctx context.Context, ref string) (*shown, error) {
	m, err := c.present(ctx, ref)
	if err != nil {
		return nil, err
	}
	return m.shown.Load(), nil
}

// Flows lists a container's open proxied connections.
func (c *Controller) Flows(ctx context.Context, ref string) ([]control.Flow, error) {
	now, err := c.show(ctx, ref)
	if err != nil {
		return nil, err
	}
	if now.plan == nil {
		return nil, nil
	}
	return c.config.Sidecar.Flows(ctx, now.session)
}
