// Package harbor starts tasks as Harbor's Docker environment does, by the compose files of the released Harbor.
package harbor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sluice/images"
)

// Install returns the directory of Harbor's Python package, of the version that [images.HarborVersion] names, below
// cacheDir. The first call fetches it from PyPI. Nothing that it needs is installed, and nothing of it is run.
func Install(ctx context.Context, cacheDir string) (dir string, err error) {
	at := filepath.Join(cacheDir, "harbor-"+images.HarborVersion)
	// One process fetches it; the others wait.
	lock, err := os.OpenFile(at+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	dir = filepath.Join(at, "harbor")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	work, err := os.MkdirTemp(cacheDir, "harbor-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	// Harbor asks for Python 3.12. Its files get their modes from the umask, which is 022 nearly everywhere.
	pip := exec.CommandContext(ctx, "sh", "-c", `umask 022 && exec python3 -m pip --quiet --disable-pip-version-check install --no-deps \
		--ignore-requires-python --python-version 3.12 --only-binary=:all: --target "$1" "$2"`,
		"sh", filepath.Join(work, "site"), "harbor=="+images.HarborVersion)
	if out, err := pip.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetch Harbor %s: %w\n%s", images.HarborVersion, err, bytes.TrimSpace(out))
	}
	if err := os.Rename(filepath.Join(work, "site"), at); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return dir, nil
}
