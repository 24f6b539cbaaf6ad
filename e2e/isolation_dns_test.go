package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/e2e/lab/attack"
	"sluice/e2e/lab/attempts"
	"sluice/e2e/lab/closed"
	"sluice/images"
)

// TestIsolationResolver: an engine that is told of no name server asks the one in the host's resolv.conf, from the
// host's namespace, past all rules for containers. Nothing of what an attached container asks may come there (I-01).
func TestIsolationResolver(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	r := newResolving(t)
	r.docker(t, "network", "create", "user")
	r.docker(t, "run", "--detach", "--name", "asks", "--network", "user", attackerTag, "wait")

	// Without a policy the names do come there, so it can be seen.
	if seen := r.ask(t, "asks"); seen == 0 {
		t.Fatal("the host's name server is asked nothing by a container without a policy: nothing is tested")
	}
	for _, document := range []string{`"no-network"`, attempts.Allowlist.Document} {
		file := filepath.Join(t.TempDir(), "policy.json")
		if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
			t.Fatal(err)
		}
		r.sluice(t, "attach", "asks", "--policy", file)
		if seen := r.ask(t, "asks"); seen > 0 {
			t.Errorf("LEAK: %d names of a container with the policy %s came to the host's name server", seen, document)
		}
		r.sluice(t, "detach", "asks")
	}
	r.checkManaged(t)
}

// checkManaged: on a managed network a container is to name a server. Then the engine asks that one from the container's
// own namespace, where the rules hold from the first instruction on.
func (r *resolving) checkManaged(t *testing.T) {
	t.Helper()
	if out := r.sluice(t, "network", "create", "managed"); !strings.Contains(out, "warning") || !strings.Contains(out, "--dns") {
		t.Errorf("nobody is told what containers need: %s", out)
	}
	around := attempts.Surroundings{Links: []attempts.Link{{Device: "eth0"}}}
	early := &started{all: around.Names()}
	start := func(name string, options ...string) {
		args := append([]string{"run", "--detach", "--name", name, "--network", "managed", "--label", labelled + `"no-network"`,
			"--env", early.attempts(t)}, options...)
		r.docker(t, append(args, attackerTag, "start")...)
	}
	rounds := func(name string, n int) {
		lines := func() int { return strings.Count(r.docker(t, "logs", name), "\n") }
		before := lines()
		for deadline := time.Now().Add(2 * waitLimit); lines() < before+n; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("container %s does not ask", name)
			}
		}
	}
	start("early", "--dns", "198.51.100.53")
	rounds("early", 3)
	if seen := r.seen(t, early.all); seen > 0 {
		t.Errorf("LEAK: %d names of a container on a managed network came to the host's name server", seen)
	}

	// One that names none is not admitted, and once that is found out it is silent, too.
	start("late")
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(50 * time.Millisecond) {
		command := exec.Command(filepath.Join(lab.bin, "sluice"), "status", "late", "--socket", r.socket)
		if out, _ := command.CombinedOutput(); strings.Contains(string(out), "not admitted") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody says that a container without --dns is not admitted")
		}
	}
	rounds("late", 2)
	r.mu.Lock()
	clear(r.asked)
	r.mu.Unlock()
	rounds("late", 2)
	if seen := r.seen(t, early.all); seen > 0 {
		t.Errorf("LEAK: %d names of a container that is not admitted came to the host's name server", seen)
	}
}

// resolving is a lab with a controller whose engine has a name server on the host's loopback.
type resolving struct {
	*closed.Lab
	socket string

	mu    sync.Mutex // guards asked
	asked map[string]bool
}

func newResolving(t *testing.T) *resolving {
	t.Helper()
	const server = "127.0.0.53"
	l, err := closed.StartWith(t.Context(), closed.Options{Engine: *labEngine, ResolvConf: "nameserver " + server + "\n"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &resolving{Lab: l, asked: map[string]bool{}}
	r.listen(t, net.JoinHostPort(server, "53"))

	engine, err := l.Engine()
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	attacker, err := attackerImage(t.Context())
	if err == nil {
		err = images.Load(t.Context(), engine, attacker)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.serve(t)
	return r
}

// listen is the name server on the host.
func (r *resolving) listen(t *testing.T, at string) {
	t.Helper()
	var udp net.PacketConn
	var tcp net.Listener
	err := r.InEngineNamespace(func() (err error) {
		if udp, err = net.ListenPacket("udp", at); err != nil {
			return err
		}
		tcp, err = net.Listen("tcp", at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	answer := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r.mu.Lock()
		for _, one := range q.Question {
			name, _, _ := strings.Cut(strings.ToLower(one.Name), ".")
			r.asked[name] = true
		}
		r.mu.Unlock()
		w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeNameError))
	})
	for _, s := range []*dns.Server{{PacketConn: udp, Handler: answer}, {Listener: tcp, Handler: answer}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go s.ActivateAndServe()
		<-started
		t.Cleanup(func() { s.Shutdown() })
	}
}

// serve starts a controller. It runs with the engine's mounts, for that is where the containers' namespaces are.
func (r *resolving) serve(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-e2e-") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r.socket = filepath.Join(dir, "sluice.sock")
	command := exec.Command("nsenter", "--mount="+r.Mounts(), filepath.Join(lab.bin, "sluice"), "serve", "--socket", r.socket,
		"--upstream", "198.51.100.53", "--proxy", filepath.Join(lab.bin, "sluice-proxy"))
	command.Env = append(command.Environ(), "DOCKER_HOST="+r.DockerHost())
	var log bytes.Buffer
	command.Stdout, command.Stderr = &log, &log
	if err := r.InEngineNamespace(command.Start); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); command.Wait() }()
	t.Cleanup(func() {
		command.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("the controller's log:\n%s", &log)
		}
	})
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("unix", r.socket)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the controller does not listen")
		}
	}
}

func (r *resolving) docker(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.Command("docker", args...)
	command.Env = append(command.Environ(), "DOCKER_HOST="+r.DockerHost())
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *resolving) sluice(t *testing.T, args ...string) (output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(lab.bin, "sluice"), append(args, "--socket", r.socket)...)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("sluice %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// ask lets a container ask for names in every way, and returns how many of them came to the host's name server.
func (r *resolving) ask(t *testing.T, container string) int {
	t.Helper()
	pid, err := strconv.Atoi(r.docker(t, "inspect", "--format", "{{.State.Pid}}", container))
	if err != nil {
		t.Fatal(err)
	}
	around := attempts.Surroundings{Links: []attempts.Link{{Device: "eth0"}}}
	for i, protocol := range []string{"udp", "tcp"} {
		for _, at := range listening(t, pid, protocol) {
			if at.Addr() == netip.MustParseAddr("127.0.0.11") {
				around.Resolver[i] = at
			}
		}
	}
	if !around.Resolver[0].IsValid() {
		t.Fatal("the engine's resolver does not listen in the container")
	}
	all := around.Names()
	var plain []attack.Attempt
	for _, one := range all {
		plain = append(plain, one.Attempt)
	}
	text, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("docker", "exec", "--interactive", container, "/attacker", "fire")
	command.Env = append(command.Environ(), "DOCKER_HOST="+r.DockerHost())
	command.Stdin = bytes.NewReader(text)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("attack: %v: %s", err, out)
	}
	return r.seen(t, all)
}

// seen returns how many of the names came to the host's name server.
func (r *resolving) seen(t *testing.T, all []*attempts.Attempt) (n int) {
	t.Helper()
	// The server answers what comes after them, so it has answered them.
	last := fmt.Sprintf("last%d", len(all))
	err := r.InEngineNamespace(func() error {
		_, err := dns.Exchange(new(dns.Msg).SetQuestion(last+".test.", dns.TypeA), "127.0.0.53:53")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range all {
		if r.asked[one.Token] {
			n++
		}
	}
	return n
}
