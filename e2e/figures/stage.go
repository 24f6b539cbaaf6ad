package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/controller/api"
	"sluice/dockernet/netns"
	"sluice/e2e/agentcompass"
	workload "sluice/e2e/lab/client"
	"sluice/e2e/lab/closed"
	"sluice/e2e/lab/internet"
	"sluice/images"
)

const (
	// startLimit is how long the controller and its sidecar may take to be there.
	startLimit = time.Minute
	// image is what the containers run.
	image = workload.Tag
)

// stage is the lab with a controller.
type stage struct {
	settings
	*closed.Lab
	closers []io.Closer
	python  string // has AgentCompass
	dir     string
	runDir  string   // of the controller's socket and state
	before  []string // the words before the controller's
	serve   *exec.Cmd
	ended   chan error
	sidecar int // its process id
	front   *front
	api     api.Client
	sink    net.Listener // on every address of the internet
	crowded bool         // the simulated containers are attached

	noted    map[string]float64 // figures, for other programs
	files    uint64             // how many descriptors a program that has no more had
	versions int                // of the programs, after the first
}

const sinkPort = 9100

// maxFiles is how many descriptors the programs here may have: some twenty for each container of a crowd.
const maxFiles = 1 << 18

func setStage(ctx context.Context, s settings) (_ *stage, err error) {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: maxFiles, Max: maxFiles}); err != nil {
		// What it is by now has to do.
		fmt.Fprintf(os.Stderr, "figures: allow %d descriptors: %v: a large crowd may not find room\n", maxFiles, err)
	}
	st := &stage{settings: s, noted: map[string]float64{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, st.close())
		}
	}()
	// Sockets have short paths.
	if st.dir, err = os.MkdirTemp("", "figures-"); err != nil {
		return nil, err
	}
	st.runDir = st.dir
	if err := st.build(ctx); err != nil {
		return nil, err
	}
	cache, err := workload.CacheDir()
	if err != nil {
		return nil, err
	}
	if st.python, err = agentcompass.Install(ctx, cache); err != nil {
		return nil, err
	}
	if st.Lab, err = closed.Start(ctx); err != nil {
		return nil, err
	}
	st.closers = append(st.closers, st.Lab)
	engine, err := st.Engine()
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	img, err := workload.Image(ctx, st.Internet.CA())
	if err != nil {
		return nil, err
	}
	if err := images.Load(ctx, engine, img); err != nil {
		return nil, err
	}
	if err := st.Internet.Enter(func() (err error) {
		st.sink, err = listen(":" + strconv.Itoa(sinkPort))
		return err
	}); err != nil {
		return nil, err
	}
	st.closers = append(st.closers, st.sink)
	if st.front, err = openFront(filepath.Join(st.dir, "docker.sock"), st.DockerHost()); err != nil {
		return nil, err
	}
	st.closers = append(st.closers, st.front)
	return st, st.startController()
}

// listen opens plain TCP.
func listen(address string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	return config.Listen(context.Background(), "tcp", address)
}

func (st *stage) build(ctx context.Context) error {
	if st.bin != "" {
		return nil
	}
	st.bin = st.dir
	for name, source := range map[string]string{"sluice-proxy": "sluice/cmd/proxy", "sluice": "sluice/cmd/controller"} {
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(st.bin, name), source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

func (st *stage) startController() error {
	st.api.Socket = filepath.Join(st.runDir, "sluice.sock")
	log, err := os.Create(filepath.Join(st.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	st.serve = st.command()
	st.serve.Stdout, st.serve.Stderr = log, log
	st.serve.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := st.InEngineNamespace(st.serve.Start); err != nil {
		return fmt.Errorf("start the controller: %w", err)
	}
	st.ended = make(chan error, 1)
	go func() { st.ended <- st.serve.Wait() }()
	for deadline := time.Now().Add(startLimit); ; time.Sleep(20 * time.Millisecond) {
		if pid, err := st.sidecarPID(); err == nil && pid > 0 {
			st.sidecar = pid
			if conn, err := net.Dial("unix", st.api.Socket); err == nil {
				return conn.Close()
			}
		}
		if time.Now().After(deadline) {
			text, err := os.ReadFile(log.Name())
			return errors.Join(fmt.Errorf("the controller was not there within %v:\n%s", startLimit, text), err)
		}
	}
}

// command is "sluice serve".
func (st *stage) command(more ...string) *exec.Cmd {
	line := slices.Concat(st.before, []string{filepath.Join(st.bin, "sluice"), "serve", "--socket", st.api.Socket,
		"--upstream", internet.Resolver.String(), "--proxy", filepath.Join(st.bin, "sluice-proxy")}, more)
	serve := exec.Command(line[0], line[1:]...)
	serve.Env = append(os.Environ(), "DOCKER_HOST=unix://"+st.front.path)
	return serve
}

// sidecarPID is that of the newest, beside which a former one may drain; 0 while there is none.
func (st *stage) sidecarPID() (int, error) {
	out, err := st.docker("ps", "--quiet", "--filter", "label=sluice.internal=proxy")
	if err != nil || out == "" {
		return 0, err
	}
	newest, _, _ := strings.Cut(out, "\n")
	if out, err = st.docker("inspect", "--format", "{{.State.Pid}}", newest); err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

// used runs do, and returns what the controller and the sidecar have used of the processors meanwhile.
func (st *stage) used(do func() error) (time.Duration, error) {
	pids := []int{st.serve.Process.Pid, st.sidecar}
	before, err := cpuOf(pids...)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := cpuOf(pids...)
	return after - before, err
}

// docker runs the Docker command line on the lab's engine.
func (st *stage) docker(args ...string) (string, error) {
	command := exec.Command("docker", args...)
	command.Env = append(os.Environ(), "DOCKER_HOST="+st.DockerHost())
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// close ends all of it. Rules, simulated containers and the sidecar go with the lab.
func (st *stage) close() error {
	var errs []error
	if st.serve != nil && st.serve.Process != nil {
		errs = append(errs, st.serve.Process.Kill())
		<-st.ended
	}
	slices.Reverse(st.closers)
	for _, c := range st.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(st.dir))...)
}

// container is a real one.
type container struct {
	name string
	ns   *netns.Namespace
	ip   string
}

// start runs a container on a network of the engine.
func (st *stage) start(name, network string) (*container, error) {
	if _, err := st.docker("run", "--detach", "--name", name, "--network", network, image, "sleep", "infinity"); err != nil {
		return nil, err
	}
	out, err := st.docker("inspect", "--format", "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)
	if err != nil {
		return nil, err
	}
	c := &container{name: name}
	var pid int
	if _, err := fmt.Sscan(out, &pid, &c.ip); err != nil {
		return nil, fmt.Errorf("container %s: %w: %q", name, err, out)
	}
	c.ns, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid), nil)
	return c, err
}

// remove ends it.
func (st *stage) remove(c *container) error {
	c.ns.Close()
	_, err := st.docker("rm", "--force", c.name)
	return err
}

// dial opens a connection from inside of the container.
func (c *container) dial(address string) (conn net.Conn, err error) {
	err = c.ns.Do(func() error {
		dialer := net.Dialer{Timeout: 20 * time.Second}
		dialer.SetMultipathTCP(false)
		conn, err = dialer.Dial("tcp4", address)
		return err
	})
	return conn, err
}

// document is a policy document with a number of targets in each of two phases, half of them names, and what else
// phase run allows.
func document(targets int, run ...string) json.RawMessage {
	list := func(phase int, more ...string) map[string]any {
		all := more
		for i := len(more); i < targets; i++ {
			if i%2 == 0 {
				all = append(all, fmt.Sprintf("host-%d.phase-%d.test", i, phase))
			} else {
				all = append(all, fmt.Sprintf("10.%d.%d.%d", 100+2*phase+i>>16, i>>8&255, i&255))
			}
		}
		return map[string]any{"network_mode": "allowlist", "allowed_hosts": all}
	}
	text, err := json.Marshal(map[string]any{
		"baseline_network_policy": "public", "run_network_policy": list(1, run...), "evaluation_network_policy": list(2),
	})
	if err != nil {
		panic(err) // strings and maps of them
	}
	return text
}

// until tries again until something works, or has not worked for too long.
func (st *stage) until(ctx context.Context, works func() error) error {
	for deadline := time.Now().Add(recoverLimit); ; time.Sleep(5 * time.Millisecond) {
		err := works()
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
	}
}
