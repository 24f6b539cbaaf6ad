package controller

import (
	"context"
	"errors"
	"fmt"

	"sluice/control"
)

// Clear takes the policies of all members away and forgets them, without a sidecar: whose sessions end with it. It is
// called in place of [Controller.Run].
func (c *Controller) Clear(ctx context.Context) error {
	var errs []error
	for _, m := range c.all() {
		if err := c.clear(ctx, m); err != nil {
			errs = append(errs, fmt.Errorf("container %s: %w", m.name(), err))
		}
	}
	for id := range c.broken {
		errs = append(errs, c.store.remove(id))
	}
	return errors.Join(append(errs, c.unhush(ctx))...)
}

// unhush opens the networks of containers that were not admitted.
func (c *Controller) unhush(ctx context.Context) error {
	ids, err := c.config.Engine.Managed(ctx)
	errs := []error{err}
	for _, id := range ids {
		container, err := c.config.Engine.Inspect(ctx, id)
		if errors.Is(err, control.ErrNotFound) || err == nil && !container.silent() {
			continue
		}
		if err == nil {
			err = c.inside(ctx, &container, Layer.Remove)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *Controller) clear(ctx context.Context, m *member) error {
	if err := m.take(ctx); err != nil {
		return err
	}
	defer m.leave()
	container, err := c.config.Engine.Inspect(ctx, m.record.ID)
	if err != nil && !errors.Is(err, control.ErrNotFound) {
		return err
	}
	if err == nil && container.Running && container.Started == m.record.Started && container.Sandbox == m.record.Sandbox {
		m.container = container
		if m.net, err = c.config.Host.Open(&container, nil); err != nil {
			return err
		}
		if err := m.layers(Layer.Remove); err != nil {
			return errors.Join(err, m.letGo())
		}
	}
	return errors.Join(m.letGo(), c.forget(m))
}
