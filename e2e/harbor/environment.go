package harbor

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

var (
	//go:embed environment.py
	driver string
	//go:embed requirements.txt
	requirements []byte
)

// Policy is one as Harbor has it.
type Policy struct {
	Mode  string   `json:"network_mode"`
	Hosts []string `json:"allowed_hosts,omitempty"`
}

// Step is a switch, or a shell command in the service main.
type Step struct {
	*Policy
	Run string `json:"run,omitempty"`
}

// Trial is a task that Harbor's own Docker environment starts, switches and removes.
type Trial struct {
	Package string `json:"package"`
	// Dir has the task's environment in it, as in a task of Harbor.
	Dir   string `json:"dir"`
	Name  string `json:"name"`
	Image string `json:"image"`
	Begin Policy `json:"begin"`
	Steps []Step `json:"steps"`
}

// Outcome is what came of a step. That of the start comes first, and names the sidecar's image.
type Outcome struct {
	Sidecar string  `json:"sidecar"`
	Code    int     `json:"code"`
	Stdout  string  `json:"stdout"`
	Seconds float64 `json:"seconds"`
}

// Python returns an interpreter that has what Harbor's Docker environment imports, below cacheDir. The first call makes it,
// with packages from PyPI, in some ten seconds.
func Python(ctx context.Context, cacheDir string) (python string, err error) {
	dir := filepath.Join(cacheDir, "harbor-python")
	python = filepath.Join(dir, "bin", "python")
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	made := filepath.Join(dir, "requirements.txt")
	if have, err := os.ReadFile(made); err == nil && bytes.Equal(have, requirements) {
		return python, nil
	}
	list := filepath.Join(dir, "wanted.txt")
	for _, step := range [][]string{
		{"python3", "-m", "venv", "--clear", dir},
		{"sh", "-c", `cat >"$1"`, "sh", list},
		{python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--requirement", list},
		{"mv", list, made},
	} {
		command := exec.CommandContext(ctx, step[0], step[1:]...)
		command.Stdin = bytes.NewReader(requirements)
		if out, err := command.CombinedOutput(); err != nil {
			return "", fmt.Errorf("install what Harbor imports: %s: %w\n%s", step[0], err, out)
		}
	}
	return python, nil
}

// Go takes the task through its steps. environ is that of the Docker command line.
func (t *Trial) Go(ctx context.Context, python string, environ []string) (all []Outcome, err error) {
	spec, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, python, "-c", driver, string(spec))
	command.Env = environ
	var problems bytes.Buffer
	command.Stderr = &problems
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("environment of Harbor: %w: %s\n%s", err, out, problems.Bytes())
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var one Outcome
		if err := d.Decode(&one); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("environment of Harbor: %w: %s", err, out)
		}
		all = append(all, one)
	}
}
