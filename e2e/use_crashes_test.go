package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/e2e/lab/client"
)

// crashes is how often the controller is killed.
const crashes = 12

// TestControllerCrashes kills the controller at moments all over a container's life and starts another one (L-40). The
// container is then under a policy or under none, whole, and after its end nothing of it is left in the kernel.
func TestControllerCrashes(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(theController.start())
	t.Cleanup(func() { check(theController.start()) }) // for the tests that follow
	u := &user{t: t, name: "crash-app", api: api.Client{Socket: theController.socket()}}
	_, err := docker("run", "--detach", "--name", u.name, client.Tag, "sleep", "infinity")
	check(err)
	removed := false
	t.Cleanup(func() {
		if !removed {
			_, err := docker("rm", "--force", u.name)
			check(err)
		}
	})
	foreign := exec.Command("nft", "add table inet foreign { chain input { type filter hook input priority 7; } ; }")
	check(lab.InEngineNamespace(foreign.Run))
	t.Cleanup(func() { check(lab.InEngineNamespace(exec.Command("nft", "delete table inet foreign").Run)) })
	// A container that comes and goes leaves the tables that are there for all.
	policies := allowlist(t, "web.test")
	attach := func(ctx context.Context) error {
		_, err := u.api.Attach(ctx, api.Attach{Container: u.name, Policy: policies})
		return err
	}
	check(attach(t.Context()))
	check(u.api.Detach(t.Context(), u.name))
	before := hostTables(t)

	steps := []struct {
		name     string
		attached bool // before
		do       func(context.Context) error
	}{
		{"attach", false, attach},
		{"phase", true, func(ctx context.Context) error {
			_, err := u.api.Phase(ctx, u.name, "run", 0)
			return err
		}},
		{"set", true, func(ctx context.Context) error {
			_, err := u.api.Set(ctx, u.name, allowlist(t, "web.test 203.0.113.73"), 0)
			return err
		}},
		{"detach", true, func(ctx context.Context) error { return u.api.Detach(ctx, u.name) }},
	}
	for i := range crashes {
		step := steps[i%len(steps)]
		_, err := u.api.Status(t.Context(), u.name)
		if attached := err == nil; attached != step.attached {
			if step.attached {
				check(attach(t.Context()))
			} else {
				check(u.api.Detach(t.Context(), u.name))
			}
		}
		done := make(chan error, 1)
		go func() { done <- step.do(t.Context()) }()
		time.Sleep(time.Duration(i) * 2 * time.Millisecond) // any moment will do
		check(theController.kill())
		<-done // whatever came of it
		check(theController.start())
		u.checkWhole(fmt.Sprintf("killed %d ms into %s", i*2, step.name))
	}

	stops(u, attach)

	_, err = docker("rm", "--force", u.name)
	check(err)
	removed = true
	u.wait("the container is still known after its end", func() bool {
		_, err := u.api.Status(t.Context(), u.name)
		return errors.Is(err, control.ErrNotFound)
	})
	u.wait("there are other tables than before", func() bool { return hostTables(t) == before })
}

// stops tells the controller to end at moments all over a switch and over what a new network leads to. It ends what it has
// begun: what is allowed works while it is away.
func stops(u *user, attach func(context.Context) error) {
	t := u.t
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	network := u.name + "-net"
	_, err := docker("network", "create", network)
	check(err)
	t.Cleanup(func() {
		_, _ = docker("network", "disconnect", "--force", network, u.name)
		_, err := docker("network", "rm", network)
		check(err)
	})
	if _, err := u.api.Status(t.Context(), u.name); err != nil {
		check(attach(t.Context()))
	}
	stopsInSwitch(u)
	for i := range crashes {
		done := make(chan error, 1)
		go func() {
			if i%2 == 0 {
				_, err := docker("network", []string{"connect", "disconnect"}[i/2%2], network, u.name)
				done <- err
				return
			}
			phase := []string{"baseline", "run"}[i/2%2]
			_, _ = u.api.Phase(t.Context(), u.name, phase, 0) // there may be nobody to answer
			done <- nil
		}()
		time.Sleep(time.Duration(i) * 5 * time.Millisecond) // any moment will do
		check(theController.stop())
		if out, code := u.exec(useLimit, "curl -sS -m 20 https://web.test/"); code != 0 {
			t.Errorf("stopped %d ms into it: what is allowed, while the controller is away: %s", i*5, out)
		}
		check(<-done)
		check(theController.start())
		u.checkWhole(fmt.Sprintf("stopped %d ms into it", i*5))
	}
}

// stopsInSwitch tells the controller to end while a switch waits for the sidecar: the switch succeeds.
func stopsInSwitch(u *user) {
	t := u.t
	t.Helper()
	status, err := u.api.Status(t.Context(), u.name)
	if err != nil {
		t.Fatal(err)
	}
	wake := hangSidecar(t)
	switched, stopped := make(chan error, 1), make(chan error, 1)
	go func() {
		phase := map[string]string{"baseline": "run", "run": "baseline"}[status.Phase]
		_, err := u.api.Phase(t.Context(), u.name, phase, 0)
		switched <- err
	}()
	u.wait("the switch does not begin", func() bool {
		text, err := os.ReadFile(filepath.Join(theController.dir, "state", status.ID+".json"))
		return err == nil && strings.Contains(string(text), `"pending":true`)
	})
	go func() { stopped <- theController.stop() }()
	u.wait("the controller does not close its socket", func() bool {
		conn, err := net.Dial("unix", theController.socket())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if err := errors.Join(wake(), <-switched, <-stopped); err != nil {
		t.Error("stopped in the middle of a switch:", err)
	}
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	u.checkWhole("stopped in the middle of a switch")
}

// checkWhole checks that the container is under its policy or under none, as the controller says.
func (u *user) checkWhole(when string) {
	t := u.t
	t.Helper()
	var state api.State
	u.wait(when+": the controller does not come to know", func() bool {
		s, err := u.api.Status(t.Context(), u.name)
		state = s.State
		if errors.Is(err, control.ErrNotFound) {
			state = "not attached"
			return true
		}
		return err == nil && s.State == api.Attached && len(s.Proxy) > 0 // what was left is taken up
	})
	if out, code := u.exec(useLimit, "curl -sS -m 20 https://web.test/"); code != 0 {
		t.Errorf("%s, %s: what is allowed: %s", when, state, out)
	}
	_, code := u.exec(useLimit, "curl -sS -m 20 https://api.test/")
	if held := code != 0; held != (state == api.Attached) {
		t.Errorf("%s, %s: what is refused: exit code %d", when, state, code)
	}
}

// hostTables are the names of the tables on the engine's host, without what is in them.
func hostTables(t *testing.T) string {
	t.Helper()
	var out []byte
	if err := lab.InEngineNamespace(func() (err error) {
		out, err = exec.Command("nft", "list", "tables").Output()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
