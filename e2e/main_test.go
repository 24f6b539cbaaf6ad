package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"

	"sluice/e2e/agentcompass"
	"sluice/e2e/lab/client"
	"sluice/e2e/lab/closed"
	"sluice/images"
)

var (
	runDocker   = flag.Bool("run-docker", false, "run the scenarios; needs root and what scripts/setup installs")
	proxyBinary = flag.String("proxy-binary", "", "the sidecar's static binary; built from this tree if not given")
	proxyImage  = flag.String("proxy-image", images.ProxyTag,
		"the image that AgentCompass starts as its proxy; "+client.Tag+" runs AgentCompass's own")
)

// lab is what all scenarios share. It is set before they run.
var lab struct {
	*closed.Lab
	python string // has AgentCompass
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
	var imgs []images.Image
	if *proxyImage == images.ProxyTag {
		binary, err := buildProxy(ctx)
		if err != nil {
			return 0, err
		}
		sidecar, err := images.SluiceProxy(binary)
		if err != nil {
			return 0, err
		}
		imgs = append(imgs, sidecar)
	}
	cache, err := client.CacheDir()
	if err != nil {
		return 0, err
	}
	if lab.python, err = agentcompass.Install(ctx, cache); err != nil {
		return 0, err
	}
	if lab.Lab, err = closed.Start(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	workload, err := client.Image(ctx, lab.Internet.CA())
	if err != nil {
		return 0, err
	}
	engine, err := lab.Engine()
	if err != nil {
		return 0, err
	}
	defer engine.Close()
	if err := images.Load(ctx, engine, append(imgs, workload)...); err != nil {
		return 0, err
	}
	code = m.Run()
	if code == 0 {
		err = findLeftovers(ctx)
	}
	return code, err
}

// buildProxy returns the static binary of the sidecar.
func buildProxy(ctx context.Context) ([]byte, error) {
	if *proxyBinary != "" {
		return os.ReadFile(*proxyBinary)
	}
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "sluice-proxy")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "sluice/cmd/proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the sidecar: %w\n%s", err, out)
	}
	return os.ReadFile(file)
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
