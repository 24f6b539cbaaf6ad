package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"sluice/e2e/lab/internet"
)

// commands are what scripts may say beside testscript's own commands; testdata/README.md explains them.
var commands = map[string]func(*testscript.TestScript, bool, []string){
	"task":         cmdTask,
	"tunnel":       cmdTunnel,
	"internet-saw": cmdInternetSaw,
	"wait-for":     cmdWaitFor,
	"capture":      cmdCapture,
	"controller":   cmdController,
	"engine":       cmdEngine,
	"schema":       cmdSchema,
}

func TestReadmeExplainsEveryCommand(t *testing.T) {
	readme, err := os.ReadFile("testdata/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range commands {
		if !strings.Contains(string(readme), "\n| `"+name+" ") {
			t.Errorf("testdata/README.md has no row for the command %q", name)
		}
	}
}

func TestScenarios(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	p := params(t)
	p.Dir = "testdata"
	testscript.Run(t, p)
}

// params are what all scripts share.
func params(t *testing.T) testscript.Params {
	return testscript.Params{
		RequireUniqueNames: true,
		Cmds:               commands,
		Setup: func(env *testscript.Env) error {
			s := newScript()
			var err error
			if s.before, err = lab.Internet.Counts(); err != nil {
				return err
			}
			env.Values[scriptKey{}] = s
			env.Setenv("DOCKER_HOST", lab.DockerHost())
			env.Setenv("SLUICE_IMAGE", *proxyImage)
			env.Setenv("INTERNET_DNS", internet.Resolver.String())
			profile, err := filepath.Abs("../examples/seccomp/sluice-proxy.json")
			if err != nil {
				return err
			}
			env.Setenv("SECCOMP", profile)
			compose, err := composeConfig(context.Background())
			if err != nil {
				return err
			}
			env.Setenv("COMPOSE", compose)
			env.Setenv("T", s.prefix)
			env.Setenv("BIN", lab.bin)
			env.Setenv("PATH", lab.bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Defer(func() { s.cleanUp(t) })
			return nil
		},
	}
}

// cleanUp removes what a script has not removed itself, because it failed or because it need not.
func (s *script) cleanUp(t *testing.T) {
	if s.task != nil {
		if err := s.task.Close(); err != nil {
			t.Errorf("close the task: %v", err)
		}
	}
	for _, what := range []struct{ list, remove string }{
		{"ps --all --quiet --filter name=" + s.prefix, "rm --force --volumes"},
		{"network ls --quiet --filter name=" + s.prefix, "network rm"},
	} {
		found, err := docker(strings.Fields(what.list)...)
		if err != nil {
			t.Error(err)
			continue
		}
		if ids := strings.Fields(found); len(ids) > 0 {
			if _, err := docker(append(strings.Fields(what.remove), ids...)...); err != nil {
				t.Error(err)
			}
		}
	}
}

// docker runs the Docker command line on the lab's engine.
func docker(args ...string) (string, error) {
	command := exec.Command("docker", args...)
	command.Env = append(command.Environ(), "DOCKER_HOST="+lab.DockerHost())
	out, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
