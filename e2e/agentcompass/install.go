package agentcompass

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const version = "1.0.1"

//go:embed requirements.txt
var requirements []byte

// Install returns the Python interpreter of a virtual environment below cacheDir that has the released provider. The
// first call makes it, with packages from PyPI, in about half a minute. It needs Python 3.11 with venv.
func Install(ctx context.Context, cacheDir string) (python string, err error) {
	recipe := sha256.Sum256(append(requirements, version...))
	dir := filepath.Join(cacheDir, fmt.Sprintf("agentcompass-%s-%x", version, recipe[:6]))
	python = filepath.Join(dir, "bin", "python")

	// One process makes it; the others wait.
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	// The import fails too where the system's Python, which the environment refers to, has been replaced.
	if run(ctx, python, "-c", "import agentcompass.environments.docker") == nil {
		return python, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := install(ctx, dir, python); err != nil {
		return "", fmt.Errorf("install AgentCompass %s: %w", version, err)
	}
	return python, nil
}

func install(ctx context.Context, dir, python string) error {
	if err := run(ctx, "python3", "-m", "venv", dir); err != nil {
		return fmt.Errorf("%w; run scripts/setup", err)
	}
	list := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(list, requirements, 0o644); err != nil {
		return err
	}
	pip := []string{"-m", "pip", "--quiet", "--disable-pip-version-check"}
	// The wheel asks for Python 3.12, but its Docker provider runs on 3.11, which Debian 12 has.
	for _, args := range [][]string{
		{"install", "--requirement", list},
		{"download", "--no-deps", "--python-version", "3.12", "--only-binary=:all:", "--dest", dir, "agentcompass==" + version},
		{"install", "--no-deps", "--ignore-requires-python", filepath.Join(dir, "agentcompass-"+version+"-py3-none-any.whl")},
	} {
		if err := run(ctx, python, append(pip, args...)...); err != nil {
			return err
		}
	}
	return run(ctx, python, "-c", "import agentcompass.environments.docker")
}

// run runs a program; its output is part of the error if it fails.
func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w:\n%s", filepath.Base(name), err, bytes.TrimSpace(out[max(0, len(out)-2000):]))
	}
	return nil
}
