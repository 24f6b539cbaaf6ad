package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"sluice/docs/shown"
)

// sources parses every file of the programs, without tests and what is made for them.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "e2e" || d.Name() == "docs" || d.Name() == "testdata"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files[path], err = parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// literal returns the text of a string in Go, "" for anything else.
func literal(x ast.Expr) string {
	if l, ok := x.(*ast.BasicLit); ok && l.Kind == token.STRING {
		if s, err := strconv.Unquote(l.Value); err == nil {
			return s
		}
	}
	return ""
}

// list returns the texts of a literal of []string.
func list(x ast.Expr) (all []string) {
	if c, ok := x.(*ast.CompositeLit); ok {
		for _, e := range c.Elts {
			all = append(all, literal(e))
		}
	}
	return all
}

// metrics finds what the programs give to Prometheus: for each metric its labels, and the programs that have it.
func metrics(t *testing.T) (labels map[string][]string, of map[string][]string) {
	t.Helper()
	labels, of = map[string][]string{}, map[string][]string{}
	for path, file := range sources(t) {
		program := "proxy"
		if strings.HasPrefix(path, "../controller/") || strings.HasPrefix(path, "../cmd/controller/") {
			program = "controller"
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			if of, ok := f.X.(*ast.Ident); !ok || of.Name != "prometheus" {
				return true
			}
			name, own := "", []string(nil)
			switch f.Sel.Name {
			case "NewDesc":
				name, own = literal(call.Args[0]), list(call.Args[2])
			default:
				options, isOptions := call.Args[0].(*ast.CompositeLit)
				if !isOptions {
					break
				}
				for _, e := range options.Elts {
					if pair, ok := e.(*ast.KeyValueExpr); ok && pair.Key.(*ast.Ident).Name == "Name" {
						name = literal(pair.Value)
					}
				}
				if strings.HasSuffix(f.Sel.Name, "Vec") {
					own = list(call.Args[1])
				}
			}
			if name != "" {
				labels[name] = own
				if !slices.Contains(of[name], program) {
					of[name] = append(of[name], program)
				}
			}
			return true
		})
	}
	return labels, of
}

func TestMetricsAreDocumented(t *testing.T) {
	labels, of := metrics(t)
	if len(labels) < 15 {
		t.Fatalf("only these metrics were found: %q", slices.Sorted(maps.Keys(labels)))
	}
	documented := map[string]bool{}
	for _, r := range documentRows(t, "operations.md", "Metrics") {
		name, err := shown.Code(r.Cells[0])
		if err != nil {
			t.Fatal(err)
		}
		documented[name] = true
		if _, there := labels[name]; !there {
			t.Errorf("no program has the metric %s", name)
			continue
		}
		if got := codes(r.Cells[1]); !slices.Equal(got, labels[name]) {
			t.Errorf("%s has the labels %q, the document says %q", name, labels[name], got)
		}
		slices.Sort(of[name])
		if want := strings.Join(of[name], ", "); r.Cells[2] != want {
			t.Errorf("%s is a metric of %s, the document says %s", name, want, r.Cells[2])
		}
	}
	for name := range labels {
		if !documented[name] {
			t.Errorf("operations.md has no row for %s", name)
		}
	}
}

var metricName = regexp.MustCompile(`\bsluice_[a-z_]+`)

// Every alert of the example has its row, says something, and asks for metrics that a program has.
func TestAlertsAreDocumented(t *testing.T) {
	labels, _ := metrics(t)
	text, err := os.ReadFile("../examples/prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var alerts struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &alerts); err != nil {
		t.Fatal(err)
	}
	var there, documented []string
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			there = append(there, r.Alert)
			names := metricName.FindAllString(r.Expr, -1)
			if len(names) == 0 && !strings.HasPrefix(r.Expr, `up{job="sluice"}`) || r.Annotations["summary"] == "" {
				t.Errorf("%s asks for nothing, or says nothing", r.Alert)
			}
			for _, name := range names {
				if _, ok := labels[name]; !ok {
					t.Errorf("%s asks for %s, which no program has", r.Alert, name)
				}
			}
		}
	}
	for _, r := range documentRows(t, "operations.md", "Alerts and a dashboard") {
		documented = append(documented, codes(r.Cells[0])...)
	}
	if !slices.Equal(documented, there) {
		t.Errorf("the alerts are %q, the document has %q", there, documented)
	}
}

// Every text that troubleshooting.md names is one of the programs'; "…" stands for what they fill in.
func TestTextsOfTroubleshootingExist(t *testing.T) {
	var said []string
	for _, file := range sources(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			if x, ok := n.(ast.Expr); ok {
				if s := literal(x); s != "" {
					said = append(said, s)
				}
			}
			return true
		})
	}
	checked := 0
	for _, heading := range []string{"A connection does not work", "A policy file does not take effect", "A container cannot be attached", "A task, or a harness", "On a managed network", "The controller"} {
		for _, r := range documentRows(t, "troubleshooting.md", heading) {
			texts := codes(r.Cells[1])
			if len(texts) == 0 {
				t.Errorf("line %d names no text", r.Line)
			}
			for _, text := range texts {
				for part := range strings.SplitSeq(text, "…") {
					if part = strings.TrimSpace(part); part == "" {
						continue
					}
					checked++
					if !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, part) }) {
						t.Errorf("line %d: no program says %q", r.Line, part)
					}
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d texts were found", checked)
	}
}
