package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"sluice/control"
	"sluice/images"
)

// policies are the three phases, in the form that "sluice-proxy serve --policy" reads.
//
//go:embed policies.yaml
var policies []byte

// label marks what a demo made with the process id of its maker, so that the next one can remove what a killed one left.
const label = "demo-of-sluice"

// originNames are the hosts of the demo; one container plays them all.
var originNames = []string{"pypi.test", "model.test", "judge.test", "evil.test"}

// docker runs the Docker command line on the engine that host names, as a person would.
type docker struct{ host string }

func (d docker) command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, "docker", args...)
	if d.host != "" {
		command.Env = append(command.Environ(), "DOCKER_HOST="+d.host)
	}
	// Ctrl-C is for the demo, which ends what it started in its own order.
	command.SysProcAttr = ownGroup
	return command
}

func (d docker) run(ctx context.Context, args ...string) (string, error) {
	command := d.command(ctx, args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// stage is what the demo plays on: an internal network with the workload, an outer one with the origins, and the
// sidecar on both.
type stage struct {
	docker
	prefix  string
	sidecar string
	work    string
}

// setStage makes everything. What it returns is to be cleared also after an error.
func setStage(ctx context.Context, host string) (*stage, error) {
	prefix := "sluice-demo-" + strconv.Itoa(os.Getpid()) + "-"
	s := &stage{docker: docker{host}, prefix: prefix, sidecar: prefix + "sidecar", work: prefix + "workload"}
	if err := s.clearDead(ctx); err != nil {
		return s, err
	}
	if err := s.loadImages(ctx); err != nil {
		return s, err
	}
	mark := "--label=" + label + "=" + strconv.Itoa(os.Getpid())
	for _, args := range [][]string{
		{"network", "create", mark, prefix + "outside"},
		{"network", "create", mark, "--internal", prefix + "inside"},
	} {
		if _, err := s.run(ctx, args...); err != nil {
			return s, err
		}
	}
	confined := []string{"run", "--detach", mark, "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"}
	origin := append(confined[:len(confined):len(confined)], "--name="+prefix+"origin", "--network="+prefix+"outside",
		"--sysctl=net.ipv4.ip_unprivileged_port_start=0")
	for _, name := range originNames {
		origin = append(origin, "--network-alias="+name)
	}
	if _, err := s.run(ctx, append(origin, s.image(), "origin")...); err != nil {
		return s, err
	}
	if _, err := s.run(ctx, append(confined[:len(confined):len(confined)], "--name="+s.sidecar, "--network="+prefix+"outside",
		"--tmpfs="+control.DefaultDir+":uid=65532,gid=65532,mode=0700", s.image()+"-sidecar",
		"serve", "--policy=/etc/sluice/policies.yaml", "--listen=:8080", "--dns=:53", "--metrics=:9464",
		"--control="+control.DefaultDir, "--audit=-")...); err != nil {
		return s, err
	}
	if _, err := s.run(ctx, "network", "connect", "--alias=sidecar", prefix+"inside", s.sidecar); err != nil {
		return s, err
	}
	address, err := s.run(ctx, "inspect", "--format",
		`{{(index .NetworkSettings.Networks "`+prefix+`inside").IPAddress}}`, s.sidecar)
	if err != nil {
		return s, err
	}
	if _, err := s.run(ctx, append(confined[:len(confined):len(confined)], "--name="+s.work, "--network="+prefix+"inside",
		"--dns="+address, "--env=PROXY=sidecar:8080", s.image(), "wait")...); err != nil {
		return s, err
	}
	return s, s.waitForSidecar(ctx)
}

// image is the name of the image of origin and workload, which are this program.
func (s *stage) image() string { return strings.TrimSuffix(s.prefix, "-") + ":demo" }

// loadImages loads two images without a registry: this program, and the sidecar with the demo's policies.
func (s *stage) loadImages(ctx context.Context) error {
	path, err := sidecarBinary()
	if err != nil {
		return err
	}
	proxy, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%w; \"make demo\" builds it", err)
	}
	sidecar, err := images.SluiceProxy(proxy)
	if err != nil {
		return err
	}
	policyLayer, err := images.NewLayer(images.File{Path: "/etc/sluice/policies.yaml", Mode: 0o644, Body: policies})
	if err != nil {
		return err
	}
	sidecar.Tag, sidecar.Layers = s.image()+"-sidecar", append(sidecar.Layers, policyLayer)

	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	binary, err := images.NewLayer(images.File{Path: "/demo", Mode: 0o755, Body: self})
	if err != nil {
		return err
	}
	demo := images.Image{Tag: s.image(), Layers: []images.Layer{binary}, Config: dockerspec.DockerOCIImageConfig{
		ImageConfig: oci.ImageConfig{User: "65532:65532", Entrypoint: []string{"/demo"}}}}

	var archive bytes.Buffer
	if err := images.WriteArchive(&archive, sidecar, demo); err != nil {
		return err
	}
	// The command line knows more ways to an engine (contexts, ssh) than DOCKER_HOST.
	load := s.command(ctx, "load", "--quiet")
	load.Stdin = &archive
	if out, err := load.CombinedOutput(); err != nil {
		return fmt.Errorf("docker load: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func (s *stage) waitForSidecar(ctx context.Context) error {
	var last error
	for range 100 {
		if _, last = s.run(ctx, "exec", s.sidecar, "sluice-proxy", "health"); last == nil {
			return nil
		}
		if ctx.Err() != nil {
			return last
		}
		time.Sleep(50 * time.Millisecond)
	}
	logs, err := s.command(ctx, "logs", "--tail=20", s.sidecar).CombinedOutput()
	return errors.Join(fmt.Errorf("the sidecar does not become ready: %w:\n%s", last, logs), err)
}

// clear removes everything of this demo. It works on although the demo was interrupted.
func (s *stage) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.remove(ctx, strconv.Itoa(os.Getpid()))
}

// clearDead removes what demos left whose process is no more.
func (s *stage) clearDead(ctx context.Context) error {
	found, err := s.run(ctx, "ps", "--all", "--filter=label="+label, "--format={{.Label \""+label+"\"}}")
	if err != nil {
		return err
	}
	for _, maker := range strings.Fields(found) {
		if program, err := os.Readlink("/proc/" + maker + "/exe"); err == nil && strings.HasPrefix(filepath.Base(program), "demo") {
			continue
		}
		if err := s.remove(ctx, maker); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the containers, networks and images of the demo with this process id.
func (s *stage) remove(ctx context.Context, maker string) error {
	filter := "--filter=label=" + label + "=" + maker
	var errs []error
	for _, kind := range []struct{ list, remove []string }{
		{[]string{"ps", "--all", "--quiet", filter}, []string{"rm", "--force", "--volumes"}},
		{[]string{"network", "ls", "--quiet", filter}, []string{"network", "rm"}},
		// By name: the images of another demo have the same ids.
		{[]string{"image", "ls", "--format={{.Repository}}:{{.Tag}}", "sluice-demo-" + maker}, []string{"image", "rm"}},
	} {
		found, err := s.run(ctx, kind.list...)
		if ids := strings.Fields(found); err == nil && len(ids) > 0 {
			_, err = s.run(ctx, append(kind.remove, ids...)...)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
