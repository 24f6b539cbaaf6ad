package controller

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/controller/api"
)

// harnessed starts a container beside which a harness has put a proxy, and returns the policy file.
func (w *world) harnessed(t *testing.T, id, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "policy.json")
	write(t, file, text)
	w.start("task", id)
	w.change(id, func(c *Container) {
		c.Provider = &Provider{PolicyFile: file, Name: "proxy", Addresses: []netip.AddrPort{netip.MustParseAddrPort("172.18.0.2:8080")}, Sandbox: "/run/netns/proxy"}
	})
	return file
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const (
	closedFile  = `{"network_mode":"no-network","allowed_hosts":[],"denied_hosts":[]}`
	allowedFile = `{"network_mode":"allowlist","allowed_hosts":["ok.test",{"host":"192.0.2.0/24","port":443}],"denied_hosts":[]}`
)

// inMode waits until a container is attached and a mode is in force.
func inMode(t *testing.T, c *Controller, ref, mode string) {
	t.Helper()
	eventually(t, mode+" is in force", func() bool {
		s, err := c.Status(t.Context(), ref)
		return err == nil && s.State == api.Attached && s.Mode == mode
	})
}

func TestAdopt(t *testing.T) {
	w := newWorld()
	file := w.harnessed(t, "c1", allowedFile)
	c, _ := w.control(t, t.TempDir())
	w.events <- Event{Kind: ContainerChanged, Container: "c1"}
	inMode(t, c, "task", "allowlist")
	if got := w.session("c1").spec.Open["proxy"]; !slices.Equal(got, []string{"172.18.0.2"}) {
		t.Errorf("the proxy's name stands for %q", got)
	}
	if plan := w.net("c1").gate.plan; !slices.Equal(plan.Direct.Open, []netip.AddrPort{netip.MustParseAddrPort("172.18.0.2:8080")}) {
		t.Errorf("open are %v", plan.Direct.Open)
	}
	ended := func() bool { return slices.Contains(w.steps(), "end flows /run/netns/proxy") }
	eventually(t, "what was open through the proxy has ended", ended)
	eventually(t, "status says how long it was uncovered", func() bool { return status(t, c, "task").UncoveredMilliseconds > 0 })
	if s := status(t, c, "task"); len(s.Notes) == 0 || !strings.Contains(s.Notes[0], file) {
		t.Errorf("status %+v", s)
	}

	for _, step := range []struct{ name, text, mode string }{
		{"no-network", closedFile, "no-network"},
		{"public", `{"network_mode":"public"}`, "public"},
		{"empty-denylist", `{"network_mode":"denylist","denied_hosts":[]}`, "public"},
		{"empty-allowlist", `{"network_mode":"allowlist","allowed_hosts":[]}`, "no-network"},
		{"allowlist", allowedFile, "allowlist"},
	} {
		t.Run(step.name, func(t *testing.T) {
			before := status(t, c, "task")
			write(t, file, step.text)
			inMode(t, c, "task", step.mode)
			if before.Mode != step.mode {
				eventually(t, "connections through the proxy end", ended)
			}
			if s := status(t, c, "task"); s.Problem != "" {
				t.Errorf("problem %q", s.Problem)
			}
		})
	}
	for _, bad := range []struct{ name, text string }{
		{"invalid", `{"network_mode":"open"}`},
		{"more-than-a-target", `{"network_mode":"denylist","denied_hosts":["a_b.test"]}`},
		{"gone", ""},
	} {
		t.Run(bad.name, func(t *testing.T) {
			if write(t, file, bad.text); bad.text == "" {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
			}
			inMode(t, c, "task", "no-network")
			eventually(t, "status says why", func() bool { return strings.Contains(status(t, c, "task").Problem, "until its policy is known") })
			write(t, file, allowedFile)
			inMode(t, c, "task", "allowlist")
			eventually(t, "status says that it is known", func() bool { return status(t, c, "task").Problem == "" })
		})
	}

	w.remove("c1")
	w.events <- Event{Kind: ContainerChanged, Container: "c1"}
	eventually(t, "nothing follows the file", func() bool { return c.adopter.count() == 0 })
	if _, err := c.Status(t.Context(), "task"); code(err) != "not-found" {
		t.Errorf("after its end: %v", err)
	}
}

func (a *adopter) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.followers)
}

// TestAdoptAfterRestart checks that a later controller goes on following, and applies what was written meanwhile.
func TestAdoptAfterRestart(t *testing.T) {
	w, dir := newWorld(), t.TempDir()
	file := w.harnessed(t, "c1", allowedFile)
	c, stop := w.control(t, dir)
	w.events <- Event{Kind: ContainerChanged, Container: "c1"}
	inMode(t, c, "task", "allowlist")
	stop()
	write(t, file, closedFile)
	c, _ = w.control(t, dir)
	inMode(t, c, "task", "no-network")
	write(t, file, allowedFile)
	inMode(t, c, "task", "allowlist")
}

// TestAdoptUnknown checks that a container whose policy nobody knows is closed, and opened when it is known.
func TestAdoptUnknown(t *testing.T) {
	w := newWorld()
	file := w.harnessed(t, "c1", allowedFile)
	known := *w.containers["c1"].Provider
	w.change("c1", func(c *Container) { c.Provider = &Provider{Name: "proxy", Problem: "there is no proxy"} })
	c, _ := w.control(t, t.TempDir())
	w.events <- Event{Kind: ContainerChanged, Container: "c1"}
	inMode(t, c, "task", "no-network")
	eventually(t, "status says why", func() bool { return strings.Contains(status(t, c, "task").Problem, "there is no proxy") })
	w.change("c1", func(c *Container) { c.Provider = &known })
	w.events <- Event{Kind: NetworkJoined, Container: "c1", Network: "net1"}
	inMode(t, c, "task", "allowlist")
	// The proxy ends before the task: the file still says what holds.
	w.change("c1", func(c *Container) { c.Provider = &Provider{Name: "proxy", Problem: "there is no proxy"} })
	w.events <- Event{Kind: NetworkJoined, Container: "c1", Network: "net1"}
	write(t, file, `{"network_mode":"public"}`)
	inMode(t, c, "task", "public")
}

// TestAdoptFailure checks that a container whose policy cannot be brought in force is quarantined.
func TestAdoptFailure(t *testing.T) {
	for _, tt := range []struct{ name, step string }{
		{"sidecar", "sidecar apply"}, {"gate", "gate install"}, {"guard", "guard install"}, {"cut", "cut"}, {"refused", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.harnessed(t, "c1", allowedFile)
			if tt.step != "" {
				w.failing(tt.step, errFake)
			} else {
				w.change("c1", func(c *Container) {
					c.Refusals = []Refusal{{Reason: "it has NET_ADMIN", Repair: "take that", Weak: true}}
				})
			}
			c, _ := w.control(t, t.TempDir())
			w.events <- Event{Kind: ContainerChanged, Container: "c1"}
			eventually(t, "it is quarantined", func() bool {
				s, err := c.Status(t.Context(), "task")
				return err == nil && s.State == api.Quarantined
			})
			if n := w.net("c1"); n.gate.holds() != "nothing passes" || n.guard.holds() != "nothing passes" {
				t.Errorf("gate %s, guard %s", n.gate.holds(), n.guard.holds())
			}
			if tt.step != "" {
				w.failing("", nil)
				inMode(t, c, "task", "allowlist")
			}
		})
	}
}

// TestAdoptFlowsRemain checks that a container is closed if what goes through its harness's proxy cannot be ended.
func TestAdoptFlowsRemain(t *testing.T) {
	w := newWorld()
	file := w.harnessed(t, "c1", allowedFile)
	c, _ := w.control(t, t.TempDir())
	w.events <- Event{Kind: ContainerChanged, Container: "c1"}
	inMode(t, c, "task", "allowlist")
	w.failing("end flows /run/netns/proxy", errFake)
	write(t, file, `{"network_mode":"public"}`)
	eventually(t, "it is quarantined", func() bool { return status(t, c, "task").State == api.Quarantined })
}

// TestAdoptDetached checks that a container that somebody has detached stays so.
func TestAdoptDetached(t *testing.T) {
	w := newWorld()
	file := w.harnessed(t, "c1", allowedFile)
	c, _ := w.control(t, t.TempDir())
	w.events <- Event{Kind: ContainerChanged, Container: "c1"}
	inMode(t, c, "task", "allowlist")
	if err := c.Detach(t.Context(), "task"); err != nil {
		t.Fatal(err)
	}
	write(t, file, closedFile)
	w.events <- Event{Kind: ContainerChanged, Container: "c1"}
	w.settled(t, c)
	eventually(t, "nothing follows the file", func() bool { return c.adopter.count() == 0 })
	if _, err := c.Status(t.Context(), "task"); code(err) != "not-found" {
		t.Errorf("after detach: %v", err)
	}
}

// TestAdoptWithoutEngine checks that a container is closed if its new policy cannot be worked out, for the engine does not
// answer.
func TestAdoptWithoutEngine(t *testing.T) {
	w := newWorld()
	file := w.harnessed(t, "c1", allowedFile)
	c, _ := w.control(t, t.TempDir())
	w.events <- Event{Kind: ContainerChanged, Container: "c1"}
	inMode(t, c, "task", "allowlist")
	w.settled(t, c)
	w.mu.Lock()
	w.fail["facts"], w.fail["inspect"] = errFake, errFake
	w.mu.Unlock()
	write(t, file, closedFile)
	eventually(t, "it is quarantined", func() bool { return status(t, c, "task").State == api.Quarantined })
	if n := w.net("c1"); n.gate.holds() != "nothing passes" || n.guard.holds() != "nothing passes" {
		t.Errorf("gate %s, guard %s", n.gate.holds(), n.guard.holds())
	}
	w.failing("", nil)
	inMode(t, c, "task", "no-network")
}

// TestAdoptWhileNetworksChange checks that a container whose networks change together with its policy is not closed for
// that.
func TestAdoptWhileNetworksChange(t *testing.T) {
	w := newWorld()
	file := w.harnessed(t, "c1", `{"network_mode":"public"}`)
	c, _ := w.control(t, t.TempDir())
	c.patience = time.Minute
	w.events <- Event{Kind: ContainerChanged, Container: "c1"}
	inMode(t, c, "task", "public")
	w.settled(t, c)
	w.steps()
	w.failing("guard stage", errFake) // an interface is not there any more
	write(t, file, closedFile)
	failed := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.journal, "guard stage")
	}
	eventually(t, "it was tried", failed)
	w.failing("", nil)
	inMode(t, c, "task", "no-network")
	if steps := w.steps(); slices.Contains(steps, "gate quarantine") || slices.Contains(steps, "guard quarantine") {
		t.Errorf("it was quarantined: %q", steps)
	}
}

// TestAdoptAgain checks that a container which starts while nobody is to follow its file any more is followed all the same.
func TestAdoptAgain(t *testing.T) {
	w := newWorld()
	file := w.harnessed(t, "c1", allowedFile)
	c, _ := w.control(t, t.TempDir())
	// follower makes one that ends when done is closed.
	follower := func() *follower {
		f := &follower{adopter: c.adopter, id: "c1", done: make(chan struct{})}
		f.ctx, f.cancel = context.WithCancel(t.Context())
		f.provider.Store(w.containers["c1"].Provider)
		c.adopter.mu.Lock()
		defer c.adopter.mu.Unlock()
		c.adopter.followers["c1"] = f
		return f
	}
	over := follower()
	over.attempt()
	c.adopter.adopt(w.containers["c1"])
	if over.leave() {
		t.Error("it ends although the container was seen to run")
	}
	if over.attempt(); !over.leave() || c.adopter.count() != 0 {
		t.Error("it does not end although the container was not seen to run")
	}

	cancelled := follower()
	cancelled.cancel()
	w.events <- Event{Kind: ContainerChanged, Container: "c1"}
	w.settled(t, c)
	close(cancelled.done)
	c.adopter.ended(cancelled)
	inMode(t, c, "task", "allowlist")
	write(t, file, closedFile)
	inMode(t, c, "task", "no-network")
}
