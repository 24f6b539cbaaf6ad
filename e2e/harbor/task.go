package harbor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Sidecar is the service that Harbor adds to a task, and ReadyFile what tells that it is ready.
const (
	Sidecar   = "harbor-docker-egress-control-sidecar"
	ReadyFile = "/tmp/harbor-docker-egress-control-sidecar.ready"
)

// Task is a task whose services share the sidecar's network. It is made of Harbor's compose files as they are, the task's
// own, and the override that Harbor generates (_write_egress_control_services_compose_file of its docker.py).
type Task struct {
	// Project is Compose's name for it, Package what Install has returned.
	Project, Package string
	// Sidecar is the sidecar's image, Image that of the service main.
	Sidecar, Image string
	// Compose is the task's docker-compose.yaml, and Services are those in it that share the network.
	Compose  string
	Services []string
	// Mode and Hosts are what the task begins with.
	Mode  string
	Hosts []string
	// Environ is that of the Docker command line.
	Environ []string

	dir string
}

// Up starts the task as Harbor does and waits until its services run.
func (t *Task) Up(ctx context.Context, dir string) error {
	t.dir = dir
	type service struct {
		NetworkMode string                       `json:"network_mode"`
		DependsOn   map[string]map[string]string `json:"depends_on"`
	}
	services := map[string]service{}
	for _, name := range append([]string{"main"}, t.Services...) {
		services[name] = service{"service:" + Sidecar, map[string]map[string]string{Sidecar: {"condition": "service_healthy"}}}
	}
	override, err := json.Marshal(map[string]any{"services": services})
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"docker-compose.yaml": []byte(t.Compose), "services.json": override} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	_, err = t.Run(ctx, "up", "--detach", "--wait")
	return err
}

// Down removes the task, without the time that Compose leaves programs to end in.
func (t *Task) Down(ctx context.Context) error {
	_, err := t.Run(ctx, "down", "--timeout", "0", "--volumes", "--remove-orphans")
	return err
}

// Policy runs network-policy in the sidecar, as Harbor switches.
func (t *Task) Policy(ctx context.Context, args ...string) (string, error) {
	return t.Run(ctx, append([]string{"exec", "--no-TTY", Sidecar, "network-policy"}, args...)...)
}

// Run runs docker compose, and returns what it has printed.
func (t *Task) Run(ctx context.Context, args ...string) (string, error) {
	files := filepath.Join(t.Package, "environments", "docker")
	all := []string{"compose", "--project-name", t.Project, "--project-directory", t.dir}
	for _, f := range []string{filepath.Join(files, "docker-compose-prebuilt.yaml"), filepath.Join(t.dir, "docker-compose.yaml"),
		filepath.Join(files, "docker-compose-egress-control.yaml"), filepath.Join(t.dir, "services.json")} {
		all = append(all, "-f", f)
	}
	command := exec.CommandContext(ctx, "docker", append(all, args...)...)
	command.Env = append(t.Environ, "PREBUILT_IMAGE_NAME="+t.Image, "EGRESS_CONTROL_SIDECAR_IMAGE_NAME="+t.Sidecar,
		"EGRESS_CONTROL_INITIAL_NETWORK_MODE="+t.Mode, "EGRESS_CONTROL_INITIAL_ALLOWED_HOSTS="+strings.Join(t.Hosts, " "))
	out, err := command.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("docker compose %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
