package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/dockernet/xdp"
	"sluice/giveback"
	"sluice/policy"
)

// Phase puts a phase's policy in force. When it returns without an error, nothing passes any more that the policy
// refuses. generation is 0, or must be greater than the container's ([control.ErrStale] otherwise). An error that is
// [control.ErrQuarantined] means that nothing passes at all; after any other everything is as it was. While the engine
// connects the container to a network or disconnects it, this waits for a second at most.
//
// A container that does not run will start in that phase.
func (c *Controller) Phase(ctx context.Context, ref string, phase policy.Phase, generation uint64) (api.Receipt, error) {
	return c.patiently(ctx, ref, unstaged, func(m *member) (api.Receipt, error) {
		return c.switchTo(ctx, m, m.record.set, phase, generation)
	})
}

// Set replaces the policies of all phases; the phase stays. Errors and generation are as for [Controller.Phase].
func (c *Controller) Set(ctx context.Context, ref string, policies policy.Phases, generation uint64) (api.Receipt, error) {
	defer giveback.Soon()
	return c.set(ctx, ref, newPolicySet(policies), generation, unstaged)
}

func (c *Controller) set(ctx context.Context, ref string, set *policySet, generation uint64, again func(error) bool) (api.Receipt, error) {
	return c.patiently(ctx, ref, again, func(m *member) (api.Receipt, error) {
		return c.switchTo(ctx, m, set, m.record.Phase, generation)
	})
}

const (
	patience     = time.Second // engines under load need that to say that a network is gone
	patienceStep = 5 * time.Millisecond
)

// patiently calls a switch once more, for a second at most, where again says of its error that this is worth while: the
// engine may be about to change the container's networks, and what was known of these is wrong then, for a moment.
func (c *Controller) patiently(ctx context.Context, ref string, again func(error) bool, do func(*member) (api.Receipt, error)) (api.Receipt, error) {
	for deadline := time.Now().Add(c.patience); ; {
		receipt, err := c.once(ctx, ref, again, do)
		if err == nil || !again(err) || time.Now().After(deadline) || ctx.Err() != nil {
			return receipt, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(patienceStep):
		}
	}
}

// once calls a switch, and brings the member in step with the engine if that did not succeed.
func (c *Controller) once(ctx context.Context, ref string, again func(error) bool, do func(*member) (api.Receipt, error)) (api.Receipt, error) {
	m, err := c.locked(ctx, ref)
	if err != nil {
		return api.Receipt{}, err
	}
	defer m.leave()
	receipt, err := do(m)
	if err != nil && again(err) {
		_ = c.reconcile(ctx, m) // the next switch says what is wrong
	}
	return receipt, err
}

// errUnstaged is in errors of rules that could not be laid beside those in force. Nothing has changed then.
var errUnstaged = errors.New("nothing has changed")

func unstaged(err error) bool { return errors.Is(err, errUnstaged) }

// switchTo puts a phase of a set in force. The caller has the member's turn.
func (c *Controller) switchTo(ctx context.Context, m *member, set *policySet, phase policy.Phase, asked uint64) (api.Receipt, error) {
	began := time.Now()
	if err := control.CheckGeneration(asked); err != nil {
		return api.Receipt{}, err
	}
	if asked != 0 && asked < m.record.Generation {
		return api.Receipt{}, m.stale(asked)
	}
	if m.record.State != api.Quarantined && !m.record.Pending && m.record.set.digest == set.digest && m.record.Phase == phase {
		receipt := m.receipt(began)
		receipt.Unchanged = true
		return receipt, nil
	}
	if asked == m.record.Generation {
		return api.Receipt{}, m.stale(asked)
	}
	ctx = context.WithoutCancel(ctx) // a caller who goes away leaves no switch half done
	next := m.record
	next.set, next.Phase, next.Generation, next.Pending = set, phase, max(asked, m.record.Generation+1), true
	receipt, err := c.change(ctx, m, next, began)
	if err != nil {
		c.metrics.failed("switch")
		return api.Receipt{}, err
	}
	c.metrics.change.Observe(time.Since(began).Seconds())
	c.log.Info("switched", "container", receipt.Container, "phase", receipt.Phase, "generation", receipt.Generation,
		"cut", receipt.FlowsCut, "kept", receipt.FlowsKept, "ms", receipt.Milliseconds)
	return receipt, nil
}

// change brings next in force.
func (c *Controller) change(ctx context.Context, m *member, next record, began time.Time) (api.Receipt, error) {
	plan := m.plan
	if next.set != m.record.set {
		var err error
		if plan, err = c.plan(ctx, m, next.set); err != nil {
			return api.Receipt{}, fmt.Errorf("policies for container %s: %w", m.name(), err)
		}
	}
	switch {
	case m.record.State == api.Stopped:
		next.Pending = false
		if err := c.store.save(&next); err != nil {
			return api.Receipt{}, err
		}
		m.record = next
		m.publish()
		receipt := m.receipt(began)
		m.history.changed(began, receipt, "")
		return receipt, nil
	case m.plan == nil:
		return c.changeAnew(ctx, m, next, began)
	}
	return c.changeStaged(ctx, m, plan, next, began)
}

// changeStaged goes from what is in force to a phase of a plan, in the order that package controller's comment says.
func (c *Controller) changeStaged(ctx context.Context, m *member, plan *Plan, next record, began time.Time) (api.Receipt, error) {
	const doing = "switching"
	if plan != m.plan || m.restage {
		m.restage = true // until it is in force, the layers hold two
		if err := m.stages(func(l Layer) error { return l.Stage(plan) }); errors.Is(err, xdp.ErrTaken) {
			// On a link that has come the workload may send past the gate already, and there is no guard yet.
			return api.Receipt{}, c.quarantine(ctx, m, doing, err)
		} else if err != nil {
			return api.Receipt{}, fmt.Errorf("stage for container %s: %w: %w", m.name(), err, errUnstaged)
		}
	}
	if err := c.store.save(&next); err != nil {
		return api.Receipt{}, fmt.Errorf("%w: nothing has changed", err)
	}
	changed := plan != m.plan
	m.record = next
	spec := control.SessionSpec{Generation: next.Generation, Phase: next.Phase.String()}
	if changed {
		spec = plan.spec(&next)
	}
	proxied, guard, err := c.swap(ctx, m, spec, next.Phase)
	if err != nil {
		return api.Receipt{}, c.quarantine(ctx, m, doing, err)
	}
	m.plan, m.restage = plan, false
	return c.finish(ctx, m, doing, proxied, began, Ruled, guard)
}

// swap goes from one phase to another, in all layers. The guard does the last step until its error can be received.
//
// Where nothing gets past the gate, that one alone lets through what both phases allow until the sidecar has the new one,
// and the guard changes once. That takes longest, for the kernel looks at the rules of all containers then, so what is to
// be cut is looked for meanwhile: the gate refuses it already.
func (c *Controller) swap(ctx context.Context, m *member, spec control.SessionSpec, phase policy.Phase) (proxied control.Receipt, guard <-chan error, err error) {
	alone := m.net.GateHolds()
	if both := func(l Layer) error { return l.Both(phase) }; alone {
		err = both(m.net.Gate())
	} else {
		err = m.layers(both)
	}
	if err != nil {
		return proxied, nil, err
	}
	if proxied, err = c.apply(ctx, m, spec); err != nil {
		return proxied, nil, err
	}
	changed := make(chan error, 1)
	go func() { changed <- m.net.Guard().Switch(phase) }()
	err = m.net.Gate().Switch(phase)
	if err != nil || !alone {
		err = errors.Join(err, <-changed)
		changed <- nil
	}
	return proxied, changed, err
}

// changeAnew goes from a quarantine, or from what is not known, to a phase.
func (c *Controller) changeAnew(ctx context.Context, m *member, next record, began time.Time) (api.Receipt, error) {
	const doing = "switching"
	container, err := c.inspect(ctx, m)
	if err != nil {
		return api.Receipt{}, err
	}
	if m.container.ID != "" && !container.same(&m.container) {
		c.work.add(m.record.ID, 0)
		return api.Receipt{}, fmt.Errorf("container %s was stopped or restarted just now: try again", m.name())
	}
	m.container = container
	m.record.set, m.record.Phase, m.record.Generation, m.record.Pending = next.set, next.Phase, next.Generation, true
	if err := admissible(&container, m.record.AllowWeak); err != nil {
		return api.Receipt{}, c.quarantine(ctx, m, doing, err)
	}
	proxied, _, err := c.establish(ctx, m)
	if err != nil {
		return api.Receipt{}, c.quarantine(ctx, m, doing, err)
	}
	return c.finish(ctx, m, doing, proxied, began, Anything, nil)
}

// finish cuts what is open and refused now, and answers, when the guard has changed if it is still about to.
func (c *Controller) finish(ctx context.Context, m *member, doing string, proxied control.Receipt, began time.Time, before Before, guard <-chan error) (api.Receipt, error) {
	cut, err := m.net.Cut(m.plan, m.record.Phase, before)
	if guard != nil {
		err = errors.Join(err, <-guard)
	}
	if err != nil {
		return api.Receipt{}, c.quarantine(ctx, m, doing, err)
	}
	if err := c.inForce(ctx, m); err != nil {
		return api.Receipt{}, c.quarantine(ctx, m, doing, err)
	}
	m.cut.Add(uint64(proxied.FlowsCut + cut.Ended))
	receipt := m.receipt(began)
	receipt.FlowsCut, receipt.FlowsKept = proxied.FlowsCut+cut.Ended, proxied.FlowsKept+cut.Kept
	receipt.DirectCut, receipt.InboundOpen = cut.Ended, cut.Inbound
	m.history.changed(began, receipt, "")
	return receipt, nil
}

// apply tells the session's sidecar.
func (c *Controller) apply(ctx context.Context, m *member, spec control.SessionSpec) (control.Receipt, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, sidecarTimeout, errors.New("no answer in time: it hangs"))
	defer cancel()
	receipt, err := c.config.Sidecar.Apply(ctx, m.session(), spec)
	if err != nil {
		return receipt, fmt.Errorf("sidecar: %w", err)
	}
	return receipt, nil
}

// spec is all that the sidecar has to know for a record's phase to be in force.
func (p *Plan) spec(r *record) control.SessionSpec {
	spec := p.Session
	spec.Phase, spec.Generation = r.Phase.String(), r.Generation
	return spec
}

// inForce ends a change that has succeeded.
func (c *Controller) inForce(ctx context.Context, m *member) error {
	if m.record.Paused {
		if err := c.config.Engine.Unpause(ctx, m.record.ID); err != nil {
			return fmt.Errorf("unpause: %w", err)
		}
	}
	m.record.State, m.record.Problem, m.record.Pending, m.record.Paused = api.Attached, "", false, false
	m.since = time.Now()
	if err := c.store.save(&m.record); err != nil {
		// What is on disk leads a later controller to the same.
		c.log.Warn("the end of a change was not written down", "container", m.name(), "error", err)
	}
	m.publish()
	return nil
}

// quarantine refuses everything, after a step has failed, and returns what to tell the caller.
func (c *Controller) quarantine(ctx context.Context, m *member, doing string, cause error) error {
	m.plan = nil
	m.record.State, m.record.Pending = api.Quarantined, false
	m.record.Problem = fmt.Sprintf("%s failed: %v", doing, cause)
	if err := c.refuseAll(m); err != nil {
		m.record.Problem += fmt.Sprintf("; then quarantine failed: %v", err)
		if err := c.config.Engine.Pause(ctx, m.record.ID); err != nil {
			m.record.Problem += fmt.Sprintf("; then pausing the container failed: %v: STOP IT YOURSELF", err)
		} else {
			m.record.Paused = true
			m.record.Problem += "; so it was paused"
		}
	}
	if err := c.store.save(&m.record); err != nil {
		c.log.Error("a quarantine was not written down", "container", m.name(), "error", err)
	}
	m.publish()
	m.history.changed(time.Now(), m.receipt(time.Now()), m.record.Problem)
	c.metrics.quarantines.Inc()
	c.log.Error("quarantined", "container", m.name(), "phase", m.record.Phase, "problem", m.record.Problem)
	return &control.Error{Code: control.CodeQuarantined, Message: fmt.Sprintf(
		"container %s is quarantined: %s; nothing passes until sluice phase %s %s succeeds",
		m.name(), m.record.Problem, m.name(), m.record.Phase)}
}

// refuseAll puts both layers into quarantine. Neither needs a live sidecar; neither is enough alone.
func (c *Controller) refuseAll(m *member) error {
	if m.net == nil {
		return errors.New("its network namespace is not open")
	}
	return m.layers(func(l Layer) error { return l.Quarantine(&m.container) })
}
