package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/giveback"
	"sluice/policy"
)

// Attach puts a container under policies, of which one phase's is in force when it returns; what was open and is
// refused by it is cut then. A container that is attached with the same policies in the same phase stays as it is, and
// one that is attached otherwise is an error ([control.ErrConflict]).
//
// On an error before anything has changed in the kernel, nothing is left. After that the container is quarantined, and
// attaching it again, or a switch, tries anew.
func (c *Controller) Attach(ctx context.Context, ref string, policies policy.Phases, phase policy.Phase, o api.Options) (api.Status, error) {
	began := time.Now()
	container, err := c.config.Engine.Inspect(ctx, ref)
	if err != nil {
		return api.Status{}, err
	}
	var about workload
	before := Anything
	if container.silent() {
		before = Nothing
	}
	if o.Workload != "" {
		var begun bool
		if about, begun, err = c.workload(ctx, &container, o); err != nil {
			return api.Status{}, err
		}
		if container.Holder && !begun {
			before = Nothing
		}
	}
	set := newPolicySet(policies)
	m, err := c.claim(ctx, record{
		ID: container.ID, Name: container.Name, State: api.Attached, Phase: phase, Generation: 1, AllowWeak: o.AllowWeak,
		Pending: true, set: set, Workload: about,
	})
	if err != nil {
		return api.Status{}, err
	}
	defer m.leave()
	if m.shown.Load().status.State != "" { // it was attached before
		return c.attachAgain(ctx, m, set, phase)
	}
	if err := admissible(&container, o.AllowWeak); err != nil {
		return api.Status{}, errors.Join(err, c.forget(m))
	}
	m.container = container
	ctx = context.WithoutCancel(ctx) // from here on it is done or undone, not left in the middle
	receipt, err := c.attach(ctx, m, began, before)
	if err != nil {
		c.metrics.failed("attach")
		return api.Status{}, err
	}
	c.metrics.attach.Observe(time.Since(began).Seconds())
	s := m.shown.Load().status
	s.Milliseconds = receipt.Milliseconds
	c.log.Info("attached", "container", s.Name, "phase", s.Phase, "mode", s.Mode, "ms", s.Milliseconds, "weak", len(s.Weak) > 0)
	return s, nil
}

func (c *Controller) attach(ctx context.Context, m *member, began time.Time, before Before) (api.Receipt, error) {
	const doing = "attaching"
	defer giveback.Soon()
	proxied, touched, err := c.establish(ctx, m)
	if err != nil && !touched {
		return api.Receipt{}, errors.Join(fmt.Errorf("attach container %s: %w", m.name(), err), c.abandon(ctx, m))
	}
	if err != nil {
		return api.Receipt{}, c.quarantine(ctx, m, doing, err)
	}
	return c.finish(ctx, m, doing, proxied, began, before, nil)
}

// claim returns the container's member, a new one for r if there is none, with its turn taken.
func (c *Controller) claim(ctx context.Context, r record) (*member, error) {
	for {
		c.mu.Lock()
		m := c.members[r.ID]
		if m == nil && c.ending {
			c.mu.Unlock()
			return nil, fmt.Errorf("attach container %s: this controller is ending, for it has nothing left to look after: start another one", r.Name)
		}
		if m == nil {
			m = newMember(r)
			c.addLocked(m)
		}
		c.mu.Unlock()
		if err := m.take(ctx); err != nil {
			return nil, err
		}
		if !m.gone {
			return m, nil
		}
		m.leave()
	}
}

// attachAgain answers for a container that is attached.
func (c *Controller) attachAgain(ctx context.Context, m *member, set *policySet, phase policy.Phase) (api.Status, error) {
	if m.record.set.digest != set.digest {
		return api.Status{}, &control.Error{Code: control.CodeConflict, Message: fmt.Sprintf(
			"container %s is attached with other policies: replace them by sluice set, or detach it first", m.name())}
	}
	if m.record.Phase != phase {
		return api.Status{}, &control.Error{Code: control.CodeConflict, Message: fmt.Sprintf(
			"container %s is attached in phase %s: switch by sluice phase", m.name(), m.record.Phase)}
	}
	receipt, err := c.switchTo(ctx, m, m.record.set, phase, 0)
	if err != nil {
		return api.Status{}, err
	}
	s := m.shown.Load().status
	s.Unchanged = receipt.Unchanged
	return s, nil
}

// admissible refuses containers that no policy can hold.
func admissible(container *Container, allowWeak bool) error {
	if err := holdable(container, allowWeak); err != nil {
		return err
	}
	if !container.Running {
		return refused(container, "it does not run, so it has no network yet: start it first, or use sluice run")
	}
	return nil
}

// holdable refuses containers with rights against which no policy holds.
func holdable(container *Container, allowWeak bool) error {
	for _, r := range container.Refusals {
		switch {
		case !r.Weak:
			return refused(container, r.Reason+": "+r.Repair)
		case !allowWeak:
			return refused(container, r.Reason+": "+r.Repair+", or accept that it may get round its policy by --allow-weak")
		}
	}
	return nil
}

func refused(container *Container, why string) error {
	return &control.Error{Code: control.CodeRefused, Message: fmt.Sprintf("container %s cannot be attached: %s", container.Name, why)}
}

// establish puts the member's phase in force where nothing is, or something unknown: after its start, in a
// quarantine, and after a restart of the controller. touched says whether the kernel may have been changed.
//
// The sidecar comes first: what is redirected from then on is judged.
func (c *Controller) establish(ctx context.Context, m *member) (proxied control.Receipt, touched bool, err error) {
	if err := c.open(ctx, m); err != nil {
		return proxied, false, err
	}
	plan, err := c.plan(ctx, m, m.record.set)
	if err != nil {
		return proxied, false, err
	}
	if err := c.store.save(&m.record); err != nil {
		return proxied, false, err
	}
	if proxied, err = c.tellSidecar(ctx, m, plan); err != nil {
		return proxied, false, err
	}
	if err := m.stages(func(l Layer) error { return l.Install(plan, m.record.Phase) }); err != nil {
		return proxied, true, err
	}
	m.plan, m.restage = plan, false
	if err := c.settle(ctx, m); err != nil {
		// They lead nowhere any more, and the next time they end.
		c.log.Warn("the sidecar keeps listeners that nothing leads to", "container", m.name(), "error", err)
	}
	return proxied, true, nil
}

// open opens the container's namespace and its listeners, unless they are open.
func (c *Controller) open(ctx context.Context, m *member) error {
	if m.net == nil {
		n, err := c.config.Host.Open(&m.container, c.unchanged(ctx, &m.container))
		if err != nil {
			return err
		}
		m.net = n
		m.auditing = n.Refusals(func(r Refused) { c.publish(m.shown.Load().event(&r)) })
		m.record.Namespace, m.record.Sandbox, m.record.Started = n.ID(), m.container.Sandbox, m.container.Started
	}
	if m.sockets == nil {
		s, err := m.net.Listen()
		if err != nil {
			return err
		}
		m.sockets = s
	}
	return nil
}

// unchanged asks whether a container still runs as it did.
func (c *Controller) unchanged(ctx context.Context, container *Container) func() error {
	return func() error {
		same, err := c.config.Engine.Runs(ctx, container)
		if err == nil && !same {
			err = errors.New("the container was restarted meanwhile: try again")
		}
		return err
	}
}

func (c *Controller) plan(ctx context.Context, m *member, set *policySet) (*Plan, error) {
	facts, err := c.config.Host.Facts(ctx)
	if err != nil {
		return nil, err
	}
	container := m.container
	plan, err := makePlan(&container, &facts, set, m.sockets, c.config.Matcher)
	if err != nil {
		return nil, control.InvalidError(err)
	}
	plan.Session.Container, plan.Session.ContainerID = m.record.about()
	return plan, nil
}

// tellSidecar gives the session all that the sidecar has to know of it.
func (c *Controller) tellSidecar(ctx context.Context, m *member, plan *Plan) (control.Receipt, error) {
	receipt, err := c.apply(ctx, m, plan.spec(&m.record))
	if errors.Is(err, control.ErrStale) {
		// It is of a controller whose state is lost: begin anew.
		if err := c.endSession(ctx, m); err != nil {
			return receipt, err
		}
		receipt, err = c.apply(ctx, m, plan.spec(&m.record))
	}
	if err != nil {
		return receipt, err
	}
	ctx, cancel := context.WithTimeout(ctx, sidecarTimeout)
	defer cancel()
	if err := c.config.Sidecar.Hand(ctx, m.session(), m.sockets); err != nil {
		return receipt, fmt.Errorf("sidecar: %w", err)
	}
	return receipt, nil
}

// settle ends the service of listeners that redirects led to before.
func (c *Controller) settle(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, sidecarTimeout)
	defer cancel()
	return c.config.Sidecar.Settle(ctx, m.session())
}

// abandon undoes an attach that has changed nothing in the kernel.
func (c *Controller) abandon(ctx context.Context, m *member) error {
	var errs []error
	if m.net != nil {
		errs = append(errs, c.endSession(ctx, m))
	}
	return errors.Join(append(errs, m.letGo(), c.forget(m))...)
}

// Detach takes a container's policies away: nothing of them is left.
func (c *Controller) Detach(ctx context.Context, ref string) error {
	m, err := c.locked(ctx, ref)
	if err != nil {
		return err
	}
	defer m.leave()
	giveback.Soon()
	ctx = context.WithoutCancel(ctx)
	if m.net != nil {
		if err := m.release(); err != nil {
			m.plan = nil // whatever is left, a switch brings it back
			m.record.State, m.record.Problem = api.Quarantined, "detaching failed half-way: "+err.Error()
			m.publish()
			return fmt.Errorf("detach container %s: %w: try again", m.name(), err)
		}
	}
	c.dismiss(m.record.ID)
	c.adopter.abandonFile(m.record.ID)
	if err := c.drop(ctx, m); err != nil {
		return fmt.Errorf("detach container %s: its policy is gone, but: %w", m.name(), err)
	}
	c.log.Info("detached", "container", m.name())
	return nil
}

// release takes the rules away. On managed networks, where the container is silent then, those inside refuse everything
// from now on, see [Controller.hush].
func (m *member) release() error {
	if !m.container.silent() {
		return m.layers(Layer.Remove)
	}
	if err := m.net.Gate().Quarantine(&m.container); err != nil {
		return err
	}
	return m.net.Guard().Remove()
}

// drop forgets a member of which nothing is in the kernel any more.
func (c *Controller) drop(ctx context.Context, m *member) error {
	return errors.Join(c.endSession(ctx, m), m.letGo(), c.forget(m))
}

func (c *Controller) endSession(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, sidecarTimeout)
	defer cancel()
	if err := c.config.Sidecar.Delete(ctx, m.session()); err != nil {
		return fmt.Errorf("sidecar: %w", err)
	}
	return nil
}
