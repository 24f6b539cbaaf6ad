package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice/controller/api"
	"sluice/dockernet/netns"
	"sluice/e2e/lab/client"
)

const (
	// useLimit is how long a command may take, in seconds.
	useLimit = 60
	// refusalLimit is how long one may take that is refused: nothing is left to time out.
	refusalLimit = 12
	// hostPort is one that a host's service listens on.
	hostPort = 8901
)

// TestUse lets a workload do what workloads do, behind an allowlist of exactly what that needs. No proxy is set up
// inside, and nobody is told of one. What is next to it, the same tool with another name, is refused, and before that
// would have timed out.
func TestUse(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	u := startUser(t)
	t.Run("idle-and-forgotten", u.idleAndForgotten)
	u.startIdle()
	for i, r := range uses {
		t.Run(r.name, func(t *testing.T) { u.run(t, i, r) })
	}
	u.endIdle()
	t.Run("beside-a-proxy", u.besideProxy)
	t.Run("learned-name", u.learnedName)
	t.Run("connection-tracking-full", u.trackingFull)
}

// user is a container that uses the network.
type user struct {
	t    *testing.T
	name string
	with []string // arguments of docker run for its kind
	api  api.Client
}

func startUser(t *testing.T) *user {
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(theController.start())
	u := &user{t: t, name: "use-app", api: api.Client{Socket: theController.socket()}}
	for name, records := range map[string][]string{
		"apt.use.test": {"A 203.0.113.64"}, "proxy.use.test": {"A 203.0.113.65"}, "db.use.test": {"A 203.0.113.67", "AAAA 2001:db8::67"},
		"cluster.use.test":               {`TXT "authSource=admin"`},
		"_mongodb._tcp.cluster.use.test": {"SRV 0 0 2525 shard-0.cluster.use.test."},
		"shard-0.cluster.use.test":       {"A 203.0.113.68"},
		"held.use.test":                  {"A 203.0.113.69"},
	} {
		check(lab.Internet.SetName(name, records...))
	}
	bin := t.TempDir()
	check(os.Chmod(bin, 0o755))
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(bin, "use"), "sluice/e2e/lab/use")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	musl := exec.Command("musl-gcc", "-static", "-O1", "-o", filepath.Join(bin, "musl"), "testdata/use/musl.c")
	for _, c := range []*exec.Cmd{build, musl} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: run scripts/setup\n%s", c, err, out)
		}
	}
	tools, err := client.Tools(t.Context(), lab.python)
	check(err)
	scripts, err := filepath.Abs("testdata/use")
	check(err)
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	check(err)

	_, err = docker("network", "create", "--ipv6", "--subnet", "fd77:1::/64", "use-net")
	check(err)
	t.Cleanup(func() {
		if _, err := docker("network", "rm", "use-net"); err != nil {
			t.Error(err)
		}
	})
	u.with = []string{"--env", "PATH=/use/bin:/use/scripts:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"--volume", bin + ":/use/bin:ro", "--volume", scripts + ":/use/scripts:ro", "--volume", tools + ":" + client.ToolsAt + ":ro",
		"--volume", strings.TrimSpace(string(goroot)) + ":/usr/local/go:ro", client.Tag}
	for _, c := range []string{"use-db --network-alias database", "use-other --network-alias other",
		u.name + " --add-host host.docker.internal:host-gateway", "use-idle"} {
		args := append([]string{"run", "--detach", "--network", "use-net", "--name"}, strings.Fields(c)...)
		name := strings.Fields(c)[0]
		_, err = docker(append(append(args, u.with...), "sleep", "infinity")...)
		check(err)
		t.Cleanup(func() {
			if _, err := docker("rm", "--force", name); err != nil {
				t.Error(err)
			}
		})
	}
	for _, port := range []string{"2525", "2526"} {
		for _, name := range []string{"use-db", "use-other"} {
			_, err = docker("exec", "--detach", name, "greet", port)
			check(err)
		}
	}
	for _, port := range []int{hostPort, hostPort + 1} {
		u.listenOnHost(port)
	}
	_, err = u.api.Attach(t.Context(), api.Attach{Container: u.name, Policy: json.RawMessage(`"no-network"`)})
	check(err)
	return u
}

// listenOnHost echoes on a port of the host that the engine runs on.
func (u *user) listenOnHost(port int) {
	var l net.Listener
	if err := lab.InEngineNamespace(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprint(":", port))
		return err
	}); err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buffer := make([]byte, 64)
				for {
					n, err := conn.Read(buffer)
					if err != nil {
						return
					}
					conn.Write(buffer[:n])
				}
			}()
		}
	}()
}

// exec runs a command in the container, and tells its exit code; 124 means that it took longer than the limit.
func (u *user) exec(limit int, command string) (out string, code int) {
	run := exec.Command("docker", "exec", u.name, "timeout", fmt.Sprint(limit), "sh", "-c", command)
	run.Env = append(run.Environ(), "DOCKER_HOST="+lab.DockerHost())
	text, err := run.CombinedOutput()
	if err != nil && run.ProcessState == nil {
		return err.Error(), -1
	}
	return string(text), run.ProcessState.ExitCode()
}

func allowlist(t *testing.T, targets string) json.RawMessage {
	t.Helper()
	text, err := json.Marshal(map[string]any{"network_mode": "allowlist", "allowed_hosts": strings.Fields(targets)})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (u *user) run(t *testing.T, number int, r row) {
	if _, err := u.api.Set(t.Context(), u.name, allowlist(t, r.needs), 0); err != nil {
		t.Fatal(err)
	}
	host := strings.Fields(r.needs)[0]
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	other := fmt.Sprintf("use-%d.any.test", number)
	about := func(host, command string) string {
		return strings.NewReplacer("HOST", host, "OTHER", other).Replace(command)
	}
	out, code := u.exec(useLimit, about(host, r.command))
	if code != 0 || !regexp.MustCompile("(?m)"+r.want).MatchString(out) {
		t.Errorf("exit code %d; want 0 and %q:\n%s", code, r.want, out)
	}
	neighbour := r.neighbour
	if neighbour == "" {
		neighbour = r.command
	}
	out, code = u.exec(refusalLimit, about(other, neighbour))
	if code == 0 || code == 124 {
		t.Errorf("what is next to it: exit code %d; want a refusal, at once:\n%s", code, out)
	}
	if n := counts(t).Questions(other); n > 0 {
		t.Errorf("the internet saw %d questions for %s", n, other)
	}
}

// startIdle opens connections in a container with a policy of its own, which do nothing until [user.endIdle].
func (u *user) startIdle() {
	t := u.t
	t.Helper()
	if _, err := u.api.Attach(t.Context(), api.Attach{Container: "use-idle", Policy: allowlist(t, "held.use.test:7 203.0.113.70:7")}); err != nil {
		t.Fatal(err)
	}
	for file, to := range map[string]string{"/tmp/named": "held.use.test:7", "/tmp/address": "203.0.113.70:7"} {
		if _, err := docker("exec", "--detach", "use-idle", "sh", "-c", "use hold "+to+" "+file+" >"+file+".out 2>&1"); err != nil {
			t.Fatal(err)
		}
		u.wait("use-idle has no connection to "+to, func() bool {
			_, err := docker("exec", "use-idle", "ls", file)
			return err == nil
		})
	}
}

// idleAndForgotten uses connections again that the kernel's connection tracking has forgotten. By default it keeps them for
// days on which nothing is sent, and some operators set minutes. Here it is less than the minute after which the proxy
// probes those that it carries, and the connections are used before that.
func (u *user) idleAndForgotten(t *testing.T) {
	own := *u
	u = &own
	u.t = t // limits are as before when this ends
	inside := u.namespace("use-idle")
	for _, enter := range []func(func() error) error{lab.InEngineNamespace, inside.Do} {
		u.keepTracking(enter, "tcp_timeout_established", 5)
	}
	u.startIdle()
	for _, to := range []string{"203.0.113.69", "203.0.113.70"} {
		u.wait("the kernel keeps the connection to "+to, func() bool { return !u.tracked(lab.InEngineNamespace, to) && !u.tracked(inside.Do, to) })
	}
	u.endIdle()
}

// keepTracking sets a limit of connection tracking in a network namespace, in seconds, until the test ends.
func (u *user) keepTracking(enter func(func() error) error, limit string, seconds int) {
	u.t.Helper()
	file := "/proc/sys/net/netfilter/nf_conntrack_" + limit
	var before []byte
	set := func(value []byte) {
		if err := enter(func() (err error) {
			before, err = os.ReadFile(file)
			return errors.Join(err, os.WriteFile(file, value, 0))
		}); err != nil {
			u.t.Fatal(err)
		}
	}
	set(fmt.Append(nil, seconds))
	u.t.Cleanup(func() { set(before) })
}

func (u *user) namespace(container string) *netns.Namespace {
	u.t.Helper()
	key, err := docker("inspect", "--format", "{{.NetworkSettings.SandboxKey}}", container)
	if err != nil {
		u.t.Fatal(err)
	}
	ns, err := netns.Open(strings.TrimSpace(key), nil)
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { ns.Close() })
	return ns
}

// tracked reports whether the kernel keeps a connection to an address in a network namespace.
func (u *user) tracked(enter func(func() error) error, to string) (known bool) {
	u.t.Helper()
	if err := enter(func() error {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		known = slices.ContainsFunc(all, func(f *netlink.ConntrackFlow) bool { return f.Forward.DstIP.String() == to })
		return err
	}); err != nil {
		u.t.Fatal(err)
	}
	return known
}

// endIdle checks that the connections still work.
func (u *user) endIdle() {
	u.t.Helper()
	for _, file := range []string{"/tmp/named", "/tmp/address"} {
		if _, err := docker("exec", "use-idle", "rm", file); err != nil {
			u.t.Fatal(err)
		}
		var out string
		u.wait("a connection that was idle has not answered", func() bool {
			out, _ = docker("exec", "use-idle", "cat", file+".out")
			return out != ""
		})
		if out != "ok\n" {
			u.t.Errorf("%s, a connection that was idle: %s", file, out)
		}
	}
}

func (u *user) wait(not string, done func() bool) {
	u.t.Helper()
	for deadline := time.Now().Add(waitLimit); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			u.t.Fatalf("after %v: %s", waitLimit, not)
		}
	}
}
