package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"sluice/lifecycle"
)

const taskSchema = "../../docs/schema/task.schema.json"

// The schema of tasks has the fields and the boundaries that the program knows.
func TestTaskSchemaHasAllFields(t *testing.T) {
	schema := readSchema(t, taskSchema)
	var boundaries []string
	for _, b := range lifecycle.Boundaries {
		boundaries = append(boundaries, string(b))
	}
	for what, row := range map[string]struct {
		described map[string]json.RawMessage
		want      []string
	}{
		"task":       {schema.Properties, jsonFields(taskFile{})},
		"command":    {schema.Defs["command"].Properties, jsonFields(taskCommand{})},
		"artifact":   {schema.inner(t, "artifacts").Properties, jsonFields(taskArtifact{})},
		"boundaries": {schema.inner(t, "commands").Properties, boundaries},
	} {
		got := slices.Sorted(maps.Keys(row.described))
		slices.Sort(row.want)
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: the schema has %q, the program %q", what, got, row.want)
		}
	}
}

// described is what a schema says of an object.
type described struct{ Properties map[string]json.RawMessage }

// inner finds an object within it, or what a list has for items, by the names that lead there.
func (d described) inner(t *testing.T, names ...string) described {
	t.Helper()
	for _, name := range names {
		var next struct {
			described
			Items described
		}
		if err := json.Unmarshal(d.Properties[name], &next); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d = next.described; d.Properties == nil {
			d = next.Items
		}
	}
	return d
}

// schemaFile is a schema, with what it defines by names.
type schemaFile struct {
	described
	Defs map[string]described `json:"$defs"`
}

func readSchema(t *testing.T, name string) (s schemaFile) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func jsonFields(v any) (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// taskLooser are the errors of tasks that their schema does not see.
var taskLooser = []string{
	"only a task with \"evaluation_environment: fresh\" has", // fields that hang together
	"there is no session without start_session",
	"lies in that of", // paths
	"already defined", // readers keep the last one of two fields
}

func TestTaskSchemaAgreesWithTheProgram(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile(taskSchema)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := txtar.ParseFile(filepath.Join("testdata", "script", "task.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	files := archive.Files
	for _, d := range documents(t) {
		for _, b := range d.Blocks() {
			if name, ok := b.File(); ok && name == "task.yaml" {
				files = append(files, txtar.File{Name: d.Path, Data: []byte(b.Text)})
			}
		}
	}
	good, bad := 0, 0
	for _, f := range files {
		if !bytes.Contains(f.Data, []byte("commands:")) && !bytes.HasPrefix(f.Data, []byte("image:")) {
			continue // of something else
		}
		cmd := &cobra.Command{}
		cmd.SetIn(bytes.NewReader(f.Data))
		task, err := readTask(cmd, "-")
		if err == nil {
			_, err = task.task()
		}
		var v any
		asJSON := []byte("null")
		if yaml.Unmarshal(f.Data, &v) == nil {
			var marshalErr error
			if asJSON, marshalErr = json.Marshal(v); marshalErr != nil {
				t.Fatal(marshalErr)
			}
		}
		value, readErr := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
		if readErr != nil {
			t.Fatal(readErr)
		}
		said := schema.Validate(value)
		switch {
		case err == nil && said != nil:
			t.Errorf("%s is a task, but the schema says: %v", f.Name, said)
		case err == nil:
			good++
		case said == nil && !slices.ContainsFunc(taskLooser, func(s string) bool { return strings.Contains(err.Error(), s) }):
			t.Errorf("%s is valid by the schema, and refused: %v", f.Name, err)
		default:
			bad++
		}
	}
	if good == 0 || bad < 5 {
		t.Errorf("%d good and %d bad tasks were compared", good, bad)
	}
}
