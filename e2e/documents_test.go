package e2e

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sluice/docs/shown"
	"sluice/e2e/lab/client"
	"sluice/e2e/lab/internet"
)

// inLab says what stands for what a document names of the real world.
var inLab = strings.NewReplacer("example.com", "web.test", "example.org", "evil.test", "9.9.9.9", internet.Resolver.String())

// TestDocuments does what documents show with its output, in the lab. An image from a registry is the lab's client, names
// are those of the lab's internet, numbers may be others, "…" stands for anything in a line, and for any lines.
func TestDocuments(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	config, err := composeConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const image = "buildpack-deps:curl"
	if _, err := docker("tag", client.Tag, image); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := docker("rmi", image); err != nil {
			t.Error(err)
		}
	}()
	for _, row := range []struct {
		name, path string
		commands   int      // at least
		containers []string // that it makes, and removes
		networks   []string // the same
	}{
		{"quickstart", "docs/quickstart.md", 20, []string{"web", "task"}, []string{"tasks"}},
		{"readme", "README.md", 7, []string{"web"}, nil},
		{"interfaces", "docs/api/README.md", 6, []string{"web"}, nil},
		{"phases", "docs/phases.md", 6, []string{"web"}, nil},
		{"harness", "docs/harness.md", 8, []string{"task-1"}, nil},
		{"task", "examples/task/README.md", 2, nil, nil},
		{"compose", "examples/compose/README.md", 25,
			[]string{"explicit-proxy-proxy-1", "explicit-proxy-workload-1", "controller-agent-1", "controller-database-1",
				"shared-namespace-agent-1", "shared-namespace-helper-1", "shared-namespace-network-1"},
			[]string{"explicit-proxy_inside", "explicit-proxy_outside", "tasks"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Cleanup(func() { // what is left if the test fails
				for _, c := range row.containers {
					_, _ = docker("rm", "--force", c)
				}
				for _, n := range row.networks {
					_, _ = docker("network", "rm", n)
				}
			})
			text, err := os.ReadFile(filepath.Join("..", row.path))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if strings.HasPrefix(row.path, "examples/") {
				copyForLab(t, dir, filepath.Join("..", filepath.Dir(row.path)))
			}
			if n := follow(t, dir, config, shown.Document{Path: row.path, Text: string(text)}); n < row.commands {
				t.Errorf("only %d commands were found", n)
			}
		})
	}
}

// copyForLab copies a directory of examples, with what the lab has in the place of the real world.
func copyForLab(t *testing.T, to, from string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil || d.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(to, name), 0o755))
		}
		text, err := os.ReadFile(path)
		return errors.Join(err, os.WriteFile(filepath.Join(to, name), []byte(inLab.Replace(string(text))), 0o644))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// follow runs the commands of a document in dir, as long as they print what is shown, and returns their number.
func follow(t *testing.T, dir, dockerConfig string, d shown.Document) (n int) {
	t.Helper()
	for _, b := range d.Blocks() {
		if file, isFile := b.File(); isFile {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(inLab.Replace(b.Text)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if b.Language != shown.EngineConsole {
			continue
		}
		for _, s := range b.Sessions() {
			n++
			text := strings.ReplaceAll(inLab.Replace(s.Command), "/run/sluice/sluice.sock", theController.socket())
			command := exec.Command("sh", "-c", "exec 2>&1\n"+text)
			command.Dir = dir
			command.Env = append(command.Environ(), "DOCKER_HOST="+lab.DockerHost(), "DOCKER_CONFIG="+dockerConfig,
				"SLUICE_SOCKET="+theController.socket(), "PATH="+lab.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			out, _ := command.CombinedOutput() // that some fail is what is shown
			if labEngine.Dir != "" {
				out = newerEngine.ReplaceAll(out, nil)
			}
			if !looksLike(inLab.Replace(s.Output), trailing.ReplaceAllString(string(out), "")) {
				t.Fatalf("%v: %sprints\n%sand the document shows\n%s", b, s.Command, out, s.Output)
			}
		}
	}
	return n
}

// newerEngine is what is said of engines from 28.5 on, which the documents tell of in words.
var newerEngine = regexp.MustCompile(`(?m)^sluice: warning: this engine asks DNS servers from the host's network.*\n`)

var trailing = regexp.MustCompile(`(?m) +$`) // of tables, whose last column is empty

var changing = regexp.MustCompile(`(?m)^…\n|[0-9a-f]{12,}|[0-9]+(\.[0-9]+)?| +|…`)

// looksLike reports whether a text is the one that is shown, but for numbers, ids and the width of columns.
func looksLike(shown, text string) bool {
	pattern := `\A`
	rest := shown
	for {
		at := changing.FindStringIndex(rest)
		if at == nil {
			break
		}
		pattern += regexp.QuoteMeta(rest[:at[0]])
		switch found := rest[at[0]:at[1]]; {
		case found == "…\n":
			pattern += `(.*\n)*`
		case found == "…":
			pattern += `.*`
		case found[0] == ' ':
			pattern += ` +`
		default:
			pattern += `[0-9a-f.]+`
		}
		rest = rest[at[1]:]
	}
	return regexp.MustCompile(pattern + regexp.QuoteMeta(rest) + `\z`).MatchString(text)
}

func TestLooksLike(t *testing.T) {
	for _, row := range []struct {
		shown, text string
		want        bool
	}{
		{"a 1.5 ms\n", "a 12 ms\n", true}, {"a  b\n", "a b\n", true}, {"id 0123456789ab\n", "id fedcba987654\n", true}, {"…\n", "any\nthing\n", true}, {"a\n…\nb\n", "a\nb\n", true},
		{"a …\n", "a b c\n", true}, {"a …\n", "a\nb\n", false},
		{"a 1.5 ms\n", "a many ms\n", false}, {"a b\n", "ab\n", false}, {"a\n", "a\nb\n", false}, {"", "a\n", false}, {"cut, 3 kept", "cut, kept", false},
	} {
		if got := looksLike(row.shown, row.text); got != row.want {
			t.Errorf("%q for %q: %v", row.text, row.shown, got)
		}
	}
}
