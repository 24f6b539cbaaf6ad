package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/control"
)

// asProgram in the environment makes the test's binary be the program.
const asProgram = "SLUICE_PROXY_TEST"

// process runs the program as one of its own, and returns where it serves.
func process(t *testing.T, log *output, argv []string, environ ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Args, cmd.Env = argv, append(environ, asProgram+"=1")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// Health finds the proxy that runs, whatever it was told, and asks it; no client's record and no counter shows that.
func TestHealthFindsTheProxy(t *testing.T) {
	dir, err := os.MkdirTemp("", "sluice") // short enough for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "policy.json")
	write(t, file, `{"network_mode":"no-network"}`)
	for _, row := range []struct {
		name    string
		argv    func(port string) []string
		environ func(port string) []string
	}{
		{"flags", func(port string) []string {
			return []string{"sluice-proxy", "--policy", file, "--listen", "127.0.0.1:" + port, "--user", "u"}
		}, func(string) []string { return []string{"SLUICE_PASSWORD=secret-word"} }},
		{"serve", func(port string) []string {
			return []string{"/usr/local/bin/sluice-proxy", "serve", "--policy=" + file, "--listen=:" + port}
		}, nil},
		{"control", func(string) []string {
			return []string{"sluice-proxy", "--policy", file, "--listen", "127.0.0.1:0", "--control", dir}
		}, nil},
		{"environment", func(string) []string { return []string{"sluice-proxy"} }, func(port string) []string {
			return []string{"SLUICE_POLICY=" + file, "SLUICE_LISTEN=127.0.0.1:" + port + ",127.0.0.1:0"}
		}},
		{"agentcompass", func(string) []string {
			return []string{"/usr/local/bin/sluice-proxy", "python", "/opt/agentcompass/docker_egress_proxy.py"}
		}, func(port string) []string {
			return []string{"AGENTCOMPASS_PROXY_TOKEN=secret-word", "AGENTCOMPASS_POLICY_PATH=" + file, "AGENTCOMPASS_PROXY_PORT=" + port}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var log output
			_, port, _ := net.SplitHostPort(freeAddress(t))
			var environ []string
			if row.environ != nil {
				environ = row.environ(port)
			}
			p := process(t, &log, row.argv(port), environ...)
			wait := func(what string, ok func() bool) {
				t.Helper()
				for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("never: %s: %s", what, log.String())
					}
				}
			}
			wait("ready", func() bool {
				return strings.Contains(log.String(), "msg=ready") || strings.Contains(log.String(), "ready on port")
			})
			code, stdout, stderr := try(t, "sluice-proxy health --json")
			var h control.Health
			if err := json.Unmarshal([]byte(stdout), &h); code != 0 || err != nil || !h.OK || h.Milliseconds <= 0 {
				t.Fatalf("health: %d %s %s, %v", code, stdout, stderr, err)
			}
			if code, stdout, stderr := try(t, "sluice-proxy health"); code != 0 || !strings.HasPrefix(stdout, "healthy: ") {
				t.Errorf("health: %d %s %s", code, stdout, stderr)
			}
			if err := p.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(); err != nil {
				t.Errorf("ended with %v", err)
			}
			for _, word := range []string{`"verdict"`, "secret-word"} {
				if strings.Contains(log.String(), word) {
					t.Errorf("%s in the log: %s", word, log.String())
				}
			}
			if code, _, stderr := try(t, "sluice-proxy health"); code != 1 || !strings.Contains(stderr, "no proxy runs here") {
				t.Errorf("without a proxy: %d %s", code, stderr)
			}
		})
	}
}

// The first signal waits for what is open, the second one does not, and records are written all the same.
func TestSignals(t *testing.T) {
	dir := t.TempDir()
	file, log, target := filepath.Join(dir, "policy.json"), filepath.Join(dir, "audit.log"), echo(t).String()
	write(t, file, allow(target))
	address := freeAddress(t)
	var out output
	p := process(t, &out, []string{"sluice-proxy", "--policy", file, "--listen", address, "--drain", "1h", "--audit", log})
	logged := func(text string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !strings.Contains(out.String(), text); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s in %s", text, out.String())
			}
		}
	}
	logged("msg=ready")
	open := connect(t, address, target, "").want(200)
	p.Process.Signal(syscall.SIGTERM)
	logged("draining")
	open.ping()
	p.Process.Signal(syscall.SIGINT)
	open.cut()
	if err := p.Wait(); err != nil {
		t.Errorf("ended with %v: %s", err, out.String())
	}
	if text, _ := os.ReadFile(log); bytes.Count(text, []byte("\n")) != 1 {
		t.Errorf("records: %q", text)
	}
}

func TestHealthThroughTheListener(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	write(t, file, `"no-network"`)
	p := launch(t, []string{"sluice-proxy", "--policy", file, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"})
	if code, stdout, stderr := try(t, "sluice-proxy health --listen "+p.listen); code != 0 || !strings.HasPrefix(stdout, "healthy: through the proxy") {
		t.Errorf("health: %d %s %s", code, stdout, stderr)
	}
	metrics := p.logged(`"serving metrics" address=(\S+)`)
	if text := get(t, "http://"+metrics+"/health", http.StatusOK); text != "ok\n" {
		t.Errorf("health on the metrics' address: %q", text)
	}
	if text := get(t, "http://"+metrics+"/metrics", http.StatusOK); strings.Contains(text, "sluice_connections_total{") {
		t.Errorf("the health check was counted: %s", text)
	}
	for name, line := range map[string]string{
		"nobody-there": "--listen " + freeAddress(t), "unknown-port": "--listen 127.0.0.1:0", "no-address": "--listen here",
		"no-proxy": "--listen " + echo(t).String(), "silent": "--timeout 100ms --listen " + silent(t),
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := try(t, "sluice-proxy health "+line)
			if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "sluice-proxy: ") {
				t.Errorf("%d %q %q", code, stdout, stderr)
			}
			t.Log(stderr)
		})
	}
}

// silent accepts connections and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestParseRunning(t *testing.T) {
	for _, row := range []struct{ argv, environ, want string }{
		{"sluice-proxy --policy f", "", " :8080"},
		{"sluice-proxy --policy f --listen 127.0.0.1:1 --listen :2", "", " 127.0.0.1:1"},
		{"sluice-proxy serve --control /run/c", "", "/run/c :8080"},
		{"sluice-proxy", "SLUICE_CONTROL=/run/c SLUICE_POLICY=f", "/run/c :8080"},
		{"python3 /x/docker_egress_proxy.py", "AGENTCOMPASS_PROXY_TOKEN=t AGENTCOMPASS_POLICY_PATH=f SLUICE_LISTEN=:1", " :8080"},
		{"sluice-proxy health", "", "none"},
		{"sluice-proxy ctl status", "", "none"},
		{"sluice-proxy serve --no-such-flag", "", "none"},
		{"python -c x", "", "none"},
		{"", "", "none"},
	} {
		r, ok := parseRunning(strings.Fields(row.argv), system{environ: strings.Fields(row.environ)})
		got := fmt.Sprintf("%s %s", r.control, r.listen)
		if !ok {
			got = "none"
		}
		if got != row.want {
			t.Errorf("%q with %q: got %q, want %q", row.argv, row.environ, got, row.want)
		}
	}
}

func TestFindRunning(t *testing.T) {
	const (
		ours  = "sluice-proxy\x00--policy\x00f\x00--listen\x00:1\x00"
		other = "sluice-proxy\x00--policy\x00f\x00--listen\x00:2\x00"
	)
	for _, row := range []struct {
		name  string
		files map[string]string // "exe" is which program, or hidden
		want  string
	}{
		{"none", nil, "no proxy runs here"},
		{"one", map[string]string{"1/exe": "own", "1/cmdline": ours}, ":1"},
		{"below-an-init", map[string]string{"1/exe": "init", "1/cmdline": "/sbin/docker-init\x00--\x00sluice-proxy\x00", "7/exe": "own", "7/cmdline": ours}, ":1"},
		{"two", map[string]string{"1/exe": "own", "1/cmdline": ours, "2/exe": "own", "2/cmdline": other}, "2 proxies run here"},
		{"two-programs", map[string]string{"1/exe": "own", "1/cmdline": ours, "2/exe": "newer", "2/cmdline": other}, ":1"},
		{"hidden", map[string]string{"1/cmdline": other}, ":2"},
		{"hidden-other", map[string]string{"1/exe": "own", "1/cmdline": ours, "2/cmdline": other}, ":1"},
		{"hidden-program", map[string]string{"1/cmdline": "nginx\x00"}, "no proxy runs here"},
		{"health-check", map[string]string{"1/exe": "own", "1/cmdline": "sluice-proxy\x00health\x00"}, "no proxy runs here"},
		{"variable", map[string]string{"1/exe": "own", "1/cmdline": "sluice-proxy\x00", "1/environ": "A=b\x00SLUICE_LISTEN=:3\x00"}, ":3"},
		{"kernel-thread", map[string]string{"2/cmdline": ""}, "no proxy runs here"},
	} {
		t.Run(row.name, func(t *testing.T) {
			proc := t.TempDir()
			for _, name := range []string{"own", "init", "newer"} {
				write(t, filepath.Join(proc, name), name)
			}
			link(t, proc, "self/exe", "own")
			for name, text := range row.files {
				if strings.HasSuffix(name, "/exe") {
					link(t, proc, name, text)
					continue
				}
				if err := os.MkdirAll(filepath.Dir(filepath.Join(proc, name)), 0o755); err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(proc, name), text)
			}
			got, err := findRunning(proc)
			if err != nil && !strings.Contains(err.Error(), row.want) || err == nil && got.listen != row.want {
				t.Errorf("got %+v, %v; want %s", got, err, row.want)
			}
		})
	}
}

func link(t *testing.T, proc, name, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(proc, name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(proc, to), filepath.Join(proc, name)); err != nil {
		t.Fatal(err)
	}
}
