package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sluice/control"
	"sluice/controller/api"
	"sluice/policy"
)

// Networks lists the managed networks.
func (c *Controller) Networks(ctx context.Context) ([]api.Network, error) {
	return c.config.Engine.Networks(ctx)
}

// CreateNetwork makes a managed network. When it returns, nothing leaves it but by a policy.
func (c *Controller) CreateNetwork(ctx context.Context, n api.NewNetwork) (api.Network, error) {
	made, err := c.config.Engine.CreateNetwork(ctx, n)
	if err != nil {
		return made, err
	}
	ctx = context.WithoutCancel(ctx)
	if err := c.syncNetworks(ctx); err != nil {
		return made, errors.Join(fmt.Errorf("guard network %s: %w", n.Name, err), c.config.Engine.RemoveNetwork(ctx, made.ID, false))
	}
	c.log.Info("network made", "network", made.Name, "bridge", made.Bridge)
	return made, nil
}

// RemoveNetwork removes a managed network, with force also while containers are on it.
func (c *Controller) RemoveNetwork(ctx context.Context, name string, force bool) error {
	if err := c.config.Engine.RemoveNetwork(ctx, name, force); err != nil {
		return err
	}
	return c.syncNetworks(context.WithoutCancel(ctx))
}

// syncNetworks makes the host look after the managed networks that there are.
func (c *Controller) syncNetworks(ctx context.Context) error {
	c.networks.Lock()
	defer c.networks.Unlock()
	all, err := c.config.Engine.Networks(ctx)
	if err != nil {
		return err
	}
	return c.config.Host.NetworksChanged(all)
}

// networksChanged is syncNetworks for events, tried again until it succeeds.
func (c *Controller) networksChanged(ctx context.Context) {
	if err := c.syncNetworks(ctx); err != nil && ctx.Err() == nil {
		c.log.Error("managed networks are not looked after as they should be: it is tried again", "in", retryTime, "error", err)
		c.work.add(workNetworks, retryTime)
	}
}

// admit puts a container that has started on managed networks under the policy that its labels, or its network's, name.
// On any failure it stays silent.
func (c *Controller) admit(ctx context.Context, id string) error {
	container, err := c.config.Engine.Inspect(ctx, id)
	if errors.Is(err, control.ErrNotFound) {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.dismissed, id)
		delete(c.silent, id)
		c.adopter.abandonFile(id)
		return nil
	}
	if err != nil {
		return err
	}
	if container.Provider != nil && !c.isDismissed(id) {
		c.adopter.adopt(&container)
		return nil
	}
	if container.Joined != "" {
		return c.joined(ctx, &container)
	}
	if container.Unheeded && !c.isDismissed(id) {
		c.warnUnheeded(&container)
		return nil
	}
	if !container.Running || container.Policy == "" || c.isDismissed(id) {
		c.speak(id)
		return c.hush(ctx, &container)
	}
	policies, phase, err := readLabels(container.Policy, container.Phase)
	if err == nil {
		_, err = c.Attach(ctx, id, policies, phase, api.Options{})
	}
	switch {
	case err == nil, errors.Is(err, control.ErrConflict): // somebody was faster
		c.speak(id)
		return nil
	case errors.Is(err, control.ErrInvalid), errors.Is(err, control.ErrRefused):
		if now, err := c.config.Engine.Inspect(ctx, id); err == nil && !now.same(&container) || errors.Is(err, control.ErrNotFound) {
			return nil // it has ended meanwhile
		}
		c.metrics.failed("admit")
		c.log.Error("a container is not admitted, and stays silent", "container", container.Name, "error", err)
		c.mu.Lock()
		c.silent[id] = silent{name: container.Name, why: err}
		c.mu.Unlock()
		return c.hush(ctx, &container) // trying again would not help
	}
	return err
}

// hush closes the network of a container that is not admitted from inside too: what it asks the engine's resolver may be
// asked from the host, where no rule of a managed network holds.
func (c *Controller) hush(ctx context.Context, container *Container) error {
	if !container.silent() {
		return nil
	}
	return c.inside(ctx, container, func(l Layer) error { return l.Quarantine(container) })
}

// inside changes the rules inside of a container that is no member.
func (c *Controller) inside(ctx context.Context, container *Container, do func(Layer) error) error {
	m, err := c.claim(ctx, record{ID: container.ID, Name: container.Name})
	if err != nil {
		return err
	}
	defer m.leave()
	if m.shown.Load().status.State != "" {
		return nil // somebody has attached it meanwhile
	}
	n, err := c.config.Host.Open(container, c.unchanged(ctx, container))
	if err == nil {
		err = errors.Join(do(n.Gate()), n.Close())
	}
	if err != nil {
		err = fmt.Errorf("network of container %s: %w", container.Name, err)
	}
	return errors.Join(err, c.forget(m))
}

// silent reports whether nothing leaves the container before it is admitted: it runs, on managed networks alone.
func (c *Container) silent() bool {
	return c.Running && len(c.Networks) > 0 && !slices.ContainsFunc(c.Networks, func(n Network) bool { return !n.Managed })
}

// silent is a container that was not admitted, and why.
type silent struct {
	name string
	why  error
	open bool // it is not silent: its networks are not managed
}

// warnUnheeded says once that a container has a policy in its labels, which does not hold there.
func (c *Controller) warnUnheeded(container *Container) {
	var networks []string
	for _, n := range container.Networks {
		if !n.Managed {
			networks = append(networks, n.Name)
		}
	}
	on := cmp.Or(strings.Join(networks, ", "), "none")
	if container.Joined != "" {
		on = "that of container " + container.Joined
	}
	why := fmt.Errorf("its label sluice.policy holds on managed networks alone, and it is on %s", on)
	c.mu.Lock()
	_, known := c.silent[container.ID]
	c.silent[container.ID] = silent{container.Name, why, true}
	c.mu.Unlock()
	if !known {
		c.metrics.failed("admit")
		c.log.Error("a container is open: create it anew on a managed network, or use sluice attach", "container", container.Name, "error", why)
	}
}

// speak forgets why a container was not admitted.
func (c *Controller) speak(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.silent, id)
}

// notThereLocked is the error for a container that is no member.
func (c *Controller) notThereLocked(ref string) error {
	for id, s := range c.silent {
		if s.name == strings.TrimPrefix(ref, "/") || len(ref) >= shortID && strings.HasPrefix(id, ref) {
			form := "container %s is silent, for it was not admitted to its managed network: %v; create it anew without that, or use sluice attach"
			if s.open {
				form = "container %s is open: %v; create it anew on a managed network, or use sluice attach"
			}
			return &control.Error{Code: control.CodeNotFound, Message: fmt.Sprintf(form, s.name, s.why)}
		}
	}
	return &control.Error{Code: control.CodeNotFound, Message: fmt.Sprintf(
		"container %q is not attached: sluice ls lists those that are, sluice attach adds one", ref)}
}

// shortID is how much of an id the engine's own lists show.
const shortID = 12

// readLabels reads the policies and the first phase of a container.
func readLabels(document, phaseName string) (policies policy.Phases, phase policy.Phase, err error) {
	if phaseName != "" {
		if phase, err = policy.ParsePhase(phaseName); err != nil {
			return policies, phase, control.InvalidError(fmt.Errorf("label sluice.phase: %w", err))
		}
	}
	d, err := policy.Parse([]byte(document))
	if err != nil {
		return policies, phase, control.InvalidError(fmt.Errorf("label sluice.policy: %w", err))
	}
	return d.All(), phase, nil
}

// dismiss keeps a container from being admitted again, which somebody has detached.
func (c *Controller) dismiss(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dismissed[id] = true
}

func (c *Controller) isDismissed(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dismissed[id]
}
