package shown

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// ManualPages makes a manual page of every command of a program that is not hidden, in dir, or to throw it away if dir is
// "". Their date is that of SOURCE_DATE_EPOCH, so that one commit has the same pages whenever they are made; a day in
// the past without it.
func ManualPages(t *testing.T, root *cobra.Command, dir string) {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	const variable = "SOURCE_DATE_EPOCH"
	if os.Getenv(variable) == "" {
		t.Setenv(variable, "1767225600") // 2026-01-01
	}
	seconds, err := strconv.ParseInt(os.Getenv(variable), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	date := time.Unix(seconds, 0).UTC() // cobra would take the local month
	root.DisableAutoGenTag = true
	err = doc.GenManTreeFromOpts(root, doc.GenManTreeOptions{Path: dir, CommandSeparator: "-",
		Header: &doc.GenManHeader{Section: "1", Source: "Sluice", Manual: "Sluice", Date: &date}})
	if err != nil {
		t.Fatal(err)
	}
	checkManualPage(t, filepath.Join(dir, root.Name()+".1"), root.Short, date.Format(`"Jan 2006"`))
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() {
			checkManualPage(t, filepath.Join(dir, root.Name()+"-"+cmd.Name()+".1"), cmd.Short)
		}
	}
}

// checkManualPage wants texts to be in a page.
func checkManualPage(t *testing.T, path string, texts ...string) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	plain := strings.ReplaceAll(string(page), `\`, "")
	for _, text := range texts {
		if !strings.Contains(plain, text) {
			t.Errorf("%s does not say %q", path, text)
		}
	}
}
