package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"sluice/e2e/lab/internet"
)

// controller is "sluice serve" on the lab's engine, one for all scripts, for a host can have only one.
type controller struct {
	mu      sync.Mutex // guards all below
	dir     string
	process *exec.Cmd
	ended   chan error
}

var theController controller

// pageAddress is where its page is.
const pageAddress = "127.0.0.1:9466"

// socket is where it listens.
func (c *controller) socket() string { return filepath.Join(c.dir, "sluice.sock") }

// command runs the program in the engine's network namespace.
func (c *controller) command(args ...string) *exec.Cmd {
	// The strictest umask: what others have to reach gets its mode all the same.
	command := exec.Command("sh", append([]string{"-c", `umask 077; exec "$0" "$@"`, filepath.Join(lab.bin, "sluice"), "serve", "--socket", c.socket(),
		"--upstream", internet.Resolver.String(), "--proxy", filepath.Join(lab.bin, "sluice-proxy"), "--proxy-subnet6", "fd6a:7::/64",
		"--metrics", fmt.Sprint(":", controllerMetrics), "--proxy-metrics", fmt.Sprint(":", proxyMetrics),
		"--ui", pageAddress, "--keep-bridges", filepath.Join(c.dir, "bridges")}, args...)...)
	command.Env = append(command.Environ(), "DOCKER_HOST="+lab.DockerHost())
	return command
}

// start starts it, unless it runs.
func (c *controller) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.startLocked()
}

func (c *controller) startLocked(flags ...string) (err error) {
	if c.process != nil {
		return nil
	}
	if c.dir == "" {
		// Sockets have short paths, and state lies beside them.
		if c.dir, err = os.MkdirTemp("", "sluice-e2e-"); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	process := c.command(flags...)
	process.Stdout, process.Stderr = log, log
	if err := lab.InEngineNamespace(process.Start); err != nil {
		return fmt.Errorf("start the controller: %w", err)
	}
	c.process, c.ended = process, make(chan error, 1)
	go func() { c.ended <- process.Wait() }()
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("unix", c.socket())
		if err == nil {
			return conn.Close()
		}
		select {
		case ended := <-c.ended:
			c.process = nil
			return fmt.Errorf("the controller ended at once: %w\n%s", ended, c.logText())
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the controller did not listen within %v: %w\n%s", waitLimit, err, c.logText())
		}
	}
}

func (c *controller) logText() string {
	text, err := os.ReadFile(filepath.Join(c.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// startAs starts it anew with other flags.
func (c *controller) startAs(flags ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.killLocked(); err != nil {
		return err
	}
	return c.startLocked(flags...)
}

// kill ends it without a warning.
func (c *controller) kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.killLocked()
}

func (c *controller) killLocked() error {
	_, err := c.endLocked(os.Kill)
	return err
}

// stop tells it to end, and returns what came of it.
func (c *controller) stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended, err := c.endLocked(syscall.SIGTERM)
	return errors.Join(ended, err)
}

func (c *controller) endLocked(how os.Signal) (ended, err error) {
	if c.process == nil {
		return nil, nil
	}
	if err := c.process.Process.Signal(how); err != nil {
		return nil, err
	}
	ended = <-c.ended
	c.process = nil
	return ended, nil
}

// remove ends it and takes back all that it has done.
func (c *controller) remove(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dir == "" {
		return nil
	}
	if err := c.killLocked(); err != nil {
		return err
	}
	cleaner := c.command("--clear")
	var out []byte
	err := lab.InEngineNamespace(func() (err error) {
		out, err = cleaner.CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("clear the controller: %w\n%s", err, out)
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// cmdController looks after the lab's engine: controller start [FLAG...], controller kill, controller log.
func cmdController(ts *testscript.TestScript, neg bool, args []string) {
	switch {
	case len(args) == 1 && args[0] == "start" && !neg:
		ts.Check(theController.start())
		ts.Setenv("SLUICE_SOCKET", theController.socket())
	case len(args) > 1 && args[0] == "start" && !neg:
		ts.Defer(func() { ts.Check(theController.kill()) }) // others expect it without flags
		ts.Check(theController.startAs(args[1:]...))
		ts.Setenv("SLUICE_SOCKET", theController.socket())
	case len(args) == 1 && args[0] == "kill" && !neg:
		ts.Check(theController.kill())
	case len(args) == 1 && args[0] == "log" && !neg:
		ts.Logf("%s", theController.logText())
	default:
		ts.Fatalf("usage: controller start [FLAG...] | kill | log")
	}
}
