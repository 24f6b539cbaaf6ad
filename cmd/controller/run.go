package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/go-units"
	"github.com/moby/term"
	"github.com/spf13/cobra"

	"sluice/control"
	"sluice/controller/api"
	"sluice/controller/launch"
	"sluice/policy"
)

// exitCode is the error of a command that ends with the exit code of the program that it ran.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("the program ended with exit code %d", int(c)) }

func newRun(g *globals) *cobra.Command {
	var s launch.Spec
	cmd := &cobra.Command{
		Use:   "run [flags] -- IMAGE [COMMAND...]",
		Short: "Run a container under a policy from its first instruction",
		Long: `Run is "docker run" for a container that is under its policy before its first instruction, and stays so whatever
becomes of it: another container, which does nothing, holds its network. The exit code is that of its program.
Its seccomp profile is Docker's, and refuses sockets that no network rule sees as well, of AF_VSOCK for instance.

The policy is that of a file, or an allowlist of the targets given with --allow; without either nothing is allowed.
Where no controller listens on the socket, one is started, which ends with the last container that it looks after.`,
		Example: "  sluice run --allow example.com -- alpine wget -qO- https://example.com",
		Args:    cobra.MinimumNArgs(1),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false)
	allow := flags.StringSlice("allow", nil, "allow the `TARGET`: a host, *.host, an address or a network, with :PORT or without")
	file := flags.String("policy", "", "the policy `FILE`, \"-\" for stdin")
	phase := addFirstPhase(cmd)
	flags.BoolVar(&s.AllowWeak, "allow-weak", false, "accept what may get round the policy, as far as that is possible")
	flags.BoolVar(&s.Verify, "verify", false, "prove by probes that the policy holds, before its first instruction, or do not run it")
	flags.StringVar(&s.Name, "name", "", "the container's name")
	flags.BoolVarP(&s.Detach, "detach", "d", false, "do not wait for it: print its id")
	flags.BoolVar(&s.Keep, "keep", false, "do not remove it when it has ended")
	flags.BoolVarP(&s.Interactive, "interactive", "i", false, "pass stdin on")
	flags.BoolVarP(&s.TTY, "tty", "t", false, "give it a terminal")
	flags.StringArrayVarP(&s.Env, "env", "e", nil, "set `NAME=VALUE` in its environment")
	flags.StringArrayVarP(&s.Volumes, "volume", "v", nil, "mount `SOURCE:TARGET[:ro]`")
	flags.StringVarP(&s.Workdir, "workdir", "w", "", "its working directory")
	flags.StringVarP(&s.User, "user", "u", "", "its user")
	flags.StringVar(&s.Entrypoint, "entrypoint", "", "the program to run instead of the image's")
	memory := flags.StringP("memory", "m", "", "its limit of memory, 2g for instance")
	flags.StringVar(&s.Restart, "restart", "no", "when the engine starts it again: no, on-failure, always, unless-stopped")
	flags.StringVar(&s.Network, "network", "bridge", "the bridge network to be on")
	flags.StringVar(&s.Hostname, "hostname", "", "its host name")
	flags.StringArrayVarP(&s.Publish, "publish", "p", nil, "publish a port, HOST:CONTAINER")
	flags.StringSliceVar(&s.DNS, "dns", nil, "the DNS server `ADDR` for it")
	flags.StringArrayVar(&s.ExtraHosts, "add-host", nil, "make a name known, NAME:ADDRESS")
	flags.StringSliceVar(&s.CapDrop, "cap-drop", nil, "take a capability away")
	security := flags.StringArray("security-opt", nil, "a security option, seccomp=`FILE` for instance; seccomp=builtin is the engine's own profile")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.Image, s.Command, s.Phase = args[0], args[1:], phase.String()
		var err error
		if s.Policies, err = runPolicies(cmd, *file, *allow); err != nil {
			return err
		}
		if *memory != "" {
			if s.Memory, err = units.RAMInBytes(*memory); err != nil {
				return fmt.Errorf("--memory: %w", err)
			}
		}
		if s.SecurityOpt, err = securityOptions(*security); err != nil {
			return fmt.Errorf("--security-opt: %w", err)
		}
		if s.Detach && (s.Interactive || s.TTY) {
			return errors.New("--detach has no use for --interactive and --tty")
		}
		if s.Restart != "no" {
			s.Keep = true
		}
		return runContainer(cmd, g, s)
	}
	return cmd
}

// runPolicies are those of a file, or one that allows some targets in every phase.
func runPolicies(cmd *cobra.Command, file string, allow []string) ([]byte, error) {
	if file != "" {
		if len(allow) > 0 {
			return nil, errors.New("--allow and --policy: give one of them")
		}
		return readPolicies(cmd, file)
	}
	p := policy.Policy{}
	if len(allow) > 0 {
		text, err := allowlist(allow)
		if err != nil {
			return nil, err
		}
		if p, err = policy.ParsePolicy(text); err != nil {
			return nil, fmt.Errorf("--allow: %w", err)
		}
	}
	return policy.Phases{p, p, p}.MarshalJSON()
}

// securityOptions reads the file of a seccomp profile, whose text the engine wants.
func securityOptions(options []string) ([]string, error) {
	options = slices.Clone(options)
	for i, o := range options {
		file, is := strings.CutPrefix(o, "seccomp=")
		if !is || file == "unconfined" || file == "builtin" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("seccomp profile: %w", err)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, text); err != nil {
			return nil, fmt.Errorf("seccomp profile %s: %w", file, err)
		}
		options[i] = "seccomp=" + compact.String()
	}
	return options, nil
}

func runContainer(cmd *cobra.Command, g *globals, s launch.Spec) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	if err := ensureController(ctx, g.socket); err != nil {
		return failed(err)
	}
	docker, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return failed(fmt.Errorf("engine client: %w", err))
	}
	defer docker.Close()
	streams := launch.Streams{In: cmd.InOrStdin(), Out: unbuffered(cmd), Err: cmd.ErrOrStderr()}
	if s.Detach {
		streams.Started = func(id string) { cmd.Println(id) }
	} else {
		signals, stop := forwardSignals()
		defer stop()
		streams.Signals = signals
	}
	if s.TTY && s.Interactive {
		if fd, is := term.GetFdInfo(streams.In); is {
			before, err := term.SetRawTerminal(fd)
			if err != nil {
				return failed(fmt.Errorf("terminal: %w", err))
			}
			defer func() { _ = term.RestoreTerminal(fd, before) }()
			streams.Started = func(id string) { resize(ctx, docker, id, fd) }
		}
	}
	code, err := launch.Run(ctx, docker, attacher{g}, s, streams)
	if err != nil {
		return failed(reachable(err))
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

// resize gives a container's terminal the size of ours.
func resize(ctx context.Context, docker *client.Client, id string, fd uintptr) {
	if size, err := term.GetWinsize(fd); err == nil {
		_ = docker.ContainerResize(ctx, id, container.ResizeOptions{Height: uint(size.Height), Width: uint(size.Width)})
	}
}

// forwardSignals returns the names of the signals that this process gets, until stop is called.
func forwardSignals() (names <-chan string, stop func()) {
	signals, out, done := make(chan os.Signal, 8), make(chan string), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		defer close(done)
		for s := range signals {
			name := map[os.Signal]string{os.Interrupt: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGQUIT: "QUIT"}[s]
			select {
			case out <- name:
			case <-time.After(time.Second): // nobody is there yet, or any more
			}
		}
	}()
	return out, func() {
		signal.Stop(signals)
		close(signals)
		<-done
	}
}

// attacher asks the controller to attach, and starts another one where it is just ending with its last container.
type attacher struct{ g *globals }

func (a attacher) Attach(ctx context.Context, what api.Attach) (status api.Status, err error) {
	const attempts, pause = 3, 100 * time.Millisecond
	for range attempts {
		status, err = a.g.client().Attach(ctx, what)
		if answer, ok := errors.AsType[*control.Error](err); err == nil || ok && answer.Code != control.CodeInternal {
			return status, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return status, ctx.Err()
		}
		if err := ensureController(ctx, a.g.socket); err != nil {
			return status, err
		}
	}
	return status, err
}

// ping asks whether the engine is there.
func ping(ctx context.Context) error {
	docker, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return fmt.Errorf("engine client: %w", err)
	}
	defer docker.Close()
	_, err = docker.Ping(ctx)
	return reachable(err)
}

// startLimit is how long a controller may take to listen.
const startLimit = 20 * time.Second

// ensureController starts a controller on a socket where none listens. It does not where there is no engine, so that
// nothing is left behind.
func ensureController(ctx context.Context, socket string) error {
	if listens(socket) {
		return nil
	}
	if err := ping(ctx); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start a controller: %w", err)
	}
	dir := filepath.Dir(socket)
	err = os.MkdirAll(filepath.Dir(dir), 0o755)
	if err == nil {
		err = os.Mkdir(dir, 0o750)
	}
	if err == nil {
		err = os.Chmod(dir, 0o750) // whatever the caller's umask: the group has to reach the socket
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("start a controller: %w", err)
	}
	path := filepath.Join(dir, "log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start a controller: %w", err)
	}
	defer log.Close()
	daemon := exec.Command(self, "serve", "--socket", socket, "--until-idle")
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = detached()
	if err := daemon.Start(); err != nil {
		return fmt.Errorf("start a controller: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }() // it outlives this process, or ends at once
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for !listens(socket) {
		select {
		case err := <-ended:
			return fmt.Errorf("the controller ended at once (%w): %s", err, lastWords(path))
		case <-ctx.Done():
			return fmt.Errorf("the controller does not listen: %s", lastWords(path))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// reachable says what to do where the engine cannot be asked.
func reachable(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: be root, or in the group that may use the engine's socket", err)
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf("%w: start the engine, or name its socket by DOCKER_HOST", err)
	}
	return err
}

// lastWords is the last line of a controller's log, and where the rest is.
func lastWords(path string) string {
	const enough = 4096
	if f, err := os.Open(path); err == nil {
		defer f.Close()
		if info, err := f.Stat(); err == nil {
			text, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-enough), enough))
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			if last := lines[len(lines)-1]; last != "" {
				return fmt.Sprintf("%s (see %s)", clean(strings.TrimPrefix(last, "sluice: ")), path)
			}
		}
	}
	return "see " + path
}

func listens(socket string) bool {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
