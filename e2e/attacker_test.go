package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	spec "github.com/moby/docker-image-spec/specs-go/v1"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"sluice/images"
)

// attackerTag is an image with nothing but the program of e2e/lab/attack/attacker.
const attackerTag = "attacker:test"

func attackerImage(ctx context.Context) (images.Image, error) {
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		return images.Image{}, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "attacker")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "sluice/e2e/lab/attack/attacker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // the image has no libraries
	if out, err := build.CombinedOutput(); err != nil {
		return images.Image{}, fmt.Errorf("build the attacker: %w\n%s", err, out)
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		return images.Image{}, err
	}
	layer, err := images.NewLayer(images.File{Path: "/attacker", Mode: 0o755, Body: binary})
	if err != nil {
		return images.Image{}, err
	}
	return images.Image{Tag: attackerTag, Layers: []images.Layer{layer}, Config: spec.DockerOCIImageConfig{
		ImageConfig: oci.ImageConfig{Entrypoint: []string{"/attacker"}}}}, nil
}
