package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/control"
)

// echo is a server that sends back what it gets.
func echo(t *testing.T) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().(*net.TCPAddr)
}

// tunnel is an answer to CONNECT, and the connection behind it.
type tunnel struct {
	*testing.T
	net.Conn
	*bufio.Reader
	answer *http.Response
}

func connect(t *testing.T, proxy, target, credentials string) *tunnel {
	t.Helper()
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	req, err := http.NewRequest(http.MethodConnect, "http://"+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	head := "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n"
	if user, password, ok := strings.Cut(credentials, ":"); ok {
		req.SetBasicAuth(user, password)
		head += "Proxy-Authorization: " + req.Header.Get("Authorization") + "\r\n"
	}
	if _, err := io.WriteString(c, head+"\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	answer, err := http.ReadResponse(r, req)
	if err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	return &tunnel{t, c, r, answer}
}

// want checks the status, and that bytes pass if that is 200.
func (u *tunnel) want(status int) *tunnel {
	u.Helper()
	if u.answer.StatusCode != status {
		text, _ := io.ReadAll(u.answer.Body)
		u.Fatalf("got %s %s, want %d", u.answer.Status, text, status)
	}
	if status == http.StatusOK {
		u.ping()
	}
	return u
}

func (u *tunnel) ping() {
	u.Helper()
	if _, err := io.WriteString(u.Conn, "ping\n"); err != nil {
		u.Fatal(err)
	}
	if line, err := u.ReadString('\n'); line != "ping\n" {
		u.Fatalf("got %q, %v", line, err)
	}
}

// cut waits until the proxy has reset the connection.
func (u *tunnel) cut() {
	u.Helper()
	if b, err := u.ReadByte(); err == nil || strings.Contains(err.Error(), "timeout") {
		u.Fatalf("the connection is still open: %v %v", b, err)
	}
}

func allow(targets ...string) string {
	text, err := json.Marshal(map[string]any{"network_mode": "allowlist", "allowed_hosts": targets})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestServe(t *testing.T) {
	dir, err := os.MkdirTemp("", "sluice") // short enough for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file, log, sockets := filepath.Join(dir, "policy.json"), filepath.Join(dir, "audit.log"), filepath.Join(dir, "run")
	first, second := echo(t).String(), echo(t).String()
	write(t, file, allow(first))
	p := launch(t, []string{"sluice-proxy", "--policy", file, "--listen", "127.0.0.1:0", "--control", sockets, "--audit", log,
		"--metrics", "127.0.0.1:0", "--dns", "127.0.0.1:0", "--user", "u"}, "SLUICE_PASSWORD=secret-word", "SLUICE_UPSTREAM=127.0.0.1:9", "SLUICE_FLOR=0")
	const user = "u:secret-word"
	metrics, queries := p.logged(`"serving metrics" address=(\S+)`), p.logged(`"filtering DNS" address=(\S+)`)

	connect(t, p.listen, first, "").want(407)
	connect(t, p.listen, first, "u:wrong").want(407)
	open := connect(t, p.listen, first, user).want(200)
	connect(t, p.listen, second, user).want(403)

	ctl := func(words ...string) string {
		t.Helper()
		code, stdout, stderr := tryArgs(t, append([]string{"sluice-proxy"}, words...), "SLUICE_CONTROL="+sockets)
		if code != 0 {
			t.Fatalf("%v: %d %s", words, code, stderr)
		}
		return stdout
	}
	contains(t, "status", ctl("ctl", "status"), "default", "serving", "baseline", "allowlist", "1", file+" is current")
	contains(t, "flows", ctl("ctl", "flows"), "PROTOCOL", "connect", short(first, 23))
	contains(t, "explain", ctl("ctl", "explain", second), "refuse", "floor")
	contains(t, "explain", ctl("ctl", "explain", first), "allow", "address-rule")
	contains(t, "health", ctl("health"), "healthy: 1 session")
	contains(t, "get", ctl("ctl", "policy", "get"), `"allowlist"`, `"port": `+first[len("127.0.0.1:"):])
	var flows []control.Flow
	if err := json.Unmarshal([]byte(ctl("ctl", "flows", "--json")), &flows); err != nil || len(flows) != 1 || flows[0].Address != first {
		t.Errorf("flows --json: %+v, %v", flows, err)
	}

	// What is set by hand cuts what it refuses, and holds until the file changes.
	other := filepath.Join(dir, "other.yaml")
	write(t, other, fmt.Sprintf("baseline_network_policy: {network_mode: allowlist, allowed_hosts: [%q]}\nrun_network_policy: no-network\nevaluation_network_policy: public\n", second))
	contains(t, "set", ctl("ctl", "policy", "set", other), "phase baseline is in force (generation 2): 1 flow cut, 0 kept")
	open.cut()
	connect(t, p.listen, first, user).want(403)
	open = connect(t, p.listen, second, user).want(200)
	contains(t, "phase", ctl("ctl", "phase", "run"), "phase run is in force (generation 3): 1 flow cut")
	open.cut()
	contains(t, "phase", ctl("ctl", "phase", "run"), "nothing changed")
	contains(t, "get", ctl("ctl", "policy", "get"), "baseline_network_policy", "run_network_policy", "evaluation_network_policy")
	connect(t, p.listen, second, user).want(403)
	// What get prints, set reads.
	write(t, other, ctl("ctl", "policy", "get"))
	contains(t, "set", ctl("ctl", "policy", "set", other), "nothing changed")

	// The file again: the phase stays.
	write(t, file, allow(first, second))
	open = connect(t, p.listen, second, user).want(200)
	contains(t, "status", ctl("ctl", "status"), "run", "allowlist")
	write(t, file, allow(second))
	connect(t, p.listen, first, user).want(403)
	open.ping()
	write(t, file, "{}")
	open.cut()
	connect(t, p.listen, second, user).want(403)
	contains(t, "status", ctl("ctl", "status"), "refusing", file+" is refused", "network_mode")
	write(t, file, allow(first))
	connect(t, p.listen, first, user).want(200)

	// The name is refused without asking the server, on which nobody listens.
	for _, network := range []string{"udp", "tcp"} {
		answer, _, err := (&dns.Client{Net: network}).Exchange(new(dns.Msg).SetQuestion("other.test.", dns.TypeA), queries)
		if err != nil || answer.Rcode != dns.RcodeNameError {
			t.Errorf("dns by %s: %v, %v", network, answer, err)
		}
	}

	contains(t, "metrics", get(t, "http://"+metrics+"/metrics", 200), "sluice_connections_total{", "sluice_policy_rejected_entries 0", "sluice_generation{")
	get(t, "http://"+metrics+"/", 404)
	// Case I-40: whatever the policy says.
	write(t, file, allow(metrics, queries, p.listen, first))
	for _, own := range []string{metrics, queries, p.listen} {
		connect(t, p.listen, own, user).want(403)
	}
	connect(t, p.listen, first, user).want(200)

	p.until("a record of each refusal", func() bool {
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), `"refuse"`) && strings.Contains(string(text), `"127.0.0.1"`)
	})
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.until("a new audit file", func() bool {
		connect(t, p.listen, second, user).want(403)
		info, err := os.Stat(log)
		return err == nil && info.Size() > 0
	})

	if code := p.stop(); code != 0 {
		t.Errorf("ended with %d: %s", code, p.stderr.String())
	}
	contains(t, "stderr", p.stderr.String(), "variable=SLUICE_FLOR", "policy is in force")
	all := p.stderr.String() + p.stdout.String()
	for _, name := range []string{log, log + ".1"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all += string(text)
	}
	if strings.Contains(all, "secret-word") || strings.Contains(all, "Basic ") {
		t.Error("a log holds credentials")
	}
	if _, err := os.Lstat(filepath.Join(sockets, control.SocketName)); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func contains(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s: no %q in\n%s", what, p, text)
		}
	}
}

func get(t *testing.T, url string, status int) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Errorf("%s: got %s, %v, want %d", url, resp.Status, err, status)
	}
	return string(text)
}

// What is never to be dialled is not, though the policy names it.
func TestNever(t *testing.T) {
	origin, file := echo(t).String(), filepath.Join(t.TempDir(), "policy.json")
	write(t, file, allow(origin))
	p := launch(t, []string{"sluice-proxy", "--policy", file, "--listen", "127.0.0.1:0", "--audit", "none", "--upstream", "127.0.0.1:9",
		"--never", "127.0.0.0/8"})
	refused := connect(t, p.listen, origin, "").want(403)
	if text, err := io.ReadAll(refused.answer.Body); err != nil || !strings.Contains(string(text), "own-address") {
		t.Errorf("%s, %v: want the reason own-address", text, err)
	}
}

// freeAddress is one on which nobody listened a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// The main job of the personality: the provider writes its file, and nothing else tells the proxy.
func TestAgentCompass(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.json")
	first, second := echo(t), echo(t)
	payload := func(mode string, targets ...*net.TCPAddr) {
		t.Helper()
		lists := map[string][]any{"allowlist": {}, "denylist": {}}
		for _, a := range targets {
			lists[mode] = append(lists[mode], map[string]any{"host": a.IP.String(), "port": a.Port})
		}
		if mode == "allowlist" {
			lists[mode] = append(lists[mode], "localhost", "127.1")
		}
		text, err := json.Marshal(map[string]any{"network_mode": mode, "allowed_hosts": lists["allowlist"], "denied_hosts": lists["denylist"]})
		if err != nil {
			t.Fatal(err)
		}
		write(t, file, string(text))
	}
	payload("allowlist", first)
	port := strings.TrimPrefix(freeAddress(t), "127.0.0.1:")
	p := launch(t, []string{"python", "/opt/agentcompass/docker_egress_proxy.py"},
		"AGENTCOMPASS_PROXY_TOKEN=secret-word", "AGENTCOMPASS_POLICY_PATH="+file, "AGENTCOMPASS_PROXY_PORT="+port, "PYTHONDONTWRITEBYTECODE=1")
	const user = "agentcompass:secret-word"
	if first, _, _ := strings.Cut(p.stdout.String(), "\n"); first != "AgentCompass Docker egress proxy ready on port "+port {
		t.Errorf("the first line is %q", first)
	}
	probe := fmt.Sprintf("import socket; s=socket.create_connection(('127.0.0.1', %s), timeout=1); s.close()", port)
	if code, _, stderr := tryArgs(t, []string{"python", "-c", probe}); code != 0 {
		t.Errorf("the probe fails: %s", stderr)
	}

	refused := connect(t, p.listen, first.String(), "").want(407)
	if got := refused.answer.Header.Get("Proxy-Authenticate"); got != `Basic realm="AgentCompassEgress"` {
		t.Errorf("Proxy-Authenticate: %s", got)
	}
	open := connect(t, p.listen, first.String(), user).want(200)
	connect(t, p.listen, second.String(), user).want(403)
	connect(t, p.listen, "localhost:"+fmt.Sprint(first.Port), user).want(403)
	contains(t, "stderr", p.stderr.String(), "/allowed_hosts/1", "localhost", "matches nothing", "rejected=2")

	payload("allowlist", first, second)
	connect(t, p.listen, second.String(), user).want(200)
	open.ping()
	payload("denylist", first)
	open.cut()
	connect(t, p.listen, first.String(), user).want(403)
	payload("no-network")
	connect(t, p.listen, second.String(), user).want(403)
	payload("allowlist", first)
	open = connect(t, p.listen, first.String(), user).want(200)

	// Where nobody listens, AgentCompass's proxy answers 403 as well.
	nobody, err := net.ResolveTCPAddr("tcp", freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	payload("allowlist", nobody, first)
	connect(t, p.listen, nobody.String(), user).want(403)
	open.ping()

	// A writer that is not done yet holds up what is new, and cuts nothing.
	write(t, file, "")
	answer := make(chan int, 1)
	go func() {
		c, err := net.Dial("tcp", p.listen)
		if err != nil {
			answer <- 0
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nProxy-Authorization: Basic YWdlbnRjb21wYXNzOnNlY3JldC13b3Jk\r\n\r\n", second)
		resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
		if err != nil {
			answer <- 0
			return
		}
		answer <- resp.StatusCode
	}()
	payload("allowlist", first, second)
	if got := <-answer; got != 200 {
		t.Errorf("a request while the file was empty: got %d", got)
	}
	open.ping()
	// That client has closed; the proxy must have seen it, or the next change cuts its tunnel.
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(p.stdout.String(), `"verdict":"allow"`); {
		if time.Now().After(deadline) {
			t.Fatal("no record of a tunnel that ended in order")
		}
		time.Sleep(time.Millisecond)
	}

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	open.cut()
	connect(t, p.listen, first.String(), user).want(403)
	if code := p.stop(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	contains(t, "audit on stdout", p.stdout.String(), `"verdict":"allow"`, `"reason":"no-network"`, `"verdict":"cut"`)
	if all := p.stdout.String() + p.stderr.String(); strings.Contains(all, "secret-word") {
		t.Error("a log holds the token")
	}
}
