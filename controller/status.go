package controller

import (
	"context"
	"slices"
	"strings"

	"sluice/control"
	"sluice/controller/api"
)

// List returns the status of all members, sorted by name, without their policies.
func (c *Controller) List(context.Context) ([]api.Status, error) {
	all := []api.Status{}
	for _, m := range c.all() {
		if s := m.shown.Load().status; s.State != "" {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b api.Status) int { return strings.Compare(a.Name+a.ID, b.Name+b.ID) })
	return all, nil
}

// Events is where audit records are published.
func (c *Controller) Events() *control.Hub { return &c.events }

// Status returns a member's status with its policies.
func (c *Controller) Status(ctx context.Context, ref string) (api.Status, error) {
	now, err := c.show(ctx, ref)
	if err != nil {
		return api.Status{}, err
	}
	s := now.status
	s.Policies, err = now.set.policies()
	return s, err
}

// show returns what holds for a member. While it is being attached, that is waited for.
func (c *Controller) show(ctx context.Context, ref string) (*shown, error) {
	m, err := c.member(ref)
	if err == nil && m.shown.Load().status.State == "" {
		if m, err = c.locked(ctx, ref); err == nil {
			m.leave()
		}
	}
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
