// Package client makes the image of the workload in the end-to-end tests: a small Debian with the network clients
// that people use, which trusts the lab's certificates and no others.
package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	docker "github.com/moby/docker-image-spec/specs-go/v1"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"sluice/images"
)

// Tag is the name of the image.
const Tag = "client:test"

// packages are what the image has beside Debian's minimal base.
const packages = "curl,git,ca-certificates,bind9-dnsutils,openssl,netcat-openbsd,python3,python3-pip,iputils-ping," +
	"iproute2,openssh-client,python3-cffi-backend,python3-pycares"

var (
	//go:embed tunnel.py
	tunnel []byte
	//go:embed flood.py
	flood []byte
)

// unneeded is left out of the image. /dev, /proc and /sys are the engine's to fill.
var unneeded = []string{
	"./dev/*", "./proc/*", "./sys/*", "./var/cache/apt/*", "./var/lib/apt/lists/*", "./var/log/*",
	"./usr/share/doc/*", "./usr/share/man/*", "./usr/share/locale/*",
}

// Image returns the image, whose clients trust the certificate authority ca (PEM).
//
// The first call on a machine runs debootstrap, which fetches Debian packages from where apt gets them and takes about
// a minute; the result is kept in the user's cache directory. It needs root.
func Image(ctx context.Context, ca []byte) (images.Image, error) {
	tar, err := base(ctx)
	if err != nil {
		return images.Image{}, fmt.Errorf("make the Debian of the client image: %w", err)
	}
	debian, err := images.LayerFromTar(tar)
	if err != nil {
		return images.Image{}, err
	}
	ours, err := images.NewLayer(
		images.File{Path: "/etc/ssl/certs/ca-certificates.crt", Mode: 0o644, Body: ca},
		images.File{Path: "/usr/local/bin/tunnel", Mode: 0o755, Body: tunnel},
		images.File{Path: "/usr/local/bin/flood", Mode: 0o755, Body: flood},
		// With this name AgentCompass's own proxy runs in the image too, which shows what the sidecar replaces.
		images.File{Path: "/usr/local/bin/python", Link: "/usr/bin/python3"},
	)
	if err != nil {
		return images.Image{}, err
	}
	return images.Image{
		Tag:    Tag,
		Layers: []images.Layer{debian, ours},
		Config: docker.DockerOCIImageConfig{ImageConfig: oci.ImageConfig{
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"},
			Cmd: []string{"sleep", "infinity"},
		}},
	}, nil
}

// base returns the path of a tar file with a Debian of this machine's own release, made now if it is not there.
func base(ctx context.Context) (string, error) {
	suite, mirror, err := aptSource(ctx)
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	recipe := sha256.Sum256([]byte(strings.Join(append(unneeded, suite, packages), " ")))
	file := filepath.Join(cache, fmt.Sprintf("client-%s-%x.tar", suite, recipe[:6]))

	// One process makes it; the others wait.
	lock, err := os.OpenFile(file+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	root, err := os.MkdirTemp(cache, "debootstrap-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(root)
	if err := command(ctx, "debootstrap", "--variant=minbase", "--include="+packages, suite, root, mirror); err != nil {
		return "", err
	}
	args := []string{"--create", "--file", file + ".part", "--directory", root, "--numeric-owner", "--sort=name"}
	for _, pattern := range unneeded {
		args = append(args, "--exclude="+pattern)
	}
	if err := command(ctx, "tar", append(args, ".")...); err != nil {
		return "", err
	}
	return file, os.Rename(file+".part", file)
}

// CacheDir makes and returns the directory, outside the source tree, of what takes long to make.
func CacheDir() (string, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(user, "sluice")
	return dir, os.MkdirAll(dir, 0o755)
}

// aptSource returns the machine's release and the archive from which its apt gets the packages of that release.
func aptSource(ctx context.Context) (suite, mirror string, err error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(release)) {
		if value, ok := strings.CutPrefix(line, "VERSION_CODENAME="); ok {
			suite = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	if suite == "" {
		return "", "", errors.New("/etc/os-release names no VERSION_CODENAME: the client image is made on Debian only")
	}
	list, err := exec.CommandContext(ctx, "apt-get", "indextargets",
		"--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return "", "", fmt.Errorf("apt-get indextargets: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == suite && fields[1] == "main" {
			return suite, fields[2], nil
		}
	}
	return "", "", fmt.Errorf("apt has no source for %s main", suite)
}

// command runs a program; its output is part of the error if it fails.
func command(ctx context.Context, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("%w; run scripts/setup", err)
	}
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w:\n%s", name, err, bytes.TrimSpace(out[max(0, len(out)-2000):]))
	}
	return nil
}
