package closed

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	docker "github.com/moby/docker-image-spec/specs-go/v1"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"sluice/images"
)

var runDocker = flag.Bool("run-docker", false, "start Docker engines in network namespaces; needs root and what scripts/setup installs")

// victimVariable makes the test binary a process that starts a lab with containers and waits to be killed. Its value
// is the path of the program, testdata/pause, that the containers run.
const victimVariable = "LAB_TEST_VICTIM"

func TestMain(m *testing.M) {
	if program := os.Getenv(victimVariable); program != "" {
		if err := startVictim(program); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		fmt.Println("ready")
		time.Sleep(time.Hour)
	}
	os.Exit(m.Run())
}

func startVictim(program string) error {
	ctx := context.Background()
	l, err := Start(ctx)
	if err != nil {
		return err
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := images.NewLayer(images.File{Path: "/pause", Mode: 0o755, Body: binary})
	if err != nil {
		return err
	}
	engine, err := l.Engine()
	if err != nil {
		return err
	}
	defer engine.Close()
	img := images.Image{Tag: "pause:test", Layers: []images.Layer{layer}, Config: docker.DockerOCIImageConfig{
		ImageConfig: oci.ImageConfig{Entrypoint: []string{"/pause"}}}}
	if err := images.Load(ctx, engine, img); err != nil {
		return err
	}
	for _, network := range []string{"bridge", "host"} {
		created, err := engine.ContainerCreate(ctx, &container.Config{Image: img.Tag},
			&container.HostConfig{NetworkMode: container.NetworkMode(network)}, nil, nil, "")
		if err != nil {
			return err
		}
		if err := engine.ContainerStart(ctx, created.ID, container.StartOptions{}); err != nil {
			return err
		}
		if network == "bridge" {
			if err := engine.ContainerPause(ctx, created.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

func needDocker(t *testing.T) {
	t.Helper()
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e/lab/closed -run-docker")
	}
}

// leftovers lists what a lab has on the machine.
func leftovers(t *testing.T, l *Lab) []string {
	t.Helper()
	var found []string
	for _, path := range []string{l.dir, l.path(engineNS), l.path(internetNS)} {
		if _, err := os.Stat(path); err == nil {
			found = append(found, path)
		}
	}
	cgroups, err := filepath.Glob("/sys/fs/cgroup/*/" + l.name)
	if err != nil {
		t.Fatal(err)
	}
	found = append(found, cgroups...)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, l.dir+"/") || strings.Contains(line, l.name+"-") {
			found = append(found, line)
		}
	}
	return slices.Concat(found, processesWith(t, l.dir+"/"), containerProcesses(t))
}

// containerProcesses lists the workloads of startVictim.
func containerProcesses(t *testing.T) []string { return processesWith(t, " /pause\n") }

func processesWith(t *testing.T, text string) []string {
	t.Helper()
	processes, err := exec.Command("ps", "-e", "-o", "pid,args").Output()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(processes)) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func TestCloseLeavesNothing(t *testing.T) {
	needDocker(t)
	l, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(leftovers(t, l)) == 0 {
		t.Error("nothing is found of a running lab: this test would see no leftovers")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if found := leftovers(t, l); len(found) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(found, "\n"))
	}
}

func TestStartRemovesWhatAKilledRunLeft(t *testing.T) {
	needDocker(t)
	pause := filepath.Join(t.TempDir(), "pause")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", pause, "./testdata/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // the image has no libraries
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the containers' program: %v\n%s", err, out)
	}
	victim := exec.CommandContext(t.Context(), "/proc/self/exe")
	victim.Env = append(os.Environ(), victimVariable+"="+pause)
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the process to be killed said %q, %v", line, err)
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	victim.Wait()
	if processes := containerProcesses(t); len(processes) != 2 {
		t.Errorf("%d containers outlive their lab, want both: nothing is tested here\n%s", len(processes), processes)
	}

	next, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	engine, err := next.Engine()
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if list, err := engine.ContainerList(t.Context(), container.ListOptions{All: true}); err != nil || len(list) != 0 {
		t.Errorf("%d containers in the new lab, %v; want none", len(list), err)
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	if found := leftovers(t, next); len(found) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(found, "\n"))
	}
}

func TestLabsSideBySide(t *testing.T) {
	needDocker(t)
	var labs []*Lab
	for range 2 {
		l, err := Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		labs = append(labs, l)
	}
	if labs[0].DockerHost() == labs[1].DockerHost() {
		t.Errorf("both labs have the engine %s", labs[0].DockerHost())
	}
	if err := labs[0].Close(); err != nil {
		t.Error(err)
	}
	engine, err := labs[1].Engine()
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	if _, err := engine.Ping(t.Context()); err != nil {
		t.Errorf("the second lab's engine after the first lab was closed: %v", err)
	}
	if err := labs[1].Close(); err != nil {
		t.Error(err)
	}
	for _, l := range labs {
		if found := leftovers(t, l); len(found) > 0 {
			t.Errorf("left behind:\n%s", strings.Join(found, "\n"))
		}
	}
}
