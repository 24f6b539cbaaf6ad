package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// attemptList is a function of e2e/lab/attempts that lists attempts of one kind.
var attemptList = regexp.MustCompile(`(?m)^func \(m \*maker\) (\w+)\(\) \{$`)

// Every list of attempts has a row in redteam.md and the other way round, and every test that is named there exists.
func TestRedTeam(t *testing.T) {
	files, err := filepath.Glob("../e2e/lab/attempts/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var there, documented []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range attemptList.FindAllStringSubmatch(string(text), -1) {
			there = append(there, m[1])
		}
	}
	for _, r := range documentRows(t, "redteam.md", "Attempts") {
		documented = append(documented, codes(r.Cells[0])...)
	}
	slices.Sort(there)
	slices.Sort(documented)
	if !slices.Equal(there, documented) {
		t.Errorf("the lists are\n%q\nand the document has\n%q", there, documented)
	}
	text, err := os.ReadFile("redteam.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, r := range reference.FindAllStringSubmatch(string(text), -1) {
		named++
		if err := findTest(r[1], r[2], strings.TrimPrefix(r[3], "/")); err != nil {
			t.Error(err)
		}
	}
	if named < 10 {
		t.Errorf("only %d tests are named", named)
	}
}
