package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/network"

	"sluice/e2e/lab/attack"
	"sluice/e2e/lab/attempts"
	"sluice/e2e/lab/tap"
)

// TestIsolationCases tries what needs more than one container, or somebody who breaks something meanwhile.
func TestIsolationCases(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	w := newIsolation(t)
	m := w.newManaged(t)
	t.Run("address-used-again", m.addressUsedAgain)
	t.Run("neighbour-without-policy", m.neighbourWithoutPolicy)
	t.Run("first-process-killed", m.firstProcessKilled)
	t.Run("image-with-label", m.imageWithLabel)
	t.Run("joined", w.joined)
	t.Run("connected-later", m.connectedLater)
	t.Run("rules-flushed", w.rulesFlushed)
	t.Run("killed-under-load", w.killedUnderLoad)
}

// managed is a managed network, whose containers have fixed addresses.
type managed struct {
	*isolation
	name     string
	subnets  [2]netip.Prefix
	gateways [2]netip.Addr
	hardware net.HardwareAddr // of the gateway
}

func (w *isolation) newManaged(t *testing.T) *managed {
	t.Helper()
	m := &managed{isolation: w, name: w.prefix + "managed"}
	w.sluice(t, "network", "create", "--ipv6", m.name)
	t.Cleanup(func() { w.sluice(t, "network", "rm", "--force", m.name) })
	var err error
	if m.subnets, err = w.networkPrefixes(t.Context(), m.name); err != nil {
		t.Fatal(err)
	}
	_, m.hardware = interfaceWith(t, lab.InEngineNamespace, func(p netip.Prefix) bool {
		for f, subnet := range m.subnets {
			if subnet.Contains(p.Addr()) {
				m.gateways[f] = p.Addr()
			}
		}
		return m.subnets[0].Contains(p.Addr())
	})
	return m
}

// link is what the n-th container of the network has.
func (m *managed) link(n int) attempts.Link {
	own := [2]netip.Addr{nth(m.subnets[0], n), nth(m.subnets[1], n)}
	return attempts.Link{
		Device: "eth0", Own: own, Gateway: m.gateways, GatewayHardware: m.hardware,
		Hardware: append(net.HardwareAddr{2, 0x42}, own[0].AsSlice()...), // older engines know no other
	}
}

// plan is the n-th container of the network, which makes attempts from its first instruction on.
func (m *managed) plan(t *testing.T, name string, n int, options ...string) *started {
	t.Helper()
	l := m.link(n)
	s := &started{name: m.prefix + name}
	around := attempts.Surroundings{Links: []attempts.Link{l}}
	s.all = around.Starting()
	s.args = []string{"docker", "run", "--detach", "--name", s.name, "--network", m.name, "--dns", "198.51.100.53",
		"--ip", l.Own[0].String(), "--ip6", l.Own[1].String(), "--env", s.attempts(t)}
	s.args = append(s.args, options...)
	s.args = append(s.args, m.ownHardware(l.Hardware)...)
	s.args = append(s.args, attackerTag, "start")
	return s
}

const labelled = "sluice.policy="

// run starts a container, waits until what it is allowed has arrived, and removes it at the end of the test.
func (w *isolation) run(t *testing.T, s *started) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	t.Cleanup(func() { w.docker(t, "rm", "--force", s.name) })
	if err := w.startOne(ctx, s); err != nil {
		t.Fatal(err)
	}
}

// runSilent starts a container, waits until it has made all its attempts some times, and checks that nobody got anything.
func (w *isolation) runSilent(t *testing.T, s *started) {
	t.Helper()
	t.Cleanup(func() { w.docker(t, "rm", "--force", s.name) })
	w.docker(t, s.args[1:]...)
	w.rounds(t, s.name, 3)
	w.checkRefused(t, s.name, s.all, silence)
}

// silence is the policy of a container that has none on a managed network.
var silence = &attempts.Policy{Name: "silence"}

// rounds waits until a container has made its attempts some more times.
func (w *isolation) rounds(t *testing.T, name string, n int) {
	t.Helper()
	lines := func() int { return strings.Count(w.docker(t, "logs", name), "\n") }
	before := lines()
	for deadline := time.Now().Add(2 * waitLimit); lines() < before+n; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s has not made its attempts %d times in %v", name, n, 2*waitLimit)
		}
	}
	w.mark(t)
}

// addressUsedAgain: the controller is dead, and a container has the addresses, hardware address and policy of one that
// was admitted before it. It is silent until there is a controller again.
func (m *managed) addressUsedAgain(t *testing.T) {
	first := m.plan(t, "first", 10, "--label", labelled+attempts.Allowlist.Document)
	m.run(t, first)
	if err := theController.kill(); err != nil {
		t.Fatal(err)
	}
	alive := false
	defer func() {
		if !alive {
			if err := theController.start(); err != nil {
				t.Error(err)
			}
		}
	}()
	// What is in force stays in force.
	m.rounds(t, first.name, 1)
	m.checkRefused(t, first.name, first.all, attempts.Allowlist)
	m.docker(t, "rm", "--force", first.name)
	second := m.plan(t, "second", 10, "--label", labelled+attempts.Allowlist.Document)
	m.runSilent(t, second)
	alive = true
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := m.arrive(ctx, second); err != nil {
		t.Error(err)
	}
	m.mark(t)
	m.checkRefused(t, second.name, second.all, attempts.Allowlist)
}

// neighbourWithoutPolicy: a container that is not admitted sends in the name of one that is, and of the gateway.
func (m *managed) neighbourWithoutPolicy(t *testing.T) {
	admitted := m.plan(t, "admitted", 11, "--label", labelled+`"public"`)
	m.run(t, admitted)
	forger := m.plan(t, "forger", 12, "--label", labelled+"nonsense")
	for _, as := range []attempts.Link{m.link(11), {Device: "eth0", Own: m.gateways, Gateway: m.gateways, Hardware: m.hardware, GatewayHardware: m.hardware}} {
		around := attempts.Surroundings{Links: []attempts.Link{as}}
		forger.all = append(forger.all, around.Starting()...)
	}
	for i, arg := range forger.args {
		if strings.HasPrefix(arg, "ATTEMPTS=") {
			forger.args[i] = forger.attempts(t)
		}
	}
	m.runSilent(t, forger)
}

// firstProcessKilled: a container ends its own first process, and is started again by its restart policy; then it is
// restarted and paused by others (I-69).
func (m *managed) firstProcessKilled(t *testing.T) {
	s := m.plan(t, "suicidal", 13, "--restart", "always", "--label", labelled+attempts.Allowlist.Document)
	m.run(t, s)
	for i := range 4 {
		if out, err := docker("exec", s.name, "/attacker", "suicide"); err != nil && !strings.Contains(out+err.Error(), "137") && !strings.Contains(err.Error(), "is not running") {
			t.Fatal(err)
		}
		m.awaitFact(t, s.name, "{{.RestartCount}}", fmt.Sprint(i+1))
		m.rounds(t, s.name, 1)
	}
	m.docker(t, "restart", "--time", "0", s.name)
	m.rounds(t, s.name, 1)
	m.docker(t, "pause", s.name)
	m.docker(t, "unpause", s.name)
	m.rounds(t, s.name, 1)
	m.checkRefused(t, s.name, s.all, attempts.Allowlist)
	n := m.counts(s.all)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for more := n; more <= n; more = m.counts(s.all) {
		if ctx.Err() != nil {
			t.Fatal("what is allowed does not arrive any more")
		}
		time.Sleep(20 * time.Millisecond)
	}

	// Elsewhere a restart has a gap, so it must be accepted in so many words.
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(attempts.Allowlist.Document), 0o600); err != nil {
		t.Fatal(err)
	}
	weak := m.prefix + "restarting"
	m.docker(t, "run", "--detach", "--restart", "always", "--name", weak, attackerTag, "wait")
	t.Cleanup(func() { m.docker(t, "rm", "--force", weak) })
	if out, err := m.sluiceFails("attach", weak, "--policy", file); err == nil || !strings.Contains(out, "--allow-weak") {
		t.Errorf("attach says %q, %v; want a refusal that names --allow-weak", out, err)
	}
}

// imageWithLabel: the author of an image wants to choose its policy.
func (m *managed) imageWithLabel(t *testing.T) {
	base := m.prefix + "base"
	m.docker(t, "create", "--name", base, attackerTag)
	t.Cleanup(func() { m.docker(t, "rm", base) })
	const tag = "attacker:labelled"
	m.docker(t, "commit", "--change", `LABEL sluice.policy="\"public\""`, base, tag)
	t.Cleanup(func() { m.docker(t, "image", "rm", tag) })
	s := m.plan(t, "labelled", 14)
	s.args[len(s.args)-2] = tag
	m.runSilent(t, s)

	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(attempts.Allowlist.Document), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := m.sluiceFails("attach", s.name, "--policy", file); err == nil || !strings.Contains(out, "image") {
		t.Errorf("attach says %q, %v; want a refusal because of the image", out, err)
	}
}

// joined: containers share the network of an attached one. Without more rights they have its policy; with more, nothing
// of what the policy refuses passes before all is taken away (I-52).
func (w *isolation) joined(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(attempts.Allowlist.Document), 0o600); err != nil {
		t.Fatal(err)
	}
	a := w.newAttacker(t, "joined", []string{w.prefix + "user"})
	w.sluice(t, "attach", a.ID, "--policy", file)
	defer w.sluice(t, "detach", a.ID)
	for i, rights := range [][]string{nil, {"--cap-add", "NET_ADMIN"}, {"--cap-add", "SYS_ADMIN"}} {
		s := &started{name: fmt.Sprint(w.prefix, "joins-", i), all: a.around.Starting()}
		s.args = append([]string{"docker", "run", "--detach", "--name", s.name, "--network", "container:" + a.ID, "--env", s.attempts(t)}, rights...)
		s.args = append(s.args, attackerTag, "start")
		if rights == nil {
			w.run(t, s)
			w.checkRefused(t, s.name, s.all, attempts.Allowlist)
			w.docker(t, "stop", "--time", "0", s.name)
			continue
		}
		t.Cleanup(func() { w.docker(t, "rm", "--force", s.name) })
		w.docker(t, s.args[1:]...)
		w.awaitState(t, a.ID, "quarantined")
		w.mark(t)
		before := w.counts(s.all)
		w.rounds(t, s.name, 2)
		if more := w.counts(s.all) - before; more > 0 {
			t.Errorf("LEAK: %d packets of %s have come since the quarantine", more, s.name)
		}
		w.checkRefused(t, s.name, s.all, attempts.Allowlist)
		w.docker(t, "rm", "--force", s.name)
		w.sluice(t, "phase", a.ID, "baseline")
		w.awaitState(t, a.ID, "attached")
	}
}

// connect connects a container by what its attempts say is its link, but for the hardware address, which engines from 28 on
// choose by chance.
func (m *managed) connect(t *testing.T, name string, l attempts.Link) {
	t.Helper()
	err := m.engine.NetworkConnect(t.Context(), m.name, name, &network.EndpointSettings{
		IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: l.Own[0].String(), IPv6Address: l.Own[1].String()},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// connectedLater: an attached container is connected to a managed network while it runs, and sends frames by the new
// interface from the moment on at which it is there.
func (m *managed) connectedLater(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`"no-network"`), 0o600); err != nil {
		t.Fatal(err)
	}
	name := m.prefix + "grows"
	l := m.link(15)
	const times = 4
	s := &started{name: name}
	for i := range times + 1 { // older engines give each connection's interface the next name
		l.Device = fmt.Sprint("eth", i+1)
		around := attempts.Surroundings{Links: []attempts.Link{l}}
		s.all = append(s.all, around.Beside()...)
	}
	s.args = []string{"run", "--detach", "--name", name, "--network", m.prefix + "user", "--env", s.attempts(t), attackerTag, "start"}
	t.Cleanup(func() { m.docker(t, "rm", "--force", name) })
	m.docker(t, s.args...)
	m.sluice(t, "attach", name, "--policy", file)
	for range times {
		m.connect(t, name, l)
		m.rounds(t, name, 20)
		m.docker(t, "network", "disconnect", m.name, name)
	}
	m.checkRefused(t, name, s.all, silence)
	m.sluice(t, "detach", name)

	// With a policy that allows it, it does arrive.
	if err := os.WriteFile(file, []byte(`"public"`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.sluice(t, "attach", name, "--policy", file)
	defer m.sluice(t, "detach", name)
	m.connect(t, name, l)
	for deadline := time.Now().Add(waitLimit); m.counts(s.all) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing arrives under a public policy: nothing is tested")
		}
	}
}

// rulesFlushed: somebody flushes the host's rules while a container tries all the time. The gate holds what the
// container's kernel sends, and the guard is back soon (I-67).
func (w *isolation) rulesFlushed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`"no-network"`), 0o600); err != nil {
		t.Fatal(err)
	}
	a := w.newAttacker(t, "flushes", []string{w.prefix + "user"})
	w.sluice(t, "attach", a.ID, "--policy", file)
	defer w.sluice(t, "detach", a.ID)
	s := &started{name: w.prefix + "tries-flushed", all: a.around.Starting()}
	s.args = []string{"run", "--detach", "--name", s.name, "--network", "container:" + a.ID, "--env", s.attempts(t), attackerTag, "start"}
	t.Cleanup(func() { w.docker(t, "rm", "--force", s.name) })
	w.docker(t, s.args...)
	before := guardTables(t)
	if len(before) == 0 {
		t.Fatal("there are no rules on the host")
	}
	// The gate would hold frames as well, and nothing would show that the guard is back.
	if err := a.ns.Do(func() error {
		out, err := exec.Command("nft", "delete", "table", "netdev", "sluice").CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		w.rounds(t, s.name, 1)
		for _, table := range guardTables(t) { // they have other names each time
			nftOnHost(t, append([]string{"delete", "table"}, strings.Fields(table)...)...)
		}
		for deadline := time.Now().Add(waitLimit); len(guardTables(t)) < len(before); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the rules are not back: there are %q, want %q", guardTables(t), before)
			}
		}
		w.mark(t)
		since := w.counts(s.all)
		w.rounds(t, s.name, 1)
		if more := w.counts(s.all) - since; more > 0 {
			t.Errorf("LEAK: %d packets have come since the rules are back", more)
		}
	}
	var kernel, frames []*attempts.Attempt
	for _, one := range s.all {
		if one.Network == "frame" {
			frames = append(frames, one)
		} else {
			kernel = append(kernel, one)
		}
	}
	w.checkRefused(t, s.name, kernel, silence)
	t.Logf("%d frames passed while there were no rules", w.counts(frames))
}

// guardTables are the tables of ours in the engine's namespace, with their families.
func guardTables(t *testing.T) (ours []string) {
	t.Helper()
	for line := range strings.Lines(nftOnHost(t, "list", "tables")) {
		if table := strings.TrimPrefix(strings.TrimSpace(line), "table "); strings.Contains(table, " sluice_guard") || strings.Contains(table, "netdev sluice") {
			ours = append(ours, table)
		}
	}
	return ours
}

// nftOnHost runs the program in the engine's namespace.
func nftOnHost(t *testing.T, args ...string) string {
	t.Helper()
	var out []byte
	err := lab.InEngineNamespace(func() (err error) {
		out, err = exec.Command("nft", args...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("nft %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// killedUnderLoad: the proxy, the controller and both are killed while a container tries all the time (I-56).
func (w *isolation) killedUnderLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(attempts.Allowlist.Document), 0o600); err != nil {
		t.Fatal(err)
	}
	a := w.newAttacker(t, "prober", []string{w.prefix + "user"})
	w.sluice(t, "attach", a.ID, "--policy", file)
	defer w.sluice(t, "detach", a.ID)
	a.look(t)
	flows := a.hold(t, attempts.Allowlist)
	s := &started{name: w.prefix + "tries", all: a.around.Starting()}
	s.args = []string{"docker", "run", "--detach", "--name", s.name, "--network", "container:" + a.ID, "--env", s.attempts(t), attackerTag, "start"}
	w.run(t, s)
	for _, kill := range []struct{ proxy, controller bool }{{true, false}, {false, true}, {true, true}} {
		if kill.controller {
			if err := theController.kill(); err != nil {
				t.Fatal(err)
			}
		}
		if kill.proxy {
			w.docker(t, "kill", w.sidecar(t))
		}
		w.rounds(t, s.name, 2)
		if err := theController.start(); err != nil {
			t.Fatal(err)
		}
		w.awaitProxy(t, a)
		w.rounds(t, s.name, 1)
		w.checkRefused(t, s.name, s.all, attempts.Allowlist)
		w.checkRefused(t, "held", flows.all, attempts.Allowlist)
	}
	w.docker(t, "rm", "--force", s.name)
}

// awaitProxy waits until the attacker gets a page of an allowed name through the proxy.
func (w *isolation) awaitProxy(t *testing.T, a *attacker) {
	t.Helper()
	ask := attack.Attempt{Token: tap.Token(98_000_000), Network: "tcp", To: "203.0.113.10:80",
		Send: [][]byte{[]byte("GET / HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n")}}
	plain, err := json.Marshal([]attack.Attempt{ask})
	if err != nil {
		t.Fatal(err)
	}
	var results []attack.Result
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); {
		out, err := a.exec(t, plain, "fire")
		if err == nil {
			err = json.Unmarshal(out, &results)
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(results[0].Got), "web.test at ") {
			return
		}
	}
	t.Fatalf("the proxy does not work again: %+v %s", results, results[0].Got)
}

// sidecar is the id of the proxy's container.
func (w *isolation) sidecar(t *testing.T) string {
	t.Helper()
	id, _, _ := strings.Cut(w.docker(t, "ps", "--quiet", "--filter", "name=sluice-proxy-"), "\n")
	if id == "" {
		t.Fatal("there is no sidecar")
	}
	return id
}

// arrive waits until everything that a container is allowed has arrived.
func (w *isolation) arrive(ctx context.Context, s *started) error {
	for _, one := range s.all {
		if must, _ := attempts.Allowlist.Passes(one, false, true); !must {
			continue
		}
		for w.count(one) == 0 && w.flows(one) == 0 {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s: %s is allowed and does not arrive: %w", s.name, one.Name, ctx.Err())
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}

// counts returns how many messages of all attempts have come to any place.
func (w *isolation) counts(all []*attempts.Attempt) (n int) {
	for _, one := range all {
		n += w.count(one)
	}
	return n
}

// awaitFact waits until the engine says something of a container.
func (w *isolation) awaitFact(t *testing.T, name, format, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = w.docker(t, "inspect", "--format", format, name); got == want {
			return
		}
	}
	t.Fatalf("%s of %s is %s, not %s", format, name, got, want)
}

// awaitState waits until the controller says that a container is in a state.
func (w *isolation) awaitState(t *testing.T, id, state string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = w.sluice(t, "status", id); strings.Contains(got, " "+state+"\n") {
			return
		}
	}
	t.Fatalf("the container is not %s but\n%s", state, got)
}

// sluiceFails runs the command line, which is expected to fail.
func (w *isolation) sluiceFails(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(lab.bin, "sluice"), append(args, "--socket", theController.socket())...)
	out, err := command.CombinedOutput()
	return string(out), err
}
