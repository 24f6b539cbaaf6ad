package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/control"
	"sluice/controller/api"
	"sluice/policy"
)

// fields returns the names of a struct's fields in JSON.
func fields(v any) []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.Anonymous {
			names = append(names, name)
		}
	}
	return names
}

// constants returns the values of the string constants of a type, in the order of the file.
func constants(t *testing.T, file, name string) []string {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(tree, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 {
			literal, isLiteral := spec.Values[0].(*ast.BasicLit)
			if of, ok := spec.Type.(*ast.Ident); ok && isLiteral && of.Name == name {
				value, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				values = append(values, value)
			}
		}
		return true
	})
	if len(values) == 0 {
		t.Fatalf("%s has no constants of the type %s", file, name)
	}
	return values
}

// listed returns what is code in the first cells of a table, of the rows that the second cell says are about one of two.
func listed(t *testing.T, document, heading, about string) []string {
	t.Helper()
	var names []string
	for _, r := range documentRows(t, document, heading) {
		if r.Cells[1] == about || r.Cells[1] == "both" {
			names = append(names, codes(r.Cells[0])...)
		}
	}
	return names
}

func TestPhasesAreDocumented(t *testing.T) {
	const file = "phases.md"
	same := func(what string, got, want []string) {
		t.Helper()
		got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
		if !slices.Equal(got, want) {
			t.Errorf("%s: the document has %q, the program %q", what, got, want)
		}
	}
	same("receipts of the controller", listed(t, file, "The receipt", "controller"), fields(api.Receipt{}))
	same("receipts of the proxy", listed(t, file, "The receipt", "proxy"), fields(control.Receipt{}))
	same("states of the controller", listed(t, file, "Quarantine", "controller"), constants(t, "../controller/api/types.go", "State"))
	same("states of the proxy", listed(t, file, "Quarantine", "proxy"), constants(t, "../control/types.go", "SessionState"))
	var phases, names []string
	for _, r := range documentRows(t, file, "Phases") {
		names = append(names, codes(r.Cells[0])...)
	}
	for phase := range policy.PhaseCount {
		phases = append(phases, policy.Phase(phase).String())
	}
	same("phases", names, phases)
}
