package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sluice/docs/shown"
)

var (
	link     = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	title    = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	repoPath = regexp.MustCompile(`^([a-z][a-z0-9_]*)/[A-Za-z0-9_./-]*$`)
	unslug   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// slug is the anchor that a heading gets where documents are shown.
func slug(heading string) string {
	return strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// prose is a document without its blocks of code.
func prose(d shown.Document) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(d.Text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		} else if !fenced && !strings.HasPrefix(line, "    ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestLinksResolve(t *testing.T) {
	all, err := shown.Documents("..")
	if err != nil {
		t.Fatal(err)
	}
	anchors := map[string]map[string]bool{}
	for _, d := range all {
		anchors[d.Path] = map[string]bool{}
		for _, m := range title.FindAllStringSubmatch(prose(d), -1) {
			anchors[d.Path][slug(m[1])] = true
		}
	}
	checked := 0
	for _, d := range all {
		for _, m := range link.FindAllStringSubmatch(prose(d), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			checked++
			file, anchor, _ := strings.Cut(m[1], "#")
			path := d.Path
			if file != "" {
				path = filepath.Join(filepath.Dir(d.Path), file)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s links to %s: %v", d.Path, m[1], err)
			} else if anchor != "" && !anchors[path][anchor] {
				t.Errorf("%s links to %s, which has no such heading", d.Path, m[1])
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d links were found", checked)
	}
}

// A path of the repository that a document names is there. What follows a file's name in the same code is a symbol.
func TestPathsExist(t *testing.T) {
	all, err := shown.Documents("..")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, d := range all {
		for _, path := range codes(prose(d)) {
			m := repoPath.FindStringSubmatch(path)
			if m == nil || filepath.Base(d.Path) == "cases.md" { // whose tests are checked by their names
				continue
			}
			if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
				continue // not a directory of the repository
			}
			checked++
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s names %s: %v", d.Path, path, err)
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d paths were found", checked)
	}
}

func TestSlug(t *testing.T) {
	for heading, want := range map[string]string{
		"The floor": "the-floor", "Private addresses under a wildcard": "private-addresses-under-a-wildcard", "`sluice` (1.0): a/b": "sluice-10-ab",
	} {
		if got := slug(heading); got != want {
			t.Errorf("%q: %q, want %q", heading, got, want)
		}
	}
}
