package docs

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/docs/shown"
	"sluice/matcher"
	"sluice/policy"
)

func document(t *testing.T, name string) shown.Document {
	t.Helper()
	all, err := shown.Documents("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if filepath.Base(d.Path) == name {
			return d
		}
	}
	t.Fatalf("no document %s", name)
	return shown.Document{}
}

// written is the text that a cell of a table shows, with its escapes read.
func written(t *testing.T, cell string) string {
	t.Helper()
	text, err := shown.Code(cell)
	if err != nil {
		t.Fatal(err)
	}
	text, err = strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
	if err != nil {
		t.Fatalf("%s: %v", cell, err)
	}
	return text
}

// faults returns the errors of package policy, without what was written.
func faults(err error) (pointers, texts []string) {
	all, ok := errors.AsType[*policy.Errors](err)
	if one, isOne := errors.AsType[*policy.Error](err); !ok && isOne {
		all = &policy.Errors{All: []*policy.Error{one}}
	}
	if all != nil {
		for _, e := range all.All {
			pointers, texts = append(pointers, e.Pointer), append(texts, e.Problem+"; "+e.Repair)
		}
	}
	return pointers, texts
}

// documentRows returns the rows of the tables under a heading, of which there are some.
func documentRows(t *testing.T, name, heading string) []shown.Row {
	t.Helper()
	all := document(t, name).Rows(heading)
	if len(all) == 0 {
		t.Fatalf("%s has no table under %q", name, heading)
	}
	return all
}

var code = regexp.MustCompile("`([^`]+)`")

// codes returns all that is code in a cell.
func codes(cell string) []string {
	var all []string
	for _, m := range code.FindAllStringSubmatch(cell, -1) {
		all = append(all, m[1])
	}
	return all
}

// rows calls f for each row of the tables under a heading, of which there are some.
func rows(t *testing.T, document, heading string, cells int, f func(t *testing.T, cells []string)) {
	t.Helper()
	for _, r := range documentRows(t, document, heading) {
		t.Run(fmt.Sprintf("%s/line-%d", strings.ReplaceAll(heading, " ", "_"), r.Line), func(t *testing.T) {
			if len(r.Cells) != cells {
				t.Fatalf("%d cells, want %d: %q", len(r.Cells), cells, r.Cells)
			}
			f(t, r.Cells)
		})
	}
}

func TestErrorsShownAreTheRealOnes(t *testing.T) {
	const d = "policies.md"
	same := func(t *testing.T, err error, pointer, cell string) {
		t.Helper()
		pointers, texts := faults(err)
		if want := strings.Trim(cell, "`"); len(texts) != 1 || texts[0] != want || pointers[0] != pointer {
			t.Errorf("the errors are %q at %q; the document says %q at %q", texts, pointers, want, pointer)
		}
	}
	rows(t, d, "Errors of targets", 2, func(t *testing.T, cells []string) {
		_, err := policy.ParseTarget(written(t, cells[0]))
		same(t, err, "", cells[1])
	})
	rows(t, d, "Errors of entries", 2, func(t *testing.T, cells []string) {
		_, err := policy.Parse([]byte(`{"network_mode": "denylist", "denied_hosts": [` + written(t, cells[0]) + `]}`))
		pointers, _ := faults(err)
		if len(pointers) == 1 && !strings.HasPrefix(pointers[0], "/denied_hosts/0") {
			t.Errorf("the error is at %s", pointers[0])
		}
		same(t, err, strings.Join(pointers, " "), cells[1])
	})
	rows(t, d, "Errors of files", 3, func(t *testing.T, cells []string) {
		_, err := policy.Parse([]byte(written(t, cells[0])))
		pointer := strings.Trim(cells[1], "`")
		if pointer == "the file" {
			pointer = ""
		}
		same(t, err, pointer, cells[2])
	})
	rows(t, d, "Errors of size", 2, func(t *testing.T, cells []string) {
		big := map[string]string{
			"targets":           `{"network_mode": "allowlist", "allowed_hosts": ["a"` + strings.Repeat(`,"a"`, policy.MaxTargets) + "]}",
			"bytes of JSON":     "{" + strings.Repeat(" ", policy.MaxDocumentBytes),
			"bytes of YAML":     "a" + strings.Repeat(" ", policy.MaxYAMLBytes),
			"bytes of a target": `{"network_mode": "allowlist", "allowed_hosts": ["` + strings.Repeat("a", 1025) + `"]}`,
		}[cells[0]]
		_, err := policy.Parse([]byte(big))
		pointers, _ := faults(err)
		same(t, err, strings.Join(pointers, " "), cells[1])
	})
}

func TestWarningsShownAreTheRealOnes(t *testing.T) {
	rows(t, "policies.md", "Warnings", 3, func(t *testing.T, cells []string) {
		list := map[string]string{"allowlist": "allowed_hosts", "denylist": "denied_hosts"}[cells[0]]
		d, err := policy.Parse([]byte(fmt.Sprintf(`{"network_mode": %q, %q: [%s]}`, cells[0], list, written(t, cells[1]))))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range d.Warnings(matcher.FloorPrefixes()) {
			got = append(got, w.Problem+"; "+w.Advice)
		}
		if want := strings.Trim(cells[2], "`"); !slices.Contains(got, want) {
			t.Errorf("the warnings are %q; the document says %q", got, want)
		}
	})
}

// Every text of an error or a warning in package policy stands in policies.md.
func TestErrorsAreAllShown(t *testing.T) {
	text := strings.Join(strings.Fields(document(t, "policies.md").Text), " ")
	patterns := texts(t, "../policy")
	if len(patterns) < 60 {
		t.Fatalf("only %d texts were found: %q", len(patterns), patterns)
	}
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(text) {
			t.Errorf("policies.md shows no error like %q", p)
		}
	}
}

// otherTexts are of what no policy file holds: recipes, run parameters and endpoints, which "sluice plan" reads.
var otherTexts = []string{"recipe.go", "resolve.go", "resolve_params.go", "resolve_plan.go", "notice_append.go"}

// texts returns what is assigned to a field Problem, or handed to warn, in the files of a directory, as patterns.
func texts(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	add := func(e ast.Expr) {
		if p := pattern(e); p != "" {
			found[p] = true
		}
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || slices.Contains(otherTexts, filepath.Base(name)) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Problem" {
					add(n.Value)
				}
			case *ast.AssignStmt:
				if field, ok := n.Lhs[0].(*ast.SelectorExpr); ok && field.Sel.Name == "Problem" {
					add(n.Rhs[0])
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "warn" {
					add(n.Args[1])
				}
			}
			return true
		})
	}
	return slices.Sorted(maps.Keys(found))
}

var verb = regexp.MustCompile(`%[a-z]`)

// pattern returns what a text that is put together like e can be, "" if nothing of it is known.
func pattern(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		if err != nil {
			return ""
		}
		parts := verb.Split(s, -1)
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		return strings.Join(parts, ".+?")
	case *ast.BinaryExpr:
		return pattern(e.X) + pattern(e.Y)
	case *ast.CallExpr:
		if f, ok := e.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Sprintf" {
			return pattern(e.Args[0])
		}
	case *ast.Ident, *ast.SelectorExpr, *ast.IndexExpr:
	}
	return ".*?"
}

func TestFloorShownIsTheRealOne(t *testing.T) {
	var got []netip.Prefix
	rows(t, "policies.md", "The floor", 2, func(t *testing.T, cells []string) {
		for cell := range strings.SplitSeq(cells[0], ", ") {
			text := strings.Trim(cell, "`")
			p, err := netip.ParsePrefix(text)
			if err != nil {
				addr, err := netip.ParseAddr(text)
				if err != nil {
					t.Fatal(err)
				}
				p = netip.PrefixFrom(addr, addr.BitLen())
			}
			got = append(got, p)
		}
	})
	want := matcher.FloorPrefixes()
	slices.SortFunc(got, netip.Prefix.Compare)
	slices.SortFunc(want, netip.Prefix.Compare)
	if !slices.Equal(got, want) {
		t.Errorf("the document has %v, the matcher %v", got, want)
	}
}
