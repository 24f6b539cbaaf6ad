package matcher

import (
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestImports keeps the package near the standard library: it decides, so it must be easy to check.
func TestImports(t *testing.T) {
	allowed := map[string]string{
		"sluice/policy":            "what is compiled",
		"github.com/gaissmai/bart": "prefix tables",
	}
	refused := map[string]string{"net": "no I/O", "os": "no I/O", "time": "answers do not depend on when they are asked for", "log/slog": "callers log", "reflect": "", "net/http": ""}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files, used := 0, map[string]bool{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		files++
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			used[path] = true
			if why, no := refused[path]; no {
				t.Errorf("%s imports %s (%s)", e.Name(), path, why)
			}
			if _, ok := allowed[path]; !ok && strings.Contains(strings.Split(path, "/")[0]+"/", ".") || strings.HasPrefix(path, "sluice/") && !ok {
				t.Errorf("%s imports %s, which is neither of the standard library nor among %v", e.Name(), path, allowed)
			}
		}
	}
	for path := range allowed {
		if !used[path] {
			t.Errorf("%d files do not import %s: is this test looking at the right ones?", files, path)
		}
	}
}
