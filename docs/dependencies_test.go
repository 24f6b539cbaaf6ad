package docs

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/licensecheck"
)

// free are the licences that may be linked into the programs.
var free = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// modules runs go list and returns the folder of each module that it prints as "path folder".
func modules(t *testing.T, arguments ...string) map[string]string {
	t.Helper()
	list := exec.Command("go", append([]string{"list"}, arguments...)...)
	list.Dir = ".."
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %v", list, err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if path, folder, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			found[path] = folder
		}
	}
	return found
}

// licences reads which licences a module is under, by their texts.
func licences(t *testing.T, folder string) (ids []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "[LlCc][IiOo][CcPp][EeYy]*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && info.IsDir() {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range licensecheck.Scan(text).Match {
			if !slices.Contains(ids, m.ID) {
				ids = append(ids, m.ID)
			}
		}
	}
	return ids
}

func TestDependencies(t *testing.T) {
	page, err := os.ReadFile("dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	linked := modules(t, "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", "./cmd/...")
	imported := modules(t, "-deps", "-f", "{{with .Module}}{{if .Main}}{{range $.Imports}}{{.}} import\n{{end}}{{end}}{{end}}", "./cmd/...")
	direct := modules(t, "-m", "-f", "{{if not (or .Indirect .Main)}}{{.Path}} {{.Dir}}{{end}}", "all")
	if len(linked) == 0 || len(direct) == 0 {
		t.Fatalf("%d modules linked, %d required", len(linked), len(direct))
	}
	inPrograms, inTests, _ := strings.Cut(string(page), "## In tests")
	row := regexp.MustCompile("(?m)^\\| `([^`]+/[^`]+)` \\| ([A-Za-z0-9.-]+) \\| .+ \\|$")
	listed := map[string]bool{}
	for i, section := range []string{inPrograms, inTests} {
		for _, m := range row.FindAllStringSubmatch(section, -1) {
			path, licence := m[1], m[2]
			folder, required := direct[path]
			if !required {
				t.Errorf("%s: go.mod does not require it", path)
				continue
			}
			listed[path] = true
			uses := func(of string) bool { return of == path || strings.HasPrefix(of, path+"/") }
			if is := slices.ContainsFunc(slices.Collect(maps.Keys(imported)), uses); is != (i == 0) {
				t.Errorf("%s: the programs import it: %v; the page says otherwise", path, is)
			}
			if ids := licences(t, folder); !slices.Contains(ids, licence) {
				t.Errorf("%s: its licence is %q, the page says %s", path, ids, licence)
			}
		}
	}
	for path := range direct {
		if !listed[path] {
			t.Errorf("%s: docs/dependencies.md does not say why it is there", path)
		}
	}
	for path, folder := range linked {
		ids := licences(t, folder)
		if !slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(free, id) }) {
			t.Errorf("%s is linked into a program: its licences are %q, want one of %q", path, ids, free)
		}
	}
}
