package e2e

import (
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

// TestQuickstart does what docs/quickstart.md shows with its output, in the lab. An image from a registry is the lab's
// client, names are those of the lab's internet, numbers may be others, and "…" stands for anything.
func TestQuickstart(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../docs/quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	const image = "buildpack-deps:curl"
	if _, err := docker("tag", client.Tag, image); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = docker("rm", "--force", "web", "task") // what is left if the test fails
		_, _ = docker("network", "rm", "tasks")
		if _, err := docker("rmi", image); err != nil {
			t.Error(err)
		}
	})
	dir, sessions := t.TempDir(), 0
	for _, b := range (shown.Document{Path: "quickstart.md", Text: string(text)}).Blocks() {
		if file, isFile := b.File(); isFile {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(inLab.Replace(b.Text)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if b.Language != shown.EngineConsole {
			continue
		}
		for _, s := range b.Sessions() {
			sessions++
			command := exec.Command("sh", "-c", "exec 2>&1\n"+inLab.Replace(s.Command))
			command.Dir = dir
			command.Env = append(command.Environ(), "DOCKER_HOST="+lab.DockerHost(), "SLUICE_SOCKET="+theController.socket(),
				"PATH="+lab.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			out, _ := command.CombinedOutput() // that some fail is what is shown
			if !looksLike(inLab.Replace(s.Output), string(out)) {
				t.Fatalf("%v: %sprints\n%sand the document shows\n%s", b, s.Command, out, s.Output)
			}
		}
	}
	if sessions < 10 {
		t.Errorf("only %d commands were found", sessions)
	}
}

var changing = regexp.MustCompile(`[0-9a-f]{12,}|[0-9]+(\.[0-9]+)?| +|…`)

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
		case found == "…":
			pattern += `(?s:.*)`
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
		{"a 1.5 ms\n", "a 12 ms\n", true}, {"a  b\n", "a b\n", true}, {"id 0123456789ab\n", "id fedcba987654\n", true}, {"…\n", "any\nthing\n", true},
		{"a 1.5 ms\n", "a many ms\n", false}, {"a b\n", "ab\n", false}, {"a\n", "a\nb\n", false}, {"", "a\n", false}, {"cut, 3 kept", "cut, kept", false},
	} {
		if got := looksLike(row.shown, row.text); got != row.want {
			t.Errorf("%q for %q: %v", row.text, row.shown, got)
		}
	}
}
