package closed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/client"

	"sluice/e2e/lab/internet"
)

// startLimit is how long containerd and dockerd may each take; they need one or two seconds.
const startLimit = time.Minute

// daemon is a program that runs in the engine's namespace until it is killed.
type daemon struct {
	name    string
	logFile string
	pid     int
	ended   chan struct{}
}

// startDaemon starts a program in the namespace of the engine, after the words of before, which end by running it. If
// this process dies, the program gets a SIGKILL.
func (l *Lab) startDaemon(before []string, name string, args ...string) (*daemon, error) {
	path, err := l.engine.look(name)
	if err != nil {
		return nil, err
	}
	if len(before) > 0 {
		args = slices.Concat(before[1:], []string{path}, args)
		if path, err = l.engine.look(before[0]); err != nil {
			return nil, err
		}
	}
	d := &daemon{name: name, logFile: filepath.Join(l.dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(d.logFile)
	if err != nil {
		return nil, err
	}
	command := exec.Command(path, args...)
	command.Env = l.EngineEnviron()
	command.Stdout, command.Stderr = log, log
	// A terminal's Ctrl-C is for us, not for the daemon.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		defer close(d.ended)
		defer log.Close()
		err := l.engineNS.Do(func() error {
			err := command.Start()
			started <- err
			if err == nil {
				// Pdeathsig goes by the thread that started the program, so this one has to stay.
				command.Wait()
			}
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	d.pid = command.Process.Pid
	return d, nil
}

// EngineEnviron is the environment of the engine's programs, which find others by its PATH.
func (l *Lab) EngineEnviron() []string {
	if l.engine.Dir == "" {
		return os.Environ()
	}
	return append(os.Environ(), "PATH="+l.engine.Dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// look finds a program also where the PATH of a user lacks the system's directories.
func (e Engine) look(name string) (string, error) {
	if e.Dir != "" {
		path, err := filepath.Abs(filepath.Join(e.Dir, name))
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed: apt-get install docker.io, or run scripts/setup", name)
}

// waitForSocket returns when something accepts connections at a unix socket.
func (d *daemon) waitForSocket(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("it did not open its socket in time"))
	defer cancel()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-d.ended:
			return fmt.Errorf("%s ended at once:\n%s", d.name, lastLines(d.logFile))
		case <-ctx.Done():
			return fmt.Errorf("%s: %w:\n%s", d.name, context.Cause(ctx), lastLines(d.logFile))
		}
	}
}

func lastLines(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// startEngine starts containerd and dockerd with everything of theirs below the lab's directory, and nothing from
// the machine's own configuration.
func (l *Lab) startEngine(ctx context.Context, o Options) error {
	containerdConfig := filepath.Join(l.dir, "containerd.toml")
	dockerdConfig := filepath.Join(l.dir, "dockerd.json")
	containerdSocket := filepath.Join(l.dir, "containerd.sock")
	if err := os.WriteFile(containerdConfig, []byte("disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(dockerdConfig, []byte("{}\n"), 0o600); err != nil {
		return err
	}
	var before []string
	if o.ResolvConf != "" {
		// Both daemons get mounts of their own, with another file at this place.
		file := l.path("resolv.conf")
		if err := os.WriteFile(file, []byte(o.ResolvConf), 0o644); err != nil {
			return err
		}
		before = []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, file}
	}
	containerd, err := l.startDaemon(before, "containerd",
		"--config", containerdConfig,
		"--address", containerdSocket,
		"--root", filepath.Join(l.dir, "containerd"),
		"--state", filepath.Join(l.dir, "containerd-state"),
	)
	if err != nil {
		return err
	}
	l.daemons = append(l.daemons, containerd)
	if err := containerd.waitForSocket(ctx, containerdSocket); err != nil {
		return err
	}
	args := []string{"--dns", internet.Resolver.String()}
	if o.ResolvConf != "" {
		args = nil
		l.mounts = fmt.Sprintf("/proc/%d/ns/mnt", containerd.pid)
		before = []string{"nsenter", "--mount=" + l.mounts}
	}
	args = append(args,
		"--config-file", dockerdConfig,
		"--containerd", containerdSocket,
		"--host", l.DockerHost(),
		"--data-root", filepath.Join(l.dir, "data"),
		"--exec-root", filepath.Join(l.dir, "exec"),
		"--pidfile", l.pidFile(),
		"--exec-opt", "native.cgroupdriver=cgroupfs",
		"--cgroup-parent", l.name,
		"--ipv6", "--fixed-cidr-v6", "fd65::/64",
		"--experimental", "--ip6tables", // 20.10 masquerades IPv6 only so
	)
	if l.engine.Firewall != "" {
		args = append(args, "--firewall-backend", l.engine.Firewall)
	}
	dockerd, err := l.startDaemon(before, "dockerd", args...)
	if err != nil {
		return err
	}
	l.daemons = append(l.daemons, dockerd)
	if err := dockerd.waitForSocket(ctx, l.socket()); err != nil {
		return err
	}
	// It accepts connections before it is ready, and answers then.
	engine, err := l.Engine()
	if err != nil {
		return err
	}
	defer engine.Close()
	if _, err := engine.Ping(ctx); err != nil {
		return fmt.Errorf("dockerd: %w:\n%s", err, lastLines(dockerd.logFile))
	}
	return l.LeaveBridgesAlone()
}

// LeaveBridgesAlone undoes what dockerd sets at its start and with each network: that all bridged packets meet the rules
// for routed ones. A host on which nobody has set it has to be as safe; what needs it sets it for the bridges it means.
func (l *Lab) LeaveBridgesAlone() error { return l.engineNS.Do(leaveBridgesAlone) }

func leaveBridgesAlone() error {
	for _, name := range []string{"iptables", "ip6tables", "arptables"} {
		err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+name, []byte("0"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // br_netfilter is not loaded
			return err
		}
	}
	return nil
}

// Engine returns a client of the lab's engine, which the caller closes.
func (l *Lab) Engine() (*client.Client, error) {
	return client.NewClientWithOpts(client.WithHost(l.DockerHost()), client.WithAPIVersionNegotiation())
}
