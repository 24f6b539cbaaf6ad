package controller

import (
	"errors"
	"strings"
	"testing"

	"sluice/control"
	"sluice/controller/api"
	"sluice/policy"
)

// held starts a holder, and a container beside it that is not started yet.
func (w *world) held(id, workload string) {
	w.start("holder-"+workload[:1], id)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.containers[workload] = &Container{ID: workload, Name: "task-" + workload[:1], Joined: id,
		Refusals: []Refusal{{Reason: "it shares the network", Repair: "attach that one", Joins: true}}}
}

func TestWorkload(t *testing.T) {
	w := newWorld()
	dir := t.TempDir()
	c, stop := w.control(t, dir)
	w.held(id1, id2)
	s, err := c.Attach(t.Context(), id1, parse(t, task), policy.Run, api.Options{Workload: id2})
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "task-2" || s.ID != id2 || s.Holder != id1 {
		t.Errorf("status %+v", s)
	}
	if spec := w.session(id1).spec; spec.Container != "task-2" || spec.ContainerID != id2 {
		t.Errorf("session %+v", spec)
	}
	for _, ref := range []string{"task-2", id2, id2[:8], id1} {
		if s := status(t, c, ref); s.ID != id2 {
			t.Errorf("%s: status %+v", ref, s)
		}
	}
	stop()
	c, _ = w.control(t, dir)
	if s := status(t, c, "task-2"); s.Holder != id1 || s.State != api.Attached {
		t.Errorf("after a restart: %+v", s)
	}

	// It starts and stops as it likes; the network stays.
	w.change(id2, func(c *Container) { c.Running = true })
	w.events <- Event{Kind: ContainerChanged, Container: id2}
	w.change(id2, func(c *Container) { c.Running = false })
	w.events <- Event{Kind: ContainerChanged, Container: id2}
	w.settled(t, c)
	compare(t, "gate", w.net(id1).gate.holds(), "run=no-network")

	// When it is removed, so is its holder.
	w.remove(id2)
	w.events <- Event{Kind: ContainerChanged, Container: id2}
	eventually(t, "nothing is left", func() bool {
		all, err := c.List(t.Context())
		w.mu.Lock()
		defer w.mu.Unlock()
		return err == nil && len(all) == 0 && len(w.containers) == 0 && len(w.sessions) == 0
	})
}

func TestWorkloadRefused(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*Container)
		want   string
	}{
		"elsewhere": {func(c *Container) { c.Joined = "" }, "does not share its network"},
		"privileged": {func(c *Container) {
			c.Refusals = append(c.Refusals, Refusal{Reason: "it is privileged", Repair: "do not"})
		}, "privileged"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c, _ := w.control(t, t.TempDir())
			w.held(id1, id2)
			w.change(id2, row.change)
			_, err := c.Attach(t.Context(), id1, parse(t, task), policy.Run, api.Options{Workload: id2})
			if !errors.Is(err, control.ErrRefused) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v", err)
			}
			if steps := w.steps(); len(steps) > 0 {
				t.Errorf("was done all the same: %v", steps)
			}
		})
	}
}

// TestIntruder quarantines a container whose network is shared by one that could change its rules.
func TestIntruder(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	w.start("helper", id2)
	w.change(id2, func(c *Container) {
		c.Joined, c.Refusals = id1, []Refusal{{Reason: "the container has NET_ADMIN", Repair: "create it without", Weak: true}}
	})
	w.events <- Event{Kind: ContainerChanged, Container: id2}
	eventually(t, "quarantined", func() bool { return status(t, c, "web").State == api.Quarantined })
	compare(t, "gate", w.net(id1).gate.holds(), "nothing passes")
	_, err := c.Phase(t.Context(), "web", policy.Run, 0)
	if !errors.Is(err, control.ErrQuarantined) || !strings.Contains(err.Error(), "container helper shares its network") {
		t.Errorf("a switch while it is there: %v", err)
	}
	w.stop(id2)
	if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
		t.Error(err)
	}
	compare(t, "gate", w.net(id1).gate.holds(), "run=no-network")

	// One without such rights is welcome.
	w.start("helper", id2)
	w.change(id2, func(c *Container) { c.Joined, c.Refusals = id1, nil })
	w.events <- Event{Kind: ContainerChanged, Container: id2}
	w.settled(t, c)
	if s := status(t, c, "web"); s.State != api.Attached {
		t.Errorf("status %+v", s)
	}
}

// TestRevive starts what an engine that was restarted could not: a container after its holder.
func TestRevive(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.held(id1, id2)
	w.change(id2, func(c *Container) { c.Restarts = true })
	if _, err := c.Attach(t.Context(), id1, parse(t, task), policy.Run, api.Options{Workload: id2}); err != nil {
		t.Fatal(err)
	}
	w.steps()
	w.stop(id1)
	w.events <- Event{Kind: Resync}
	eventually(t, "running again", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.containers[id2].Running
	})
	compare(t, "gate", w.net(id1).gate.holds(), "run=no-network")
	if s := status(t, c, "task-2"); s.State != api.Attached || s.UncoveredMilliseconds != 0 {
		t.Errorf("status %+v", s)
	}
	steps := w.steps()
	if first, last := steps[0], steps[len(steps)-1]; first != "start holder-2" || last != "start task-2" {
		t.Errorf("steps %v", steps)
	}
}
