package controller

import (
	"errors"
	"strings"
	"testing"

	"sluice/control"
	"sluice/controller/api"
)

// labelled starts a container on managed networks with these labels.
func (w *world) labelled(name, id, policy, phase string) {
	w.start(name, id)
	w.change(id, func(c *Container) {
		c.Networks[0].Managed = true
		c.Policy, c.Phase = policy, phase
	})
}

func TestAdmission(t *testing.T) {
	w := newWorld()
	dir := t.TempDir()
	w.labelled("early", id2, task, "run") // before the controller
	c, stop := w.control(t, dir)
	w.events <- Event{Kind: Resync}
	eventually(t, "admitted at start", func() bool { _, err := c.Status(t.Context(), "early"); return err == nil })
	eventually(t, "its rules", func() bool { return w.net(id2).gate.holds() == "run=no-network" })

	w.labelled("web", id1, `{"network_mode":"allowlist","allowed_hosts":["db"]}`, "")
	w.events <- Event{Kind: ContainerChanged, Container: id1}
	eventually(t, "admitted", func() bool { return w.net(id1).guard.holds() == "baseline=allowlist" })
	if s := status(t, c, "web"); s.State != api.Attached || s.UncoveredMilliseconds != 0 {
		t.Errorf("status %+v", s)
	}

	// A restart keeps what was switched to, and is not uncovered.
	if _, err := c.Phase(t.Context(), "early", 2, 0); err != nil {
		t.Fatal(err)
	}
	w.stop(id2)
	w.labelled("early", id2, task, "run")
	w.events <- Event{Kind: ContainerChanged, Container: id2}
	eventually(t, "admitted again", func() bool { return w.net(id2).gate.holds() == "evaluation=allowlist" })
	if s := status(t, c, "early"); s.UncoveredMilliseconds != 0 {
		t.Errorf("status %+v", s)
	}

	// Who is detached stays out, until a controller comes that does not know.
	if err := c.Detach(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	w.events <- Event{Kind: Resync}
	w.events <- Event{Kind: ContainerChanged, Container: id1}
	w.settled(t, c)
	if _, err := c.Status(t.Context(), "web"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("admitted after it was detached: %v", err)
	}
	stop()
	c, _ = w.control(t, dir)
	w.events <- Event{Kind: Resync}
	eventually(t, "admitted by another controller", func() bool { _, err := c.Status(t.Context(), "web"); return err == nil })
}

// TestAdmissionWhileItRuns checks that a container is admitted that comes to be on managed networks alone while it runs.
func TestAdmissionWhileItRuns(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.labelled("web", id1, task, "run")
	var managed Container
	w.change(id1, func(c *Container) { // it is on others
		managed = *c
		c.Policy, c.Phase, c.Unheeded = "", "", true
		for i := range c.Networks {
			c.Networks[i].Managed = false
		}
	})
	w.events <- Event{Kind: ContainerChanged, Container: id1}
	w.settled(t, c)
	if _, err := c.Status(t.Context(), "web"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("on others: %v", err)
	}
	w.change(id1, func(c *Container) {
		c.Policy, c.Phase, c.Unheeded = managed.Policy, managed.Phase, false
		for i := range c.Networks {
			c.Networks[i].Managed = true
		}
	})
	w.events <- Event{Kind: NetworkJoined, Container: id1, Network: "net2"}
	eventually(t, "admitted", func() bool { return w.net(id1).gate.holds() == "run=no-network" })
}

// settled waits until the queue is empty.
func (w *world) settled(t *testing.T, c *Controller) {
	t.Helper()
	eventually(t, "the queue is empty", func() bool {
		c.work.mu.Lock()
		defer c.work.mu.Unlock()
		return len(c.work.waiting)+len(c.work.busy) == 0
	})
}

func TestNotAdmitted(t *testing.T) {
	hushed := []string{"open", "gate quarantine"}
	for name, test := range map[string]struct {
		why    string // what status says
		change func(*Container)
	}{
		"bad-policy":   {"label sluice.policy: /network_mode", func(c *Container) { c.Policy = `{"network_mode":"none"}` }},
		"empty-policy": {"label sluice.policy: ", func(c *Container) { c.Policy = " " }},
		"bad-phase":    {"label sluice.phase: ", func(c *Container) { c.Phase = "later" }},
		"refused": {"the image has a label: remove it", func(c *Container) {
			c.Refusals = []Refusal{{Reason: "the image has a label", Repair: "remove it"}}
		}},
		"weak": {"it has NET_ADMIN: remove it", func(c *Container) {
			c.Refusals = []Refusal{{Reason: "it has NET_ADMIN", Repair: "remove it", Weak: true}}
		}},
		"no-policy": {"is not attached", func(c *Container) { c.Policy = "" }},
		"stopped":   {"is not attached", func(c *Container) { c.Running = false }},
		"unmanaged": {"web is open: its label sluice.policy holds on managed networks alone, and it is on bridge", func(c *Container) {
			c.Policy, c.Unheeded, c.Networks[0].Managed = "", true, false
		}},
		"host": {"and it is on none", func(c *Container) { c.Policy, c.Unheeded, c.Networks = "", true, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c, _ := w.control(t, t.TempDir())
			w.labelled("web", id1, task, "run")
			w.change(id1, test.change)
			w.events <- Event{Kind: ContainerChanged, Container: id1}
			w.events <- Event{Kind: ContainerChanged, Container: id2} // which is not there
			w.settled(t, c)
			s, err := c.Status(t.Context(), "web")
			if !errors.Is(err, control.ErrNotFound) || !strings.Contains(err.Error(), test.why) {
				t.Errorf("status %+v, error %v, want one that says %q", s, err, test.why)
			}
			want := hushed
			if name == "stopped" || name == "unmanaged" || name == "host" {
				want = nil // nothing can be done, or need be
			}
			compare(t, "steps", w.steps(), want)
			if n := w.net(id1).open; n != 0 {
				t.Errorf("%d descriptors are left", n)
			}
		})
	}
}

func TestManagedNetworks(t *testing.T) {
	w := newWorld()
	w.networks = []api.Network{{Name: "old", ID: "id-old", Bridge: "sluice-old"}}
	c, _ := w.control(t, t.TempDir())
	compare(t, "guarded at start", w.guarded, map[string]bool{"sluice-old": true})
	if _, err := c.CreateNetwork(t.Context(), api.NewNetwork{Name: "tasks"}); err != nil {
		t.Fatal(err)
	}
	compare(t, "guarded", w.guarded, map[string]bool{"sluice-old": true, "sluice-tasks": true})
	if err := c.RemoveNetwork(t.Context(), "tasks", false); err != nil {
		t.Fatal(err)
	}
	compare(t, "guarded", w.guarded, map[string]bool{"sluice-old": true})

	// A network that cannot be guarded is not left.
	w.failing("networks changed", errFake)
	if _, err := c.CreateNetwork(t.Context(), api.NewNetwork{Name: "tasks"}); !errors.Is(err, errFake) {
		t.Errorf("error %v", err)
	}
	if len(w.networks) != 1 {
		t.Errorf("networks %v", w.networks)
	}
	// One that comes by itself is guarded as soon as that works.
	w.networks = append(w.networks, api.Network{Name: "new", ID: "id-new", Bridge: "sluice-new"})
	w.events <- Event{Kind: NetworksChanged, Network: "id-new"}
	w.failing("", nil)
	eventually(t, "guarded after a failure", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.guarded["sluice-new"]
	})
}
