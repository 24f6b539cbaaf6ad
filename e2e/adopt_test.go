package e2e

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/dockernet/netns"
	"sluice/e2e/agentcompass"
	"sluice/e2e/lab/attempts"
	"sluice/e2e/lab/client"
	"sluice/e2e/lab/tap"
)

// TestAdoptedIsolation lets the container of a task that AgentCompass's provider has started try everything of package
// attempts, under policies that the provider puts in force by its file.
func TestAdoptedIsolation(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.startAs("--adopt", "agentcompass"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // others expect it without flags
		if err := theController.kill(); err != nil {
			t.Error(err)
		}
	})
	w := newIsolation(t)
	policies := map[string]*attempts.Policy{"baseline": attempts.Allowlist}
	for _, p := range attempts.Policies {
		switch p.Name {
		case "no-network":
			policies["run"] = p
		case "denylist-of-names":
			policies["evaluation"] = p
		}
	}
	spec := agentcompass.Spec{ID: "isolation-adopted", Image: client.Tag, ProxyImage: client.Tag, Policies: map[string]json.RawMessage{}}
	for phase, p := range policies {
		spec.Policies[phase] = json.RawMessage(p.Document)
	}
	task, err := agentcompass.Open(lab.python, lab.DockerHost(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := task.Close(); err != nil {
			t.Error(err)
		}
	})
	peer := w.start(t, "peer-of-task", task.Network)
	w.peers[task.Network] = peer
	w.tap(t, func() (*tap.Tap, error) { return tap.Interface("the peer of the task", peer.ns.Do, "eth0") })
	a := w.attackerIn(t, task)
	for _, phase := range []string{"baseline", "run", "evaluation"} {
		if _, err := task.Phase(phase); err != nil {
			t.Fatal(err)
		}
		p := policies[phase]
		a.awaitMode(t, policies[phase])
		t.Run(p.Name, func(t *testing.T) {
			a.check(t, p, true)
			a.checkLate(t)
		})
	}
}

// attackerIn gives the attacker's program to a task's container.
func (w *isolation) attackerIn(t *testing.T, task *agentcompass.Task) *attacker {
	t.Helper()
	program := filepath.Join(t.TempDir(), "attacker")
	source := w.docker(t, "create", attackerTag, "wait")
	defer w.docker(t, "rm", source)
	w.docker(t, "cp", source+":/attacker", program)
	w.docker(t, "cp", program, task.Container+":/attacker")
	inspected, err := w.engine.ContainerInspect(t.Context(), task.Container)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.Open(inspected.NetworkSettings.SandboxKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	a := &attacker{isolation: w, inhabitant: &inhabitant{inspected, ns}}
	a.around.Closed, a.around.Internal, a.around.IPv4Only = controllerMetrics, true, true
	a.around.Unrouted, a.around.Ringless = !a.routed(t), labEngine.Dir != ""
	a.around.Links = []attempts.Link{a.link(t, task.Network, 0)}
	a.around.Host[0] = netip.MustParseAddr("100.64.0.1")
	a.around.Foreign = addressesOn(w.peers[w.prefix+"foreign"], w.prefix+"foreign")
	return a
}

// awaitMode waits until the policy that the provider has written is in force in the kernel.
func (a *attacker) awaitMode(t *testing.T, p *attempts.Policy) {
	t.Helper()
	want := strings.TrimSuffix(p.Name, "-of-names")
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(50 * time.Millisecond) {
		var status struct {
			State string `json:"state"`
			Mode  string `json:"network_mode"`
		}
		out := a.sluice(t, "status", a.ID, "--json")
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			t.Fatal(err)
		}
		if status.State == "attached" && status.Mode == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not in force: %s", want, out)
		}
	}
}
