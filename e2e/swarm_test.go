package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/docs/shown"
	"sluice/e2e/lab/client"
)

// TestSwarm does what the page about swarms shows, on a swarm of one node: a controller that a global service starts, a
// workload on the node's bridge with its policy in labels, and a real Prometheus that finds the node by the swarm.
func TestSwarm(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if labEngine.Firewall == "nftables" {
		const want = "nftables is incompatible with swarm mode"
		if _, err := docker("swarm", "init", "--advertise-addr", "127.0.0.1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q, as the page about swarms does", err, want)
		}
		return
	}
	if err := theController.kill(); err != nil { // a host has one
		t.Fatal(err)
	}
	namespaces := shareNamespaces(t)
	const image = "buildpack-deps:curl"
	tags := []string{image, "docker:cli", "prom/prometheus", "sluice:dev"}
	t.Cleanup(func() {
		for _, args := range [][]string{{"stack", "rm", "work", "sluice"}, {"swarm", "leave", "--force"}} {
			if _, err := docker(args...); err != nil && !t.Failed() { // after a failure there may be less to remove
				t.Error(err)
			}
		}
		for _, n := range []string{"tasks-here", "docker_gwbridge"} {
			_, _ = docker("network", "rm", n)
		}
		for _, tag := range tags {
			_, _ = docker("rmi", "--force", tag)
		}
	})
	if _, err := docker("tag", client.Tag, image); err != nil {
		t.Fatal(err)
	}
	if err := loadController(); err != nil {
		t.Fatal(err)
	}
	imageWith(t, "docker:cli", "docker", "")
	imageWith(t, "prom/prometheus", "prometheus", `ENTRYPOINT ["/usr/local/bin/prometheus"]`)

	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	here := strings.NewReplacer(
		// In the lab all of the engine is in one directory.
		"/var/run/docker:/var/run/docker:rslave", namespaces+":"+namespaces+":rslave",
		"--volume /var/lib/docker/containers:/var/lib/docker/containers:ro", "--env DOCKER_HOST="+lab.DockerHost(),
		"/var/run/docker.sock:/var/run/docker.sock", engineDir()+":"+engineDir(),
		"unix:///var/run/docker.sock", lab.DockerHost(),
		"image: docker:cli", "image: docker:cli\n    environment: [DOCKER_HOST="+lab.DockerHost()+"]",
		"/run/sluice", run, "15s", "1s")
	from := filepath.Join("..", "examples", "swarm")
	copyForLab(t, dir, from)
	for _, file := range []string{"controller.sh", "stack.yaml", "prometheus.yaml"} {
		path := filepath.Join(dir, file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(here.Replace(string(text))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(from, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	d := shown.Document{Path: "examples/swarm/README.md", Text: string(text)}
	if n := follow(t, dir, "", d); n < 15 {
		t.Errorf("only %d commands were found", n)
	}
}

// shareNamespaces lets containers see the network namespaces of those that start later, as a host's /run does, and returns
// their directory.
func shareNamespaces(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(engineDir(), "exec", "netns")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

// imageWith makes an image that has a program of this machine too.
func imageWith(t *testing.T, tag, program, change string) {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%v: scripts/setup installs it", err)
	}
	name := "e2e-" + program
	commit := []string{"commit", name, tag}
	if change != "" {
		commit = slices.Insert(commit, 1, "--change", change)
	}
	for _, args := range [][]string{{"create", "--name", name, client.Tag}, {"cp", path, name + ":/usr/local/bin/" + program}, commit, {"rm", name}} {
		if _, err := docker(args...); err != nil {
			t.Fatal(err)
		}
	}
}
