package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/e2e/harbor"
	"sluice/e2e/lab/client"
	"sluice/images"
)

// harborCompose is a task of three services. Two share the sidecar's network, as Harbor lets all do that say nothing of
// networks; the third has its own and stands for what is beside a task.
const harborCompose = `
services:
  main: {}
  attacker:
    image: ` + attackerTag + `
    command: [wait]
  apart:
    image: ` + attackerTag + `
    command: [wait]
    networks: [default]
networks:
  default:
    enable_ipv6: true
    ipam: {config: [{subnet: 10.66.0.0/24}, {subnet: "fd66:66::/64"}]}
`

// harborTask is a task that runs.
type harborTask struct {
	*harbor.Task
	image string
}

// newHarbor loads the image under the name that the released Harbor looks for.
func newHarbor(t *testing.T) *harborTask {
	t.Helper()
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	cache, err := client.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := harbor.Install(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	config, err := composeConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	environ := append(os.Environ(), "DOCKER_HOST="+lab.DockerHost(), "DOCKER_CONFIG="+config)
	load := exec.CommandContext(t.Context(), filepath.Join(lab.bin, "sluice"), "images", "harbor", "--json", "--harbor-package", pkg)
	load.Env = environ
	var problems strings.Builder
	load.Stderr = &problems
	out, err := load.Output()
	if err != nil || problems.Len() > 0 {
		t.Fatalf("sluice images harbor: %v: %s%s", err, out, &problems)
	}
	var loaded struct{ Image string }
	if err := json.Unmarshal(out, &loaded); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := docker("rmi", loaded.Image); err != nil {
			t.Error(err)
		}
	})
	return &harborTask{image: loaded.Image, Task: &harbor.Task{
		Project: "harbor-task", Package: pkg, Sidecar: loaded.Image, Image: client.Tag,
		Compose: harborCompose, Services: []string{"attacker"}, Mode: "public", Environ: environ,
	}}
}

// up starts the task; it is removed at the end of the test.
func (h *harborTask) up(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := h.Run(context.Background(), "logs", "--no-log-prefix", harbor.Sidecar)
			t.Log(records.ReplaceAllString(log, ""))
		}
		if err := h.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := h.Up(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
}

var inForce = regexp.MustCompile(`(?s)^mode: .*generation: [0-9]+\n`) // in what show prints

var records = regexp.MustCompile(`(?m)^\{.*\n`) // of the audit, in a log

// policy switches, and fails the test if that fails.
func (h *harborTask) policy(t *testing.T, args ...string) string {
	t.Helper()
	out, err := h.Policy(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sh runs a shell command in a service.
func (h *harborTask) sh(t *testing.T, command string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	return h.Run(ctx, "exec", "--no-TTY", "main", "sh", "-c", command)
}

// works and fails run a command that has to succeed, or to be refused.
func (h *harborTask) works(t *testing.T, command string) {
	t.Helper()
	if out, err := h.sh(t, command); err != nil {
		t.Errorf("%s: %v: %s", command, err, out)
	}
}

func (h *harborTask) fails(t *testing.T, command string) {
	t.Helper()
	if out, err := h.sh(t, command); err == nil {
		t.Errorf("LEAK: %s: %s", command, out)
	}
}

// TestHarborImage checks that the name needs no Harbor to be known, as it is usually installed.
func TestHarborImage(t *testing.T) {
	h := newHarbor(t)
	tag, known, err := images.HarborTag("", "linux/"+archOf(t))
	if err != nil || !known || tag != h.image {
		t.Errorf("without a package %q, %v, %v; of the package %q", tag, known, err, h.image)
	}
}

func archOf(t *testing.T) string {
	t.Helper()
	arch, err := docker("version", "--format", "{{.Server.Arch}}")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(arch)
}

// TestHarbor takes a task through the modes as Harbor does.
func TestHarbor(t *testing.T) {
	h := newHarbor(t)
	h.Mode, h.Hosts = "allowlist", []string{"web.test", "*.any.test", "203.0.113.40", "198.51.100.0/24"}
	h.up(t)
	const curl = "curl --fail --silent --show-error --max-time 10 --output /dev/null "

	allowed := func(t *testing.T) {
		t.Helper()
		h.works(t, curl+"https://web.test/")
		h.works(t, curl+"http://web.test/")
		h.works(t, curl+"https://a.b.any.test/")
		h.works(t, curl+"http://203.0.113.40/")
		h.works(t, curl+"http://198.51.100.7:8080/ || "+curl+"http://198.51.100.7/")
		h.fails(t, curl+"https://any.test/")
		h.fails(t, curl+"https://evil.test/")
		h.fails(t, curl+"http://203.0.113.41/")
		h.fails(t, curl+"--resolve evil.test:443:203.0.113.10 https://evil.test/")
		h.fails(t, curl+"--header 'Host: evil.test' http://web.test/")
	}
	t.Run("allowlist", func(t *testing.T) {
		allowed(t)
		if out := h.policy(t, "show"); !strings.Contains(out, "mode: allowlist\n") || !strings.Contains(out, "allowed: *.any.test\n") {
			t.Errorf("show: %s", out)
		}
		if out := h.policy(t, "rules"); !strings.Contains(out, "table inet sluice") || strings.Contains(out, "mark set 0x51\n") {
			t.Errorf("rules: %s", out)
		}
	})
	t.Run("no-network", func(t *testing.T) {
		h.policy(t, "deny-all")
		for _, url := range []string{"https://web.test/", "http://203.0.113.40/", "http://10.66.0.1/"} {
			h.fails(t, curl+url)
		}
		h.works(t, "python3 -m http.server --bind 127.0.0.1 8123 >/dev/null 2>&1 & sleep 0.1; "+curl+"--retry 5 --retry-connrefused http://127.0.0.1:8123/")
	})
	t.Run("public", func(t *testing.T) {
		h.policy(t, "allow-all")
		h.works(t, curl+"https://evil.test/")
		h.works(t, "ping -c 1 -W 5 203.0.113.66")
		h.works(t, "dig +time=5 +tries=1 @8.8.8.8 evil.test")
		h.fails(t, curl+"http://169.254.169.254/")
	})
	t.Run("bad-input", func(t *testing.T) {
		before := inForce.FindString(h.policy(t, "show"))
		for _, row := range [][]string{{"allow", "http://web.test"}, {"allow", "web.test", "10.0.0.1/8"}, {"allow_all"}, {"deny-all", "x"}, {}} {
			if out, err := h.Policy(t.Context(), row...); err == nil {
				t.Errorf("%q succeeds: %s", row, out)
			}
		}
		if after := inForce.FindString(h.policy(t, "show")); after != before || after == "" {
			t.Errorf("%s; before %s", after, before)
		}
	})
	t.Run("counted", func(t *testing.T) {
		h.policy(t, "deny-all")
		count := regexp.MustCompile(`kernel: ([0-9]+) packets`)
		before := count.FindString(h.policy(t, "show"))
		h.fails(t, "ping -c 1 -W 1 203.0.113.66")
		if after := count.FindString(h.policy(t, "show")); after == before || after == "" {
			t.Errorf("%q, and %q before a ping was refused", after, before)
		}
		recorded := regexp.MustCompile(`(?m)^\{.*"generation":[0-9]+,"protocol":"icmp","target":"203\.0\.113\.66","verdict":"refuse","reason":"no-network","decision":"[0-9a-z]+"\}$`)
		for deadline := time.Now().Add(waitLimit); ; time.Sleep(50 * time.Millisecond) {
			log, err := h.Run(t.Context(), "logs", "--no-log-prefix", harbor.Sidecar)
			if err != nil {
				t.Fatal(err)
			}
			if recorded.MatchString(log) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("no record of the ping: %s", log)
			}
		}
		h.policy(t, "allow-all")
	})
	t.Run("switches", func(t *testing.T) {
		took := regexp.MustCompile(`([0-9.]+) ms\)`)
		for range 3 {
			for _, row := range [][]string{{"deny-all"}, append([]string{"allow"}, h.Hosts...), {"allow-all"}} {
				out := h.policy(t, row...)
				m := took.FindStringSubmatch(out)
				if m == nil {
					t.Fatalf("%q: %s", row, out)
				}
				ms, err := strconv.ParseFloat(m[1], 64)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%s: %.1f ms", row[0], ms)
			}
		}
	})
	t.Run("killed", func(t *testing.T) {
		h.policy(t, append([]string{"allow"}, h.Hosts...)...)
		allowed(t)
		if _, err := h.Run(t.Context(), "kill", "--signal", "KILL", harbor.Sidecar); err != nil {
			t.Fatal(err)
		}
		for _, url := range []string{"https://web.test/", "https://evil.test/", "http://203.0.113.41/"} {
			h.fails(t, curl+url)
		}
		h.fails(t, "ping -c 1 -W 1 203.0.113.66")
	})
}

// TestHarborEnds checks that a sidecar that is told to end leaves nothing open, that one which comes later cannot be
// reached by who has the former one's network, and that one which cannot begin is never ready.
func TestHarborEnds(t *testing.T) {
	h := newHarbor(t)
	h.up(t)
	const curl = "curl --fail --silent --show-error --max-time 10 --output /dev/null "
	h.works(t, curl+"https://web.test/")
	began := time.Now()
	if _, err := h.Run(t.Context(), "stop", harbor.Sidecar); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped after %v", time.Since(began))
	h.fails(t, curl+"http://203.0.113.40/")
	h.fails(t, "ping -c 1 -W 1 203.0.113.66")
	if _, err := h.Run(t.Context(), "start", harbor.Sidecar); err != nil {
		t.Fatal(err)
	}
	h.fails(t, curl+"http://203.0.113.40/")
}

func TestHarborBadPolicy(t *testing.T) {
	h := newHarbor(t)
	h.Mode, h.Hosts = "allowlist", []string{"web.test", "https://evil.test/"}
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := h.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	err := h.Up(t.Context(), dir)
	log, logErr := h.Run(t.Context(), "logs", harbor.Sidecar)
	if err == nil || logErr != nil || !strings.Contains(log, `"https://evil.test/": is a URL`) {
		t.Errorf("%v: %v: %s", err, logErr, log)
	}
}
