package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/controller/api"
	"sluice/e2e/lab/attack"
	"sluice/e2e/lab/internet"
)

// TestEscape tries the ways out of a container's network that need no packet. In a container with more rights, which is
// never attached, those that its kernel knows work.
func TestEscape(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`"no-network"`), 0o600); err != nil {
		t.Fatal(err)
	}
	// A program may trace what it has started itself, and sockets of AF_XDP have no queue to send by: the controller holds
	// them.
	own := []string{"family-xdp", "trace-of-first-process"}
	rights := []string{"network-namespace", "mount-namespace", "user-namespace", "user-and-network-namespace", "own-namespace-entered", "rules-in-bpf",
		"rules-listed", "route", "family-vsock"}
	attached := []string{"family-vsock"}
	if labEngine.Dir != "" {
		attached = nil // newer engines' own profile refuses it
	}
	for _, row := range []struct {
		name  string
		start []string
		works []string // of those in rights, and no others but own
	}{
		{"escape-free", []string{"docker", "run", "--detach", "--name", "escape-free", "--cap-add", "NET_ADMIN", "--cap-add", "SYS_ADMIN",
			"--security-opt", "seccomp=unconfined", attackerTag, "wait"}, rights},
		{"escape-attached", []string{"docker", "run", "--detach", "--name", "escape-attached", attackerTag, "wait"}, attached},
		{"escape-run", []string{filepath.Join(lab.bin, "sluice"), "run", "--socket", theController.socket(), "--detach", "--name", "escape-run",
			"--policy", file, "--", attackerTag, "wait"}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			start := exec.CommandContext(t.Context(), row.start[0], row.start[1:]...)
			start.Env = append(start.Environ(), "DOCKER_HOST="+lab.DockerHost())
			if out, err := start.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Cleanup(func() {
				if _, err := docker("rm", "--force", row.name); err != nil {
					t.Error(err)
				}
			})
			out, err := docker("exec", row.name, "/attacker", "escape")
			if err != nil {
				t.Fatal(err)
			}
			var all []attack.Escape
			if err := json.Unmarshal([]byte(out), &all); err != nil {
				t.Fatal(err)
			}
			for _, e := range all {
				want := slices.Contains(row.works, e.Name)
				if works := e.Error == ""; works != want && !(works && (slices.Contains(own, e.Name) || row.name == "escape-free")) {
					t.Errorf("%s: %q, want it to work: %v", e.Name, e.Error, want)
				}
			}
			if len(all) < len(rights) {
				t.Errorf("only %d ways were tried", len(all))
			}
		})
	}
}

// TestTunnelByNames carries data out in names under an allowed wildcard, as fast as it can, and looks at how much of that
// comes to the name server: with the options that bound it, no more than they say. Of a name that is allowed itself, what
// can be varied is which kinds of question come to the name server, once in an answer's lifetime.
func TestTunnelByNames(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	const name = "tunnels"
	if _, err := docker("run", "--detach", "--name", name, attackerTag, "wait"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := docker("rm", "--force", name); err != nil {
			t.Error(err)
		}
	})
	client := api.Client{Socket: theController.socket()}
	if _, err := client.Attach(t.Context(), api.Attach{Container: name, Policy: json.RawMessage(`"no-network"`)}); err != nil {
		t.Fatal(err)
	}
	const seconds = 2 // that attack.Flood takes
	const tries = 4   // that the filter makes where no answer comes, at most
	for _, row := range []struct {
		name, options string
		most          int // questions that may leave; 0 is any number
	}{
		{"free", "", 0},
		{"exact-name", "", attack.Varieties * tries}, // the rest is answered from the cache
		{"names", `, "dns_unique_names": 100`, 100},
		{"bytes", `, "dns_question_bytes": 10000`, 10000 / 200}, // each name is longer than 200 bytes
		{"no-wildcard", "", -1},
	} {
		t.Run(row.name, func(t *testing.T) {
			zone := fmt.Sprintf("tunnel-%s.any.test", row.name)
			target, names, itself := "*."+zone, "*."+zone, ""
			switch row.name {
			case "no-wildcard":
				target = zone
			case "exact-name":
				target, names, itself = zone, zone, "1"
			}
			document := fmt.Sprintf(`{"network_mode": "allowlist", "allowed_hosts": [%q]%s}`, target, row.options)
			if _, err := client.Set(t.Context(), name, json.RawMessage(document), 0); err != nil {
				t.Fatal(err)
			}
			out, err := docker("exec", "--env", fmt.Sprintf("ASK=%s:53", internet.Resolver), "--env", "ZONE="+zone, "--env", "ITSELF="+itself, name, "/attacker", "flood")
			if err != nil {
				t.Fatal(err)
			}
			asked, err := strconv.Atoi(strings.TrimSpace(out))
			if err != nil {
				t.Fatal(err)
			}
			left := counts(t).Questions(names)
			t.Logf("asked %d questions, %d left: %d a second", asked, left, left/seconds)
			switch {
			case asked < 100:
				t.Errorf("it asked for %d questions only: nothing is tested", asked)
			case row.most < 0 && left > 0, row.most > 0 && left > row.most:
				t.Errorf("LEAK: %d questions left, want %d at most", left, max(0, row.most))
			case row.most >= 0 && left == 0:
				t.Error("no question left, although the policy lets some")
			}
		})
	}
}
