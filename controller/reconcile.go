package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/control"
	"sluice/controller/api"
)

// retryTime is how long after a failure a container is looked at again.
const retryTime = 2 * time.Second

// settleTime is how long to wait after networks have changed: changes come in flocks, and what follows from them,
// names and addresses of other containers, is not urgent.
const settleTime = 100 * time.Millisecond

// maxJoined bounds what is remembered of containers that are about to start.
const maxJoined = 1 << 12

// recover takes up what an earlier controller has left. Members keep what is in force; their redirects lead to new
// listeners, and no connection is cut by that. What cannot be taken up yet is tried again later.
func (c *Controller) recover(ctx context.Context) {
	defer close(c.recovered)
	c.networksChanged(ctx)
	group := errgroup.Group{}
	group.SetLimit(parallel)
	for _, m := range c.all() {
		group.Go(func() error { c.look(ctx, m.shown.Load().container); return nil })
	}
	_ = group.Wait() // look reports what went wrong
	if err := c.clean(ctx); err != nil && ctx.Err() == nil {
		c.log.Warn("what an earlier controller left of containers that are gone may still be there", "error", err)
	}
}

// clean removes rules and sessions of runs of containers that are over.
func (c *Controller) clean(ctx context.Context) error {
	errs := []error{c.config.Host.Clean()}
	sessions, err := c.config.Sidecar.Sessions(ctx)
	errs = append(errs, err)
	for _, s := range sessions {
		if id, _, _ := strings.Cut(s, "."); !c.known(id) {
			errs = append(errs, c.config.Sidecar.Delete(ctx, s))
		}
	}
	return errors.Join(errs...)
}

// known reports whether there may be rules for a container.
func (c *Controller) known(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[id]
	return m != nil && m.shown.Load().status.State != api.Stopped || c.broken[id] != nil
}

// follow puts into the queue what the engine's events are about.
func (c *Controller) follow(ctx context.Context) {
	// joined are the networks that containers have joined since they changed last. A container is put on its networks
	// before it starts, and is not among those that run until then.
	joined := map[string][]string{}
	for e := range c.config.Engine.Events(ctx, c.began) {
		switch e.Kind {
		case ContainerChanged:
			c.work.add(e.Container, 0) // it may be one to be admitted
			for _, network := range joined[e.Container] {
				c.enqueue(settleTime, func(m *shown) bool { return m.on(network) })
			}
			delete(joined, e.Container)
		case NetworkJoined:
			if len(joined) > maxJoined {
				clear(joined) // of containers that never started
			}
			joined[e.Container] = append(joined[e.Container], e.Network)
			// It may be on managed networks alone from now on; or its harness has put it where it is to be adopted, which
			// is urgent. One that is about to start is looked at then, and once.
			after := settleTime
			if c.config.Adopt {
				after = 0
			}
			c.work.add(e.Container, after)
			c.enqueue(0, func(m *shown) bool { return m.container == e.Container })
			c.enqueue(settleTime, func(m *shown) bool { return m.on(e.Network) })
		case NetworksChanged:
			c.networksChanged(ctx)
			c.enqueue(settleTime, func(*shown) bool { return true })
		default:
			c.networksChanged(ctx)
			c.enqueue(0, func(*shown) bool { return true })
			c.work.add(workManaged, 0)
		}
	}
}

func (c *Controller) enqueue(after time.Duration, which func(*shown) bool) {
	for _, m := range c.all() {
		if s := m.shown.Load(); which(s) {
			c.work.add(s.container, after)
		}
	}
}

// on reports whether the container is on a network.
func (s *shown) on(network string) bool {
	return s.plan != nil && slices.ContainsFunc(s.plan.Container.Networks, func(n Network) bool { return n.ID == network })
}

func (c *Controller) reconcileQueued(ctx context.Context) {
	for {
		id, ok := c.work.next(ctx)
		if !ok {
			return
		}
		switch id {
		case workNetworks:
			c.networksChanged(ctx)
		case workManaged:
			c.admitAll(ctx)
		default:
			c.look(ctx, id)
		}
		c.work.done(id)
	}
}

// Work that is not about one container.
const (
	workNetworks = "networks" // look at the managed networks again
	workManaged  = "managed"  // look for containers to be admitted
)

// admitAll puts all containers on managed networks into the queue.
func (c *Controller) admitAll(ctx context.Context) {
	ids, err := c.config.Engine.Managed(ctx)
	if err != nil && ctx.Err() == nil {
		c.log.Warn("containers on managed networks may have to wait for their policy", "error", err)
		c.work.add(workManaged, retryTime)
	}
	for _, id := range ids {
		c.work.add(id, 0)
	}
}

// look brings a member in step with the engine, and puts it into the queue for later if that fails.
func (c *Controller) look(ctx context.Context, id string) {
	m, err := c.locked(ctx, id)
	if errors.Is(err, control.ErrNotFound) {
		if err := c.admit(ctx, id); err != nil && ctx.Err() == nil {
			c.metrics.failed("admit")
			c.log.Warn("a container waits for its policy: on managed networks it is silent", "id", id, "in", retryTime, "error", err)
			c.work.add(id, retryTime)
		}
		return
	}
	if err != nil {
		return // ctx is done
	}
	defer m.leave()
	err = c.reconcile(ctx, m)
	if err == nil || ctx.Err() != nil {
		return
	}
	c.metrics.failed("reconcile")
	c.log.Warn("a container is looked at again", "container", m.name(), "in", retryTime, "error", err)
	if !m.gone {
		c.work.add(id, retryTime)
	}
}

// reconcile brings a member in step with the engine. The caller has its turn.
func (c *Controller) reconcile(ctx context.Context, m *member) error {
	var about Container
	if m.record.Workload.ID != "" {
		var err error
		about, err = c.config.Engine.Inspect(ctx, m.record.Workload.ID)
		if errors.Is(err, control.ErrNotFound) {
			return c.outlived(ctx, m)
		}
		if err != nil {
			return err
		}
		m.record.Workload.Name = about.Name
		m.watch(&about)
	}
	container, err := c.inspect(ctx, m)
	switch {
	case errors.Is(err, control.ErrNotFound):
		c.adopter.abandonFile(m.record.ID)
		return c.end(ctx, m, func() error { return c.forget(m) })
	case err != nil:
		return err
	}
	ctx = context.WithoutCancel(ctx)
	m.record.Name = container.Name
	c.adopter.adopt(&container)
	if !container.Running && about.Restarts {
		return c.revive(ctx, m)
	}
	if !container.Running {
		m.container = container
		if m.record.State == api.Stopped {
			m.publish() // its name may have changed
			return nil
		}
		return c.end(ctx, m, func() error {
			m.record.State, m.record.Problem, m.record.Paused = api.Stopped, "", false
			m.covered()
			m.publish()
			return c.store.save(&m.record)
		})
	}
	if m.record.State == api.Stopped || m.record.Started != container.Started || m.record.Sandbox != container.Sandbox {
		return c.restarted(ctx, m, container)
	}
	m.container = container
	if m.record.State == api.Quarantined {
		// After a restart of the controller it is not open, and it may have got another network.
		err := c.open(ctx, m)
		m.publish()
		return errors.Join(err, c.refuseAll(m))
	}
	if err := admissible(&container, m.record.AllowWeak); err != nil {
		return errors.Join(c.open(ctx, m), c.quarantine(ctx, m, "looking at it again", err))
	}
	if m.plan == nil {
		return c.takeUp(ctx, m)
	}
	return c.refresh(ctx, m)
}

// end lets go of a run of a container that is over, and then does the rest.
func (c *Controller) end(ctx context.Context, m *member, rest func() error) error {
	held := m.net != nil
	if held {
		// The gate has gone with the namespace; the guard has a table of its own.
		if err := m.net.Guard().Remove(); err != nil {
			return err
		}
		if err := m.letGo(); err != nil {
			return err
		}
	}
	if m.record.State != api.Stopped {
		if err := c.endSession(ctx, m); err != nil {
			return err
		}
	}
	if err := rest(); err != nil || held {
		return err
	}
	return c.config.Host.Clean() // an earlier controller's guard
}

// restarted brings a member's policy in force in another run of its container.
func (c *Controller) restarted(ctx context.Context, m *member, container Container) error {
	if err := c.end(ctx, m, func() error { return nil }); err != nil {
		return err
	}
	m.container = container
	m.covered()
	m.record.State, m.record.Pending, m.record.Paused = api.Attached, true, false
	m.record.Generation++
	const doing = "attaching after a restart"
	began := time.Now()
	if err := admissible(&container, m.record.AllowWeak); err != nil {
		_ = c.open(ctx, m) // so that the layers can refuse everything; else the container is paused
		return c.quarantine(ctx, m, doing, err)
	}
	proxied, _, err := c.establish(ctx, m)
	if err != nil {
		return c.quarantine(ctx, m, doing, err)
	}
	if m.record.Workload.ID == "" {
		m.uncovered = uncovered(&container)
	}
	if _, err := c.finish(ctx, m, doing, proxied, began, Anything, nil); err != nil {
		return err
	}
	c.log.Info("attached after a restart", "container", m.name(), "uncovered_ms", milliseconds(m.uncovered))
	return nil
}

// uncovered is how long a container has run without its policy until now: not at all where it is silent until it is
// admitted.
func uncovered(container *Container) time.Duration {
	started, err := time.Parse(time.RFC3339Nano, container.Started)
	if err != nil || !slices.ContainsFunc(container.Networks, func(n Network) bool { return !n.Managed }) {
		return 0
	}
	return max(0, time.Since(started))
}

// takeUp goes on where an earlier controller has ended. What is in force stays unless that one was about to change it;
// while the sidecar is away nothing is touched.
func (c *Controller) takeUp(ctx context.Context, m *member) error {
	const doing = "taking up"
	began := time.Now()
	proxied, touched, err := c.establish(ctx, m)
	switch {
	case err != nil && touched:
		return c.quarantine(ctx, m, doing, err)
	case err != nil:
		return err
	case m.record.Pending:
		_, err = c.finish(ctx, m, doing, proxied, began, Anything, nil)
		return err
	}
	m.since = began
	m.publish()
	return nil
}

// refresh brings the rules in step with the container's networks and the names on them.
func (c *Controller) refresh(ctx context.Context, m *member) error {
	plan, err := c.plan(ctx, m, m.record.set)
	if errors.Is(err, control.ErrInvalid) {
		return c.behind(ctx, m, err)
	}
	if err != nil {
		return err
	}
	if plan.same(m.plan) {
		m.late = time.Time{}
		if m.shown.Load().status.Name != m.name() {
			m.publish()
		}
		return nil
	}
	next := m.record
	next.Generation, next.Pending = next.Generation+1, true
	if plan.sameRules(m.plan) {
		return c.rename(ctx, m, plan, next)
	}
	receipt, err := c.changeStaged(ctx, m, plan, next, time.Now())
	if err == nil {
		c.log.Info("networks have changed", "container", receipt.Container, "generation", receipt.Generation,
			"cut", receipt.FlowsCut, "kept", receipt.FlowsKept, "ms", receipt.Milliseconds)
	}
	return c.behind(ctx, m, err)
}

// unguardedTime is how long the rules may fail to follow a container to a network that was connected. The rules inside
// hold there too, but frames that pass them meet no guard on that link.
const unguardedTime = 10 * time.Second

// behind returns the error of rules that were to follow the container's networks, and quarantines the container if they
// have not followed for too long to one that it is on.
func (c *Controller) behind(ctx context.Context, m *member, err error) error {
	switch {
	case err == nil, m.plan == nil: // or it is quarantined
		m.late = time.Time{}
		return err
	case !slices.ContainsFunc(m.container.Networks, func(n Network) bool { return !slices.ContainsFunc(m.plan.Container.Networks, n.same) }):
		return err
	case m.late.IsZero():
		m.late = time.Now()
	}
	if time.Since(m.late) < c.unguarded {
		return err
	}
	m.late = time.Time{}
	return c.quarantine(ctx, m, "following it to a network", err)
}

// rename tells the sidecar what names stand for now, where nothing else has changed.
func (c *Controller) rename(ctx context.Context, m *member, plan *Plan, next record) error {
	if err := c.store.save(&next); err != nil {
		return err
	}
	m.record = next
	if _, err := c.apply(ctx, m, plan.spec(&next)); err != nil {
		return c.quarantine(ctx, m, "telling names", err)
	}
	m.plan = plan
	return c.inForce(ctx, m)
}
