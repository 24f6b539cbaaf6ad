package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"sluice/policy"
)

var schemaHint = regexp.MustCompile(`(?m)^# yaml-language-server: \$schema=(\S+)$`)

// Policies in examples, in files and in labels, are valid; the schema that a file names for editors is there and agrees.
func TestExamplesAreValid(t *testing.T) {
	hints, labels := 0, 0
	err := filepath.WalkDir("../examples", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if m := schemaHint.FindSubmatch(text); m != nil {
			hints++
			// Tasks are read by cmd/controller, whose tests compare what it takes with their schema.
			if _, err := policy.Parse(text); err != nil && filepath.Base(string(m[1])) != "task.schema.json" {
				t.Errorf("%s: %v", path, err)
			}
			s, err := jsonschema.NewCompiler().Compile(filepath.Join(filepath.Dir(path), string(m[1])))
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return nil
			}
			v, ok := value(string(text))
			if err := s.Validate(v); !ok || err != nil {
				t.Errorf("%s: %v", path, err)
			}
			return nil
		}
		var compose struct {
			Services map[string]struct{ Labels map[string]string }
		}
		if err := yaml.Unmarshal(text, &compose); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		for name, s := range compose.Services {
			for label, value := range s.Labels {
				switch {
				case label == "sluice.policy":
					labels++
					if _, err := policy.Parse([]byte(value)); err != nil {
						t.Errorf("%s: service %s: %v", path, name, err)
					}
				case label == "sluice.phase":
					if _, err := policy.ParsePhase(value); err != nil {
						t.Errorf("%s: service %s: %v", path, name, err)
					}
				case strings.HasPrefix(label, "sluice."):
					t.Errorf("%s: service %s: there is no label %s", path, name, label)
				}
			}
		}
		return nil
	})
	if err != nil || hints == 0 || labels == 0 {
		t.Errorf("%d files of policies, %d labels: %v", hints, labels, err)
	}
}
