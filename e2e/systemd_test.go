package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/e2e/lab/client"
	"sluice/e2e/lab/internet"
)

// unit is a directory with the units of examples/systemd, which name the program under test.
func unit(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"sluice.service", "sluice.socket"} {
		text, err := os.ReadFile(filepath.Join("..", "examples", "systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.ReplaceAll(string(text), "/usr/local/bin/sluice", filepath.Join(lab.bin, "sluice")))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// setting is what a unit says of a key.
func setting(t *testing.T, dir, key string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "sluice.service"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("the unit has no %s", key)
	}
	return string(m[1])
}

// TestUnitsAreValid asks systemd what it makes of the units. It need not run for that.
func TestUnitsAreValid(t *testing.T) {
	if !*runDocker {
		t.Skip("needs systemd-analyze and the programs: go test ./e2e -run-docker")
	}
	dir := unit(t)
	// Of its exposure 0.4 are for the families AF_PACKET and AF_XDP, which hold queues and prove that frames are refused.
	for _, args := range [][]string{
		{"verify", "--man=no", "--recursive-errors=no", filepath.Join(dir, "sluice.service"), filepath.Join(dir, "sluice.socket")},
		{"security", "--offline=true", "--no-pager", "--threshold=57", filepath.Join(dir, "sluice.service")},
	} {
		out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}
}

// confined is a command that runs with what the unit leaves it: its capabilities, its mask of modes, no new
// privileges, and with a socket from systemd if there is one. What it asks the kernel for is written to trace.
func confined(t *testing.T, dir string, socket *os.File, trace string, args ...string) *exec.Cmd {
	t.Helper()
	bounding := "-all"
	for _, c := range strings.Fields(setting(t, dir, "CapabilityBoundingSet")) {
		bounding += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	script := "umask " + setting(t, dir, "UMask") + "\n"
	if socket != nil {
		script += "export LISTEN_PID=$$ LISTEN_FDS=1\n"
	}
	script += `exec setpriv --no-new-privs --inh-caps=-all --bounding-set "$0" "$@"`
	command := exec.Command("strace", append([]string{"-D", "-f", "-qq", "--signal=none", "-o", trace, "sh", "-c", script, bounding}, args...)...)
	command.Env = append(command.Environ(), "DOCKER_HOST="+lab.DockerHost())
	if socket != nil {
		command.ExtraFiles = []*os.File{socket}
	}
	return command
}

// TestUnit runs the controller as the unit does, without systemd: what the unit leaves it is enough, it asks the kernel for
// nothing that the unit's filter refuses, and a call that comes while it is started again waits and is answered.
func TestUnit(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.kill(); err != nil { // a host has one
		t.Fatal(err)
	}
	const name = "e2e-unit"
	dir := unit(t)
	run, err := os.MkdirTemp("", "sluice-e2e-") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(run)
	path := filepath.Join(run, "sluice.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file, err := listener.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	var traces []string
	serve := func(socket *os.File, args ...string) *exec.Cmd {
		traces = append(traces, filepath.Join(dir, fmt.Sprint("trace", len(traces))))
		command := confined(t, dir, socket, traces[len(traces)-1], append([]string{filepath.Join(lab.bin, "sluice"), "serve", "--socket", path,
			"--upstream", internet.Resolver.String(), "--keep-bridges", filepath.Join(run, "bridges")}, args...)...)
		log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		command.Stdout, command.Stderr = log, log
		if err := lab.InEngineNamespace(command.Start); err != nil {
			t.Fatal(err)
		}
		return command
	}
	said := func(args ...string) (string, error) {
		command := exec.Command(filepath.Join(lab.bin, "sluice"), args...)
		command.Env = append(command.Environ(), "SLUICE_SOCKET="+path, "DOCKER_HOST="+lab.DockerHost())
		out, err := command.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("sluice %q: %w\n%s", args, err, out)
		}
		return string(out), nil
	}
	sluice := func(args ...string) error {
		_, err := said(args...)
		return err
	}
	t.Cleanup(func() {
		_, _ = docker("rm", "--force", name, name+"-run")
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("%s", log)
		}
	})

	first := serve(file)
	if _, err := docker("run", "--detach", "--name", name, client.Tag, "sleep", "600"); err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte("network_mode: allowlist\nallowed_hosts: [web.test]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	direct := filepath.Join(dir, "direct.yaml")
	if err := os.WriteFile(direct, []byte("network_mode: allowlist\nallowed_hosts: [web.test, 203.0.113.32]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"attach", name, "--policy", policy}, {"network", "create", name}, {"network", "rm", name},
		{"verify", name, "--reach", "web.test:443"}, {"set", name, direct}, {"run", "--name", name + "-run", "--allow", "web.test", "--verify", "--", client.Tag, "true"},
		{"explain", name, "web.test:443"}, {"report", name}} {
		if err := sluice(args...); err != nil {
			t.Fatal(err)
		}
	}
	// A connection that went straight is cut, which only the kernel can do.
	if _, err := docker("exec", "--detach", name, "python3", "-c", "import socket, time; s = socket.create_connection(('203.0.113.32', 80)); time.sleep(600)"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(50 * time.Millisecond) {
		if _, err := docker("exec", name, "grep", "-q", "207100CB:0050 01 ", "/proc/net/tcp"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no connection is open that went straight")
		}
	}
	if out, err := said("--json", "set", name, policy); err != nil || !strings.Contains(out, `"direct_cut":1`) {
		t.Errorf("a switch that takes it away: %s, error %v", out, err)
	}
	if err := errors.Join(sluice("detach", name), sluice("attach", name, "--policy", policy)); err != nil {
		t.Fatal(err)
	}
	if _, err := docker("exec", name, "curl", "-sS", "-m", "20", "https://web.test/"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(first.Process.Signal(syscall.SIGTERM), first.Wait()); err != nil {
		t.Fatal(err)
	}

	answered := make(chan error, 1)
	go func() { answered <- sluice("phase", name, "run") }()
	if _, err := docker("exec", name, "curl", "-sS", "-m", "20", "https://web.test/"); err != nil {
		t.Error("while the controller is away:", err)
	}
	second := serve(file)
	if err := <-answered; err != nil {
		t.Error("a call that came while the controller was away:", err)
	}
	if err := errors.Join(second.Process.Signal(syscall.SIGTERM), second.Wait()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(listener.Close(), file.Close()); err != nil { // systemctl stop sluice.socket
		t.Fatal(err)
	}
	if err := serve(nil, "--clear").Wait(); err != nil {
		t.Fatal(err)
	}
	checkSystemCalls(t, dir, traces)
}

var systemCall = regexp.MustCompile(`(?m)^\d+ +(\w+)\((.*)`)

// checkSystemCalls checks what was asked of the kernel against the filters of the unit.
func checkSystemCalls(t *testing.T, dir string, traces []string) {
	t.Helper()
	allowed := map[string]bool{}
	for _, word := range strings.Fields(setting(t, dir, "SystemCallFilter")) {
		allowSystemCalls(t, allowed, word)
	}
	// systemd lets these through whatever the filter says.
	allowSystemCalls(t, allowed, "@default")
	families := strings.Fields(setting(t, dir, "RestrictAddressFamilies"))
	seen := map[string]bool{}
	for _, path := range traces {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// What comes before is the shell's and setpriv's, which stand for systemd.
		begin := strings.Index(string(text), `execve("`+filepath.Join(lab.bin, "sluice")+`"`)
		if begin < 0 {
			t.Fatalf("the trace %s has no start of the program", path)
		}
		for _, m := range systemCall.FindAllStringSubmatch(string(text[begin:]), -1) {
			call, rest := m[1], m[2]
			seen[call] = true
			if !allowed[call] {
				t.Errorf("%s(%s: the unit's SystemCallFilter refuses it", call, rest)
				allowed[call] = true // told once
			}
			switch family, _, _ := strings.Cut(rest, ","); {
			case (call == "socket" || call == "socketpair") && !slices.Contains(families, family):
				t.Errorf("%s(%s: the unit's RestrictAddressFamilies refuses it", call, rest)
			case (call == "setns" || call == "unshare") && !strings.Contains(rest, "CLONE_NEWNET"):
				t.Errorf("%s(%s: the unit's RestrictNamespaces refuses it", call, rest)
			}
		}
	}
	for _, call := range []string{"setns", "socket", "sendmsg"} {
		if !seen[call] {
			t.Errorf("the traces have no %s: they are of something else", call)
		}
	}
}

// allowSystemCalls adds a word of a SystemCallFilter, with all that its groups have.
func allowSystemCalls(t *testing.T, allowed map[string]bool, word string) {
	t.Helper()
	if !strings.HasPrefix(word, "@") {
		allowed[word] = true
		return
	}
	out, err := exec.Command("systemd-analyze", "syscall-filter", "--no-pager", word).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" && line != word && !strings.HasPrefix(line, "#") {
			allowSystemCalls(t, allowed, line)
		}
	}
}
