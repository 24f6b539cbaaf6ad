package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// output is a buffer that may be read while a program writes to it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// try runs a command line, words separated by blanks, and returns the exit code and what it printed.
func try(t *testing.T, line string, environ ...string) (code int, stdout, stderr string) {
	t.Helper()
	return tryArgs(t, strings.Fields(line), environ...)
}

func tryArgs(t *testing.T, argv []string, environ ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err output
	code = run(t.Context(), argv, system{environ, strings.NewReader(""), &out, &err, nil})
	return code, out.String(), err.String()
}

// program is a proxy that runs until the test ends, or stop is called.
type program struct {
	*testing.T
	stdout, stderr output
	cancel, hurry  context.CancelFunc // the first signal and the second one
	code           chan int
	listen         string // where clients connect
}

// launchSilently starts a program.
func launchSilently(t *testing.T, argv []string, environ ...string) *program {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	twice, hurry := context.WithCancel(context.Background())
	p := &program{T: t, cancel: cancel, hurry: hurry, code: make(chan int, 1)}
	sys := system{environ, strings.NewReader(""), &p.stdout, &p.stderr, twice.Done()}
	go func() { p.code <- run(ctx, argv, sys) }()
	t.Cleanup(func() { p.stop() })
	return p
}

// launch starts a program and waits until it says that it is ready.
func launch(t *testing.T, argv []string, environ ...string) *program {
	t.Helper()
	p := launchSilently(t, argv, environ...)
	listen := regexp.MustCompile(`msg=ready listen=(\S+)|ready on port (\d+)`)
	p.until("ready", func() bool {
		select {
		case code := <-p.code:
			p.code <- code
			t.Fatalf("ended with %d: %s", code, p.stderr.String())
		default:
		}
		m := listen.FindStringSubmatch(p.stderr.String() + p.stdout.String())
		if m == nil {
			return false
		}
		if p.listen = m[1]; m[2] != "" {
			p.listen = "127.0.0.1:" + m[2]
		}
		return true
	})
	return p
}

// logged returns what the group of a pattern matches in the log.
func (p *program) logged(pattern string) string {
	p.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(p.stderr.String())
	if m == nil {
		p.Fatalf("nothing like %s in the log: %s", pattern, p.stderr.String())
	}
	return m[1]
}

// stop ends the program as two signals do, and returns its exit code.
func (p *program) stop() int {
	p.cancel()
	p.hurry()
	code := <-p.code
	p.code <- code
	return code
}

func (p *program) until(what string, ok func() bool) {
	p.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("never: %s\nstdout: %s\nstderr: %s", what, p.stdout.String(), p.stderr.String())
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A proxy that has no policy must not come up, and must say why.
func TestUsage(t *testing.T) {
	dir := t.TempDir()
	good, bad, directory := filepath.Join(dir, "good.json"), filepath.Join(dir, "bad.json"), filepath.Join(dir, "directory")
	empty, password := filepath.Join(dir, "empty"), filepath.Join(dir, "password")
	write(t, good, `"no-network"`)
	write(t, bad, `{"network_mode":"allowlist","allowed_hosts":["*"]}`)
	write(t, empty, "\n")
	write(t, password, "secret-word\n")
	if err := os.Mkdir(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	taken := echo(t).String()
	const token, path = "AGENTCOMPASS_PROXY_TOKEN=secret-word", "AGENTCOMPASS_POLICY_PATH="
	const python = "python /opt/agentcompass/docker_egress_proxy.py"
	for _, row := range []struct {
		name, line string
		environ    string
		code       int
		stderr     string
	}{
		{"nothing", "sluice-proxy", "", 2, "nothing to serve: give --policy FILE"},
		{"no-policy", "sluice-proxy serve", "", 2, "no policy"},
		{"implied-serve", "sluice-proxy --listen 127.0.0.1:0", "", 2, "no policy"},
		{"missing", "sluice-proxy --policy " + dir + "/none.json", "", 1, "none.json: no such file"},
		{"missing-by-variable", "sluice-proxy", "SLUICE_POLICY=" + dir + "/none.json", 1, "none.json: no such file"},
		{"directory", "sluice-proxy --policy " + directory, "", 1, "not a regular file"},
		{"bad-policy", "sluice-proxy --policy " + bad, "", 1, `/allowed_hosts/0: "*"`},
		{"unknown-flag", "sluice-proxy --polisy x", "", 2, "unknown flag: --polisy"},
		{"password-flag", "sluice-proxy --password x", "", 2, "unknown flag: --password"},
		{"unknown-command", "sluice-proxy serv", "", 2, `unknown command "serv"`},
		{"extra-argument", "sluice-proxy serve x", "", 2, "unknown command"},
		{"bad-phase", "sluice-proxy --policy " + good + " --phase setup", "", 2, "setup"},
		{"bad-variable", "sluice-proxy --policy " + good, "SLUICE_FLOOR=maybe", 2, "SLUICE_FLOOR in the environment"},
		{"bad-upstream", "sluice-proxy --policy " + good + " --upstream dns.test", "", 2, `--upstream "dns.test"`},
		{"bad-drain", "sluice-proxy --policy " + good + " --drain -1s", "", 2, "--drain -1s"},
		{"bad-idle-timeout", "sluice-proxy --policy " + good + " --idle-timeout 10ms", "", 2, "--idle-timeout 10ms"},
		{"bad-never", "sluice-proxy --policy " + good + " --never 192.0.2.1", "", 2, `--never "192.0.2.1"`},
		{"bad-listen", "sluice-proxy --policy " + good + " --listen 127.0.0.1:99999", "", 1, "--listen 127.0.0.1:99999: address 99999: invalid port: write an address and a port"},
		{"bad-metrics", "sluice-proxy --policy " + good + " --metrics 127.0.0.1:99999", "", 1, "--metrics 127.0.0.1:99999: "},
		{"bad-dns", "sluice-proxy --policy " + good + " --dns 127.0.0.1:99999", "", 1, "--dns 127.0.0.1:99999: "},
		{"port-taken", "sluice-proxy --policy " + good + " --listen " + taken, "", 1, "another process listens there"},
		{"not-our-address", "sluice-proxy --policy " + good + " --listen 198.51.100.1:0", "", 1, "no interface here has that address"},
		{"bad-audit", "sluice-proxy --policy " + good + " --audit " + directory, "", 1, "audit: "},
		{"bad-control", "sluice-proxy --policy " + good + " --listen 127.0.0.1:0 --control " + good, "", 1, "directory of the socket"},
		{"user-alone", "sluice-proxy --policy " + good + " --user u", "", 2, "--user without a password"},
		{"password-alone", "sluice-proxy --policy " + good, "SLUICE_PASSWORD=secret-word", 2, "a password without a user"},
		{"two-passwords", "sluice-proxy --policy " + good + " --user u --password-file " + password, "SLUICE_PASSWORD=secret-word", 2, "both given"},
		{"user-with-colon", "sluice-proxy --policy " + good + " --user u:v", "SLUICE_PASSWORD=secret-word", 2, "colon"},
		{"password-missing", "sluice-proxy --policy " + good + " --user u --password-file " + dir + "/none", "", 1, "password file: "},
		{"password-empty", "sluice-proxy --policy " + good + " --user u --password-file " + empty, "", 1, "is empty"},
		{"ctl-without-proxy", "sluice-proxy ctl status --control " + dir, "", 1, "is the proxy running"},
		{"health-without-proxy", "sluice-proxy health --control " + dir, "", 1, "is the proxy running"},
		{"ctl-set-missing", "sluice-proxy ctl policy set " + dir + "/none.json --control " + dir, "", 1, "none.json"},
		{"ctl-set-bad", "sluice-proxy ctl policy set " + bad + " --control " + dir, "", 1, "/allowed_hosts/0"},
		{"ctl-bad-phase", "sluice-proxy ctl phase setup --control " + dir, "", 2, "setup"},
		{"ctl-no-phase", "sluice-proxy ctl phase --control " + dir, "", 2, "give one phase: baseline"},
		{"ctl-two-targets", "sluice-proxy ctl explain a:1 b:2 --control " + dir, "", 2, "2 arguments: give one host:port"},
		{"ctl-unknown", "sluice-proxy ctl polisy", "", 2, "unknown command"},
		{"python-nothing", "python", "", 2, "this is sluice-proxy, not Python"},
		{"python-version", "python3 --version", "", 2, "this is sluice-proxy, not Python"},
		{"python-in-image", "/usr/local/bin/sluice-proxy python -m http.server", "", 2, "this is sluice-proxy, not Python"},
		{"agentcompass-nothing", python, "", 1, "AGENTCOMPASS_PROXY_TOKEN is required"},
		{"agentcompass-no-path", python, token, 1, "AGENTCOMPASS_POLICY_PATH is required"},
		{"agentcompass-missing", python, token + " " + path + dir + "/none.json", 1, "none.json: no such file"},
		{"agentcompass-bad-port", python, token + " AGENTCOMPASS_PROXY_PORT=x " + path + good, 1, "AGENTCOMPASS_PROXY_PORT"},
		{"agentcompass-bad-policy", python, token + " " + path + good, 1, "not a JSON object"}, // only policies alone may be text
		{"agentcompass-bad-switch", python, token + " SLUICE_WILDCARD_PRIVATE=perhaps " + path + good, 2, "SLUICE_WILDCARD_PRIVATE in the environment"},
	} {
		t.Run(row.name, func(t *testing.T) {
			code, stdout, stderr := try(t, row.line, strings.Fields(row.environ)...)
			if code != row.code || !strings.Contains(stderr, row.stderr) {
				t.Errorf("got %d %q, want %d and %q", code, stderr, row.code, row.stderr)
			}
			if stdout != "" || strings.Contains(stderr, "secret-word") {
				t.Errorf("stdout %q, stderr %q", stdout, stderr)
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	for line, want := range map[string]string{
		"sluice-proxy --help":         "Usage:",
		"sluice-proxy -h":             "Usage:",
		"sluice-proxy help serve":     "--policy FILE",
		"sluice-proxy ctl":            "explain",
		"sluice-proxy ctl policy":     "set",
		"sluice-proxy version":        "sluice-proxy ",
		"sluice-proxy version --json": `"version"`,
	} {
		code, stdout, stderr := try(t, line)
		if code != 0 || !strings.Contains(stdout, want) || stderr != "" {
			t.Errorf("%s: got %d %q %q", line, code, stdout, stderr)
		}
	}
}

// Every command's help has one example, and every example is a command line that is understood.
func TestExamples(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			if c.Name() == "help" {
				continue
			}
			visit(c)
			words := strings.Fields(c.Example)
			if strings.Count(c.Example, "\n") > 0 || len(words) == 0 || words[0] != "sluice-proxy" {
				t.Errorf("%s: example %q, want one line that begins with sluice-proxy", c.CommandPath(), c.Example)
				continue
			}
			if words[len(words)-1][0] == '>' {
				words = words[:len(words)-1]
			}
			found, rest, err := newRoot(system{}).Find(words[1:])
			if err != nil {
				t.Errorf("%s: %v", c.CommandPath(), err)
				continue
			}
			if err := found.ParseFlags(rest); err != nil {
				t.Errorf("%s: example %q: %v", c.CommandPath(), c.Example, err)
			}
			if !strings.HasPrefix(found.CommandPath(), c.CommandPath()) {
				t.Errorf("%s: the example is of %s", c.CommandPath(), found.CommandPath())
			}
		}
	}
	visit(newRoot(system{}))
}

// The provider's probe under the name python, as docker exec and docker run give it.
func TestProbe(t *testing.T) {
	const code = "import socket; s=socket.create_connection(('127.0.0.1', 9), timeout=1); s.close()"
	for _, argv := range [][]string{{"python", "-c", code}, {"/usr/local/bin/sluice-proxy", "python", "-c", code}} {
		exit, _, stderr := tryArgs(t, argv)
		if exit != 1 || !strings.Contains(stderr, "health check: dial tcp 127.0.0.1:9") {
			t.Errorf("%q: got %d %q, want 1 where nobody listens", argv, exit, stderr)
		}
	}
}
