package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sluice/control"
	"sluice/controller/api"
)

// workload looks at the container that shares the network of the one to be attached and that all will be about, and
// tells whether it runs already.
func (c *Controller) workload(ctx context.Context, holder *Container, o api.Options) (about workload, begun bool, err error) {
	w, err := c.config.Engine.Inspect(ctx, o.Workload)
	if err != nil {
		return workload{}, false, err
	}
	if w.Joined != holder.ID {
		return workload{}, false, refused(holder, fmt.Sprintf("container %s does not share its network: create that with --network container:%s", w.Name, holder.ID))
	}
	w.Refusals = slices.DeleteFunc(slices.Clone(w.Refusals), func(r Refusal) bool { return r.Joins }) // it is about to be under one
	return workload{w.ID, w.Name}, w.Running, holdable(&w, o.AllowWeak)
}

// inspect asks the engine for the member's container. Reasons against containers that share its network are its own.
func (c *Controller) inspect(ctx context.Context, m *member) (Container, error) {
	container, err := c.config.Engine.Inspect(ctx, m.record.ID)
	if err != nil {
		return container, err
	}
	for id := range m.intruders {
		other, err := c.config.Engine.Inspect(ctx, id)
		if err != nil && !errors.Is(err, control.ErrNotFound) {
			return container, err
		}
		m.watch(&other)
		if err != nil {
			delete(m.intruders, id)
		}
	}
	for _, r := range m.intruders {
		container.Refusals = append(container.Refusals, r)
	}
	return container, nil
}

// watch remembers a container that shares the member's network as long as it runs and could change its rules.
func (m *member) watch(other *Container) {
	delete(m.intruders, other.ID)
	if !other.Running {
		return
	}
	for _, r := range other.Refusals {
		if !r.Joins && !(r.Weak && m.record.AllowWeak) {
			m.intruders[other.ID] = Refusal{
				Reason: fmt.Sprintf("container %s shares its network, and %s", other.Name, r.Reason), Repair: "stop that one"}
		}
	}
}

// joined looks at a container that shares the network of another one, which may be a member.
func (c *Controller) joined(ctx context.Context, other *Container) error {
	m, err := c.locked(ctx, other.Joined)
	if errors.Is(err, control.ErrNotFound) {
		if other.Unheeded && !c.isDismissed(other.ID) {
			c.warnUnheeded(other)
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer m.leave()
	m.watch(other)
	if len(m.intruders) == 0 {
		return nil
	}
	return c.reconcile(ctx, m)
}

// outlived removes a container that held a network for one which is gone.
func (c *Controller) outlived(ctx context.Context, m *member) error {
	if err := c.config.Engine.Remove(ctx, m.record.ID); err != nil {
		return fmt.Errorf("remove the holder of container %s: %w", m.record.Workload.Name, err)
	}
	c.log.Info("the container is gone, and its holder was removed", "container", m.record.Workload.Name)
	return c.end(ctx, m, func() error { return c.forget(m) })
}

// revive starts a holder that has stopped, as all containers do when the engine is restarted, and then the container
// that the engine could not start without it.
func (c *Controller) revive(ctx context.Context, m *member) error {
	if err := c.config.Engine.Start(ctx, m.record.ID); err != nil {
		return fmt.Errorf("start the holder of container %s: %w", m.record.Workload.Name, err)
	}
	container, err := c.inspect(ctx, m)
	if err != nil {
		return err
	}
	if err := c.restarted(ctx, m, container); err != nil {
		return err
	}
	if err := c.config.Engine.Start(ctx, m.record.Workload.ID); err != nil {
		return fmt.Errorf("start container %s: %w", m.record.Workload.Name, err)
	}
	return nil
}
