package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"sluice/images"
)

// TestAlone runs the scripts of testdata/alone one after another: what they do to the controller, the engine and the
// host's rules concerns all containers.
func TestAlone(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	files, err := filepath.Glob("testdata/alone/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		// Scripts of one call run side by side.
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			p := params(t)
			setup := p.Setup
			p.Setup = func(env *testscript.Env) error {
				env.Setenv("ENGINE_DIR", engineDir())
				env.Setenv("ENGINE_NET", filepath.Join(engineDir(), "engine.netns"))
				return setup(env)
			}
			p.Files = []string{file}
			testscript.Run(t, p)
		})
	}
}

// cmdEngine is about the lab's engine: engine restart, stop, start, engine load, which gives it the controller's image, engine exec PROGRAM ARG..., which runs a program in its network.
func cmdEngine(ts *testscript.TestScript, neg bool, args []string) {
	switch {
	case len(args) == 1 && args[0] == "stop" && !neg:
		stopEngine(ts)
	case len(args) == 1 && args[0] == "start" && !neg:
		startEngine(ts)
	case len(args) == 1 && args[0] == "restart" && !neg:
		stopEngine(ts)
		startEngine(ts)
	case len(args) == 1 && args[0] == "load" && !neg:
		ts.Check(loadController())
	case len(args) > 1 && args[0] == "exec":
		command := exec.Command(args[1], args[2:]...)
		command.Stdout, command.Stderr = ts.Stdout(), ts.Stderr()
		err := lab.InEngineNamespace(command.Run)
		if (err != nil) != neg {
			ts.Fatalf("%s: %v", args[1], err)
		}
	default:
		ts.Fatalf("usage: engine restart | stop | start | load | exec PROGRAM ARG...")
	}
}

func loadController() error {
	var binaries [2][]byte
	for i, name := range []string{"sluice", "sluice-proxy"} {
		var err error
		if binaries[i], err = os.ReadFile(filepath.Join(lab.bin, name)); err != nil {
			return err
		}
	}
	image, err := images.Sluice(binaries[0], binaries[1])
	if err != nil {
		return err
	}
	engine, err := lab.Engine()
	if err != nil {
		return err
	}
	defer engine.Close()
	return images.Load(context.Background(), engine, image)
}

// engineDir is where the lab keeps the engine's files, and the file that stands for its network.
func engineDir() string { return filepath.Dir(strings.TrimPrefix(lab.DockerHost(), "unix://")) }

// engineLine is how dockerd was started.
var engineLine []string

// stopEngine stops dockerd, which stops all containers.
func stopEngine(ts *testscript.TestScript) {
	dir := engineDir()
	text, err := os.ReadFile(filepath.Join(dir, "docker.pid"))
	ts.Check(err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	ts.Check(err)
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	ts.Check(err)
	engineLine = nil
	for arg := range bytes.SplitSeq(bytes.TrimSuffix(line, []byte{0}), []byte{0}) {
		engineLine = append(engineLine, string(arg))
	}
	ts.Check(syscall.Kill(pid, syscall.SIGTERM))
	eventually(ts, func() (bool, string) {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH), "dockerd has not ended"
	})
}

// startEngine starts dockerd as it was started before.
func startEngine(ts *testscript.TestScript) {
	if engineLine == nil {
		ts.Fatalf("stop the engine first")
	}
	log, err := os.OpenFile(filepath.Join(engineDir(), "dockerd.log"), os.O_APPEND|os.O_WRONLY, 0)
	ts.Check(err)
	defer log.Close()
	again := exec.Command(engineLine[0], engineLine[1:]...)
	again.Env = lab.EngineEnviron()
	again.Stdout, again.Stderr = log, log
	again.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	ts.Check(lab.InEngineNamespace(again.Start))
	go again.Wait() // the lab ends it with all that is in its network
	eventually(ts, func() (bool, string) {
		_, err := docker("version")
		return err == nil, fmt.Sprint("the engine does not answer: ", err)
	})
}
