package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"

	"sluice/e2e/agentcompass"
	"sluice/e2e/lab/client"
	"sluice/e2e/lab/closed"
	"sluice/images"
)

var (
	runDocker  = flag.Bool("run-docker", false, "run the scenarios; needs root and what scripts/setup installs")
	binDir     = flag.String("bin", "", "where sluice-proxy and demo are, static; they are built from this tree if not given")
	proxyImage = flag.String("proxy-image", images.ProxyTag,
		"the image that AgentCompass starts as its proxy; "+client.Tag+" runs AgentCompass's own")
	labEngine = closed.EngineFlags()
)

// lab is what all scenarios share. It is set before they run.
var lab struct {
	*closed.Lab
	python string // has AgentCompass
	bin    string // has sluice-proxy and demo
}

func TestMain(m *testing.M) {
	flag.Parse()
	if !*runDocker {
		os.Exit(m.Run())
	}
	code, err := runInLab(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runInLab(m *testing.M) (code int, err error) {
	ctx := context.Background()
	bin, err := binaries(ctx)
	if err != nil {
		return 0, err
	}
	defer bin.remove()
	lab.bin = bin.dir
	binary, err := os.ReadFile(filepath.Join(bin.dir, "sluice-proxy"))
	if err != nil {
		return 0, err
	}
	sidecar, err := images.SluiceProxy(binary)
	if err != nil {
		return 0, err
	}
	cache, err := client.CacheDir()
	if err != nil {
		return 0, err
	}
	if lab.python, err = agentcompass.Install(ctx, cache); err != nil {
		return 0, err
	}
	if lab.Lab, err = closed.StartWith(ctx, closed.Options{Engine: *labEngine}); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	removeOnInterrupt()
	workload, err := client.Image(ctx, lab.Internet.CA())
	if err != nil {
		return 0, err
	}
	engine, err := lab.Engine()
	if err != nil {
		return 0, err
	}
	defer engine.Close()
	attacker, err := attackerImage(ctx)
	if err != nil {
		return 0, err
	}
	if err := images.Load(ctx, engine, sidecar, workload, attacker); err != nil {
		return 0, err
	}
	code = m.Run()
	if err := theController.remove(ctx); err != nil {
		return code, err
	}
	if code == 0 {
		err = findLeftovers(ctx)
	}
	return code, err
}

// removeOnInterrupt removes the lab on Ctrl-C, which would otherwise leave that to the next run.
func removeOnInterrupt() {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		if err := lab.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
		}
		os.Exit(130)
	}()
}

// built is a directory with the static programs that the scenarios run.
type built struct {
	dir    string
	remove func() error
}

func binaries(ctx context.Context) (built, error) {
	if *binDir != "" {
		return built{*binDir, func() error { return nil }}, nil
	}
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		return built{}, err
	}
	b := built{dir, func() error { return os.RemoveAll(dir) }}
	for name, source := range map[string]string{"sluice-proxy": "sluice/cmd/proxy", "demo": "sluice/e2e/demo", "sluice": "sluice/cmd/controller",
		"sluice-harbor": "sluice/cmd/harbor"} {
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, name), source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return built{}, errors.Join(fmt.Errorf("build %s: %w\n%s", name, err, out), b.remove())
		}
	}
	return b, nil
}

// findLeftovers reports what scenarios that passed have left in the engine.
func findLeftovers(ctx context.Context) error {
	engine, err := lab.Engine()
	if err != nil {
		return err
	}
	defer engine.Close()
	var left []string
	containers, err := engine.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return err
	}
	for _, c := range containers {
		left = append(left, "container "+strings.Join(c.Names, " "))
	}
	networks, err := engine.NetworkList(ctx, network.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range networks {
		if n.Name != "bridge" && n.Name != "host" && n.Name != "none" {
			left = append(left, "network "+n.Name)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("the scenarios passed but left behind: %s", strings.Join(left, ", "))
	}
	return nil
}
