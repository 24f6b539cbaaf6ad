package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice/docs/shown"
)

// Targets of make, scripts and tests that documents tell to run are there.
func TestDocumentsTellToRunWhatExists(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	all, err := shown.Documents("..")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, d := range all {
		for _, b := range d.Blocks() {
			commands, err := b.Commands("make", "go", "release")
			if err != nil && strings.Contains(b.Text, "sluice") {
				t.Error(err)
			}
			for _, args := range commands {
				checked++
				switch {
				case args[0] == "make" && len(args) > 1:
					if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(args[1]) + `:`).Match(makefile) {
						t.Errorf("%v: the Makefile has no target %s", b, args[1])
					}
				case args[0] == "go" && args[1] == "test":
					if what := missingTest(args[2:]); what != "" {
						t.Errorf("%v: %q: no test like %s", b, args, what)
					}
				case strings.Contains(args[0], "/"):
					if _, err := os.Stat(filepath.Join("..", args[0])); err != nil {
						t.Errorf("%v: %v", b, err)
					}
				}
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d commands were found", checked)
	}
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w*)\(`)

// missingTest returns the pattern among the arguments of "go test" that no test in its package matches.
func missingTest(args []string) string {
	at := slices.IndexFunc(args, func(s string) bool { return strings.HasPrefix(s, "./") })
	if at < 0 || strings.Contains(args[at], "...") {
		return ""
	}
	files, err := filepath.Glob(filepath.Join("..", args[at], "*_test.go"))
	if err != nil || len(files) == 0 {
		return args[at]
	}
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return file
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	for i, flag := range args[:len(args)-1] {
		if flag != "-run" && flag != "-bench" && flag != "-fuzz" || args[i+1] == "^$" || args[i+1] == "." {
			continue
		}
		top, _, _ := strings.Cut(args[i+1], "/")
		kind := map[string]string{"-run": "Test", "-bench": "Benchmark", "-fuzz": "Fuzz"}[flag]
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, kind) && regexp.MustCompile(top).MatchString(n) }) {
			return args[i+1]
		}
	}
	return ""
}

func TestMissingTestsAreSeen(t *testing.T) {
	for args, want := range map[string]string{
		"./policy -run TestParseErrors/P-08": "", "./policy -run TestNothing": "TestNothing", "./nowhere": "./nowhere", "./... -run TestNothing": "",
		"./policy -fuzz TestParseErrors": "TestParseErrors",
	} {
		if got := missingTest(strings.Fields(args)); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}
