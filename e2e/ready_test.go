package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/e2e/lab/client"
	"sluice/images"
)

// BenchmarkReady measures how long a proxy takes to be ready, ours and AgentCompass's by turns, each started as the
// provider starts it: from "docker run" until its ready line, and of that from the start of its process on.
//
//	go test ./e2e -run '^$' -bench Ready -benchtime 10x -run-docker
func BenchmarkReady(b *testing.B) {
	if !*runDocker {
		b.Skip("needs root and Docker: -run-docker")
	}
	path, err := exec.Command(lab.python, "-c", "import agentcompass.environments.docker_egress_proxy as m; print(m.__file__)").Output()
	if err != nil {
		b.Fatal(err)
	}
	dir := filepath.Join(b.TempDir(), "policy")
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "policy.json"), []byte(`{"network_mode":"public"}`), 0o644); err != nil {
		b.Fatal(err)
	}
	measured := map[string][]float64{}
	for b.Loop() {
		for name, image := range map[string]string{"sluice": images.ProxyTag, "agentcompass": client.Tag} {
			whole, process := ready(b, image, strings.TrimSpace(string(path)), dir)
			measured["ms/run-"+name] = append(measured["ms/run-"+name], ms(whole))
			measured["ms/process-"+name] = append(measured["ms/process-"+name], ms(process))
		}
	}
	b.ReportMetric(0, "ns/op")
	for unit, all := range measured {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], unit)
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ready starts a proxy and returns the time to its ready line, from the command and from the start of its process.
func ready(b *testing.B, image, script, policies string) (whole, process time.Duration) {
	b.Helper()
	const name = "ready-proxy"
	began := time.Now()
	if _, err := docker("run", "--detach", "--name", name, "--read-only", "--user", "65534:65534", "--cap-drop", "ALL",
		"--security-opt", "no-new-privileges", "--pids-limit", "64", "--memory", "128m",
		"-e", "PYTHONDONTWRITEBYTECODE=1", "-e", "AGENTCOMPASS_PROXY_TOKEN=token",
		"-e", "AGENTCOMPASS_POLICY_PATH=/opt/agentcompass/policy/policy.json", "-e", "AGENTCOMPASS_PROXY_PORT=8080",
		"-v", script+":/opt/agentcompass/docker_egress_proxy.py:ro", "-v", policies+":/opt/agentcompass/policy:ro",
		image, "python", "/opt/agentcompass/docker_egress_proxy.py"); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if _, err := docker("rm", "--force", name); err != nil {
			b.Error(err)
		}
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		logs, err := docker("logs", "--timestamps", name)
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.Lines(logs) {
			if stamp, text, _ := strings.Cut(line, " "); strings.Contains(text, "ready on port") {
				at := parseTime(b, stamp)
				started, err := docker("inspect", "--format", "{{.State.StartedAt}}", name)
				if err != nil {
					b.Fatal(err)
				}
				return at.Sub(began), at.Sub(parseTime(b, strings.TrimSpace(started)))
			}
		}
		if time.Now().After(deadline) {
			b.Fatal(fmt.Errorf("%s is not ready after a minute: %s", image, logs))
		}
	}
}

func parseTime(b *testing.B, s string) time.Time {
	b.Helper()
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		b.Fatal(err)
	}
	return t
}
