package e2e

import (
	"context"
	"encoding/json"
	"flag"
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
	"github.com/docker/docker/api/types/versions"
	"golang.org/x/sync/errgroup"

	"sluice/e2e/lab/attack"
	"sluice/e2e/lab/attempts"
)

var starts = flag.Int("starts", 100, "how many containers TestStart starts, half of them by each way")

// TestStart starts containers that send from their first instruction on, by kernel sockets and as whole frames. Nothing
// that their policy refuses may arrive anywhere at any time (I-54), and each gets what its policy allows (L-37).
func TestStart(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	w := newIsolation(t)
	t.Run("managed-network", func(t *testing.T) { w.startManaged(t, *starts/2) })
	t.Run("run", func(t *testing.T) { w.startByRun(t, *starts/2) })
}

// atOnce is how many containers start and run at the same time.
const atOnce = 10

// started is a container that is to start.
type started struct {
	name string
	all  []*attempts.Attempt
	args []string
}

func (s *started) attempts(t *testing.T) string {
	t.Helper()
	var plain []attack.Attempt
	for _, one := range s.all {
		plain = append(plain, one.Attempt)
	}
	text, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	return "ATTEMPTS=" + string(text)
}

// startManaged starts containers on a network where they are silent until they are admitted. Their policy is in a label.
func (w *isolation) startManaged(t *testing.T, count int) {
	m := w.newManaged(t)
	w.startAll(t, count, func(i int) *started {
		return m.plan(t, fmt.Sprint("managed-", i), 2+i%50, "--label", labelled+attempts.Allowlist.Document)
	})
}

// ownHardware are the options that give a container a hardware address, where the engine does not give it this one.
func (w *isolation) ownHardware(h net.HardwareAddr) []string {
	if versions.LessThan(w.engine.ClientVersion(), "1.44") {
		return nil
	}
	return []string{"--mac-address", h.String()}
}

// startByRun starts containers with "sluice run".
func (w *isolation) startByRun(t *testing.T, count int) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(attempts.Allowlist.Document), 0o600); err != nil {
		t.Fatal(err)
	}
	gateways := [2]netip.Addr{netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("fd64::1")} // the host has them too
	w.startAll(t, count, func(i int) *started {
		s := &started{name: fmt.Sprintf("%srun-%d", w.prefix, i)}
		around := attempts.Surroundings{Links: []attempts.Link{{Device: "eth0", Gateway: gateways}}}
		s.all = around.Starting()
		s.args = []string{filepath.Join(lab.bin, "sluice"), "run", "--socket", theController.socket(), "--detach", "--name", s.name,
			"--policy", file, "--network", w.prefix + "user", "--env", s.attempts(t), "--", attackerTag, "start"}
		return s
	})
}

// startAll starts containers, a few at a time, waits until each has got what it may have, and checks that nothing else
// came.
func (w *isolation) startAll(t *testing.T, count int, plan func(i int) *started) {
	t.Helper()
	for first := 0; first < count; first += atOnce {
		var batch []*started
		for i := first; i < min(first+atOnce, count); i++ {
			batch = append(batch, plan(i))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*waitLimit)
		var tasks errgroup.Group
		for _, s := range batch {
			tasks.Go(func() error { return w.startOne(ctx, s) })
		}
		err := tasks.Wait()
		cancel()
		w.mark(t)
		for _, s := range batch {
			w.checkRefused(t, s.name, s.all, attempts.Allowlist)
			if _, err := docker("rm", "--force", s.name); err != nil {
				t.Error(err)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.waitForNone(t)
}

// startOne starts a container and returns when everything that it is allowed has arrived.
func (w *isolation) startOne(ctx context.Context, s *started) error {
	command := exec.CommandContext(ctx, s.args[0], s.args[1:]...)
	command.Env = append(command.Environ(), "DOCKER_HOST="+lab.DockerHost())
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("start %s: %w: %s", s.name, err, out)
	}
	return w.arrive(ctx, s)
}

// flows returns how often an attempt's flow has come to any place.
func (w *isolation) flows(one *attempts.Attempt) (n int) {
	if !one.Unmistakable() {
		return 0
	}
	for _, p := range w.taps {
		n += p.Count(one.Flow)
	}
	return n
}

// checkRefused checks that nothing that a policy refuses has ever come.
func (w *isolation) checkRefused(t *testing.T, who string, all []*attempts.Attempt, p *attempts.Policy) {
	t.Helper()
	for _, one := range all {
		if _, may := p.Passes(one, false, true); may {
			continue
		}
		for _, place := range w.taps {
			if n := place.Count(one.Token); n > 0 {
				t.Errorf("LEAK: %s: %d packets of %s arrive at %s", who, n, one.Name, place.Name)
			} else if one.Unmistakable() && one.Flow != "" && place.Count(one.Flow) > 0 {
				t.Errorf("LEAK: %s: %s arrives at %s", who, one.Name, place.Name)
			}
		}
	}
}

// waitForNone waits until the controller has no containers any more, and their holders are gone.
func (w *isolation) waitForNone(t *testing.T) {
	t.Helper()
	var left string
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		left = w.sluice(t, "ls", "--json")
		if strings.TrimSpace(left) == "[]" || strings.TrimSpace(left) == "null" {
			return
		}
	}
	t.Errorf("the controller still has %s", left)
}

// networkPrefixes are the subnets of a network, by family.
func (w *isolation) networkPrefixes(ctx context.Context, name string) (both [2]netip.Prefix, err error) {
	n, err := w.engine.NetworkInspect(ctx, name, network.InspectOptions{})
	if err != nil {
		return both, err
	}
	for _, c := range n.IPAM.Config {
		p, err := netip.ParsePrefix(c.Subnet)
		if err != nil {
			return both, err
		}
		if p.Addr().Is4() {
			both[0] = p
		} else {
			both[1] = p
		}
	}
	return both, nil
}

// nth is the n-th address of a network.
func nth(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}
