package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
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
		ts.Check(lab.StopEngine(context.Background(), syscall.SIGTERM))
	case len(args) == 1 && args[0] == "start" && !neg:
		ts.Check(lab.StartEngine(context.Background()))
	case len(args) == 1 && args[0] == "restart" && !neg:
		ts.Check(lab.StopEngine(context.Background(), syscall.SIGTERM))
		ts.Check(lab.StartEngine(context.Background()))
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
