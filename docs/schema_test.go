package docs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"sluice/control"
	"sluice/controller/api"
	"sluice/policy"
	"sluice/proxy/audit"
)

// schema compiles schema/NAME.schema.json, with formats checked.
func schema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(filepath.Join("schema", name+".schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// evaluator knows the texts that the rows of a table in Go are put together from.
type evaluator map[string]ast.Expr

func (e evaluator) text(x ast.Expr) (string, error) {
	switch x := x.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(x.Value)
	case *ast.Ident:
		if known := e[x.Name]; known != nil {
			return e.text(known)
		}
	case *ast.BinaryExpr:
		left, err := e.text(x.X)
		right, err2 := e.text(x.Y)
		return left + right, errors.Join(err, err2)
	case *ast.CallExpr:
		if f, ok := x.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Repeat" {
			s, err := e.text(x.Args[0])
			n, isNumber := x.Args[1].(*ast.BasicLit)
			if err != nil || !isNumber {
				break
			}
			count, err := strconv.Atoi(n.Value)
			return strings.Repeat(s, count), err
		}
	}
	return "", fmt.Errorf("%T is not understood", x)
}

// tables reads, out of the source of a test of package policy, the second text of each row of the tables in a function.
func tables(t *testing.T, file, function string) []string {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	e := evaluator{}
	var rows []string
	note := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i < len(n.Values) {
					e[name.Name] = n.Values[i]
				}
			}
		case *ast.AssignStmt:
			if name, ok := n.Lhs[0].(*ast.Ident); ok && n.Tok == token.DEFINE && len(n.Lhs) == len(n.Rhs) {
				e[name.Name] = n.Rhs[0]
			}
		}
		return true
	}
	for _, d := range tree.Decls {
		f, isFunc := d.(*ast.FuncDecl)
		if !isFunc {
			ast.Inspect(d, note)
		} else if f.Name.Name == function {
			ast.Inspect(f, note)
			ast.Inspect(f, func(n ast.Node) bool {
				list, ok := n.(*ast.CompositeLit)
				if !ok || list.Type == nil {
					return true
				}
				if _, ok := list.Type.(*ast.ArrayType); !ok {
					return true
				}
				for _, x := range list.Elts {
					row, ok := x.(*ast.CompositeLit)
					if !ok || len(row.Elts) < 3 {
						return true
					}
					text, err := e.text(row.Elts[1])
					if err != nil {
						t.Errorf("%s: %v", file, err)
					}
					rows = append(rows, text)
				}
				return false
			})
		}
	}
	if len(rows) < 5 {
		t.Fatalf("%s: %s has %d rows", file, function, len(rows))
	}
	return rows
}

// value reads a document as an editor does; ok is false where it is no JSON or YAML, which a schema has no say in.
func value(text string) (v any, ok bool) {
	trimmed := strings.TrimLeft(text, " \n")
	if strings.HasPrefix(trimmed, "{") || strings.HasPrefix(trimmed, "[") {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		return v, err == nil
	}
	d := yaml.NewDecoder(strings.NewReader(text))
	if d.Decode(&v) != nil || d.Decode(new(any)) == nil {
		return nil, false
	}
	asJSON, err := json.Marshal(v)
	if err != nil {
		return nil, false
	}
	v, err = jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	return v, err == nil
}

// looser are the errors of package policy that no schema, or none that an editor reads fast, can see. What a schema
// does not see, "sluice check" does.
var looser = []string{
	"stands here twice",                               // readers of JSON keep the last one
	"has bits behind the prefix",                      // arithmetic
	"is not a valid A-label",                          // UTS 46
	"has a name of",                                   // a length without "*." and the port
	"is not a port; write 1 to 65535 in plain digits", // 443.0 and 0x1bb are integers
	"is not a number of names",                        // 1e3 is one
	"is a YAML",                                       // aliases, tags and merge keys are resolved before
	"not valid YAML",
}

func TestSchemasAgreeWithThePolicyPackage(t *testing.T) {
	one, phases := schema(t, "policy"), schema(t, "phases")
	valid := func(v any) bool { return one.Validate(v) == nil || phases.Validate(v) == nil }
	used := map[string]bool{}
	check := func(text string) {
		v, readable := value(text)
		if !readable {
			return
		}
		_, err := policy.Parse([]byte(text))
		switch ok := valid(v); {
		case err == nil && !ok:
			t.Errorf("%s is a policy, but the schema says: %v; %v", text, one.Validate(v), phases.Validate(v))
		case err != nil && ok:
			i := slices.IndexFunc(looser, func(s string) bool { return strings.Contains(err.Error(), s) })
			if i < 0 {
				t.Errorf("%s is valid by the schema, and refused: %v", text, err)
			} else {
				used[looser[i]] = true
			}
		}
	}
	entry := func(e string) string { return `{"network_mode": "allowlist", "allowed_hosts": [` + e + `]}` }
	for _, function := range []string{"TestParsePolicy", "TestParsePhases", "TestParseErrors"} {
		for _, text := range tables(t, "../policy/parse_test.go", function) {
			check(text)
		}
	}
	for _, function := range []string{"TestParseTarget", "TestParseTargetErrors"} {
		for _, target := range tables(t, "../policy/target_test.go", function) {
			text, err := json.Marshal(target)
			if err != nil {
				t.Fatal(err)
			}
			check(entry(string(text)))
		}
	}
	for _, r := range documentRows(t, "policies.md", "Errors of entries") {
		check(entry(written(t, r.Cells[0])))
	}
	for _, r := range documentRows(t, "policies.md", "The four modes") {
		check(written(t, r.Cells[2]))
	}
	for _, s := range looser {
		if !used[s] {
			t.Errorf("the schema is as strict as the program about %q", s)
		}
	}
}

func TestSchemasOfRecords(t *testing.T) {
	records, receipts := schema(t, "audit"), schema(t, "receipt")
	asJSON := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	digest := policy.Policy{}.Digest().String()
	full := audit.Record{Time: time.Unix(1, 5), Container: "web", ContainerID: "1", Phase: "run", Generation: 2, Protocol: "tls", Target: "a.test",
		Port: 443, Address: netip.MustParseAddr("192.0.2.1"), Verdict: "allow", Reason: "name-rule", Rule: "a.test", Decision: "d", BytesIn: 1, BytesOut: 2,
		Took: 1500 * time.Microsecond}
	for _, row := range []struct {
		name, text string
		schema     *jsonschema.Schema
		ok         bool
	}{
		{"record", string(full.AppendJSON(nil)), records, true},
		{"record-short", string((&audit.Record{Verdict: "refuse"}).AppendJSON(nil)), records, true},
		{"event", asJSON(control.Event{Time: time.Unix(1, 0), Verdict: "cut", Phase: "evaluation"}), records, true},
		{"lost", `{"time":"2026-01-02T03:04:05Z","lost":3}`, records, true},
		{"record-verdict", `{"time":"2026-01-02T03:04:05Z","verdict":"deny"}`, records, false},
		{"record-phase", `{"time":"2026-01-02T03:04:05Z","verdict":"allow","phase":"later"}`, records, false},
		{"record-time", `{"time":"yesterday","verdict":"allow"}`, records, false},
		{"record-port", `{"time":"2026-01-02T03:04:05Z","verdict":"allow","port":65536}`, records, false},
		{"record-empty", `{}`, records, false},
		{"receipt", asJSON(api.Receipt{Container: "web", ContainerID: "1", Phase: "run", Digest: digest}), receipts, true},
		{"receipt-proxy", asJSON(control.Receipt{Session: "default", Phase: "run", Digest: digest, Milliseconds: .5}), receipts, true},
		{"receipt-digest", asJSON(api.Receipt{Container: "web", ContainerID: "1", Phase: "run", Digest: "1"}), receipts, false},
		{"receipt-phase", asJSON(control.Receipt{Session: "default", Phase: "", Digest: digest}), receipts, false},
		{"receipt-nobody", `{"generation":1,"phase":"run"}`, receipts, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			v, err := jsonschema.UnmarshalJSON(strings.NewReader(row.text))
			if err != nil {
				t.Fatal(err)
			}
			if err := row.schema.Validate(v); (err == nil) != row.ok {
				t.Errorf("%s: %v", row.text, err)
			}
		})
	}
}

// Every field of a record or a receipt is described.
func TestSchemasHaveAllFields(t *testing.T) {
	for _, row := range []struct {
		file string
		v    any
	}{{"audit", control.Event{}}, {"receipt", api.Receipt{}}, {"receipt", control.Receipt{}}} {
		text, err := os.ReadFile(filepath.Join("schema", row.file+".schema.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range fields(row.v) {
			if !regexp.MustCompile(`(?m)^ *"` + name + `": \{|\{ "` + name + `": \{`).Match(text) {
				t.Errorf("%s: no field %s", row.file, name)
			}
		}
	}
}
