package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"sluice/control"
	"sluice/controller/api"
)

// Clear takes the policies of all members away and forgets them, without a sidecar: whose sessions end with it. It is
// called in place of [Controller.Run]. Members are found without the engine too, if that does not answer.
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
	if err != nil {
		err = fmt.Errorf("containers that were not admitted to managed networks may stay closed: %w: clear again when the engine answers", err)
	}
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
		container, err = m.remembered(), nil
	}
	if err == nil && container.Running && container.Started == m.record.Started && container.Sandbox == m.record.Sandbox {
		m.container = container
		if m.net, err = c.config.Host.Open(&container, nil); errors.Is(err, fs.ErrNotExist) {
			return c.forget(m) // it has ended meanwhile
		} else if err != nil {
			return err
		}
		if m.net.ID() == m.record.Namespace {
			err = m.layers(Layer.Remove)
		}
		if err != nil {
			return errors.Join(err, m.letGo())
		}
	}
	return errors.Join(m.letGo(), c.forget(m))
}

// remembered is the member's container as it was, for want of the engine. Whether it still runs, its namespace tells.
func (m *member) remembered() Container {
	r := &m.record
	return Container{ID: r.ID, Name: r.Name, Running: r.State != api.Stopped, Started: r.Started, Sandbox: r.Sandbox}
}
