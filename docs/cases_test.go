// Package docs checks what the documents in this directory say against the tree.
package docs

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	caseRow   = regexp.MustCompile(`^\| ([A-Z])-(\d\d) \| ([^|]+) \| ([^|]+) \|$`)
	reference = regexp.MustCompile("`([a-z0-9_/]+)\\.((?:Test|Fuzz|Example)\\w*)((?:/[^`]+)?)`")
	gap       = regexp.MustCompile(`\b[B-E]\b|\bopen\b`)
	caseID    = regexp.MustCompile(`\b[ILP]-\d\d\b`)
)

// lastCase is the number of cases in each section.
var lastCase = map[string]int{"I": 72, "L": 49, "P": 28}

type testCase struct{ id, title, tests string }

func readCases(t *testing.T) (cases []testCase) {
	t.Helper()
	text, err := os.ReadFile("cases.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if m := caseRow.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			cases = append(cases, testCase{m[1] + "-" + m[2], m[3], m[4]})
		}
	}
	return cases
}

func TestCasesAreComplete(t *testing.T) {
	var want []string
	for _, section := range []string{"I", "L", "P"} {
		for n := range lastCase[section] {
			want = append(want, fmt.Sprintf("%s-%02d", section, n+1))
		}
	}
	var got []string
	for _, c := range readCases(t) {
		got = append(got, c.id)
		if !reference.MatchString(c.tests) && !gap.MatchString(c.tests) {
			t.Errorf("%s has neither a test nor who will write one: %q", c.id, c.tests)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the rows are\n%q\nwant\n%q", got, want)
	}
}

func TestTestsOfCasesExist(t *testing.T) {
	for _, c := range readCases(t) {
		references := reference.FindAllStringSubmatch(c.tests, -1)
		if len(references)*2 != strings.Count(c.tests, "`")-2*strings.Count(c.tests, "`matcher`") {
			t.Errorf("%s: something between backticks names no test: %s", c.id, c.tests)
		}
		for _, r := range references {
			if err := findTest(r[1], r[2], strings.TrimPrefix(r[3], "/")); err != nil {
				t.Errorf("%s: %v", c.id, err)
			}
		}
	}
}

// A test that says which case it is about stands in that case's row, at least with its package.
func TestRowsNameTheTestsThatNameThem(t *testing.T) {
	rows := map[string]string{}
	for _, c := range readCases(t) {
		rows[c.id] = c.tests
	}
	for dir, text := range testSources(t) {
		for _, id := range caseID.FindAllString(text, -1) {
			if tests, known := rows[id]; !known {
				t.Errorf("a test in %s speaks of %s, which docs/cases.md does not have", dir, id)
			} else if !strings.Contains(tests, "`"+dir+".") {
				t.Errorf("a test in %s speaks of %s; name it in that row of docs/cases.md", dir, id)
				rows[id] += "`" + dir + "." // once is enough
			}
		}
	}
}

func TestFindTestFindsNothingElse(t *testing.T) {
	for _, r := range [][3]string{
		{"policy", "TestParseTarge", ""},
		{"policy", "TestParseTarget", "Q-12"},
		{"nowhere", "TestParseTarget", ""},
		{"e2e", "TestScenarios", "no_such"},
	} {
		if findTest(r[0], r[1], r[2]) == nil {
			t.Errorf("%q exists", r)
		}
	}
}

// findTest looks for a test and, unless that is empty, for a subtest whose name begins with sub: a file of its
// testscripts, or a string in the package's tests.
func findTest(dir, name, sub string) error {
	text, err := readTests(dir)
	if err != nil {
		return err
	}
	if !strings.Contains(text, "\nfunc "+name+"(") {
		return fmt.Errorf("there is no %s.%s", dir, name)
	}
	if sub == "" || strings.Contains(text, `"`+sub) {
		return nil
	}
	for _, scripts := range []string{"testdata", "testdata/script", "testdata/alone"} {
		if _, err := os.Stat(filepath.Join("..", dir, scripts, sub+".txtar")); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s.%s has no subtest %s", dir, name, sub)
}

// readTests returns the test files of a directory, with its testscripts.
func readTests(dir string) (string, error) {
	var text strings.Builder
	for _, pattern := range []string{"*_test.go", "testdata/*.txtar", "testdata/script/*.txtar", "testdata/alone/*.txtar"} {
		files, err := filepath.Glob(filepath.Join("..", dir, pattern))
		if err != nil {
			return "", err
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			text.Write(b)
		}
	}
	if text.Len() == 0 {
		return "", fmt.Errorf("%s has no tests", dir)
	}
	return text.String(), nil
}

// testSources returns the tests of every directory but this one.
func testSources(t *testing.T) map[string]string {
	t.Helper()
	sources := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return fs.SkipDir
		}
		if dir, err := filepath.Rel("..", filepath.Dir(path)); err == nil && dir != "docs" && strings.HasSuffix(path, "_test.go") {
			sources[filepath.ToSlash(dir)] = ""
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range slices.Collect(maps.Keys(sources)) {
		text, err := readTests(dir)
		if err != nil {
			t.Fatal(err)
		}
		sources[dir] = text
	}
	return sources
}
