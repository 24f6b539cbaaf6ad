package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"sluice/docs/shown"
)

// Documents show commands and settings of sluice as they are.
func TestDocumentsShowCommandsThatExist(t *testing.T) {
	shown.CheckCommands(t, "../..", "sluice", parse)
	shown.CheckSettings(t, "../..", "Settings of the controller", newServe(&globals{}).Flags())
	shown.CheckCommandTable(t, "../..", newRoot())
}

// parse does with a command line what comes before the work.
func parse(args []string) error {
	cmd, rest, err := newRoot().Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if help := cmd.Flags().Lookup("help"); help != nil && help.Changed {
		return nil
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	return cmd.ValidateRequiredFlags()
}

func TestParseSeesWhatIsWrong(t *testing.T) {
	for args, ok := range map[string]bool{
		"check policy.yaml": true, "attach web --policy p": true, "run --allow a.test -- alpine wget -q x": true, "network create a --ipv6": true,
		"chekc policy.yaml": false, "attach web": false, "check --yaml p": false, "phase web": false, "network make a": false, "ls web": false,
	} {
		if err := parse(strings.Fields(args)); (err == nil) != ok {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// What the console blocks of the documents show happens: each document is a script, with the files that its other blocks
// name in their first line.
func TestDocumentsShowWhatHappens(t *testing.T) {
	dir, scripts := t.TempDir(), 0
	for _, d := range documents(t) {
		var script, files strings.Builder
		n := 0
		for _, b := range d.Blocks() {
			if file, isFile := b.File(); isFile {
				fmt.Fprintf(&files, "-- %s --\n%s", file, b.Text)
			}
			if b.Language != shown.Console {
				continue
			}
			for _, s := range b.Sessions() {
				n++
				fmt.Fprintf(&script, "# %v\nexec sh %d.sh\ncmp stdout %[2]d.want\n", b, n)
				fmt.Fprintf(&files, "-- %d.sh --\nexec 2>&1\n%sexit 0 # that it fails is what some show\n-- %[1]d.want --\n%[3]s", n, s.Command, s.Output)
			}
		}
		if n == 0 {
			continue
		}
		scripts++
		name := strings.TrimSuffix(filepath.Base(d.Path), ".md") + ".txtar"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script.String()+"\n"+files.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if scripts == 0 {
		t.Fatal("no document shows a console")
	}
	testscript.Run(t, testscript.Params{Dir: dir})
}

func documents(t *testing.T) []shown.Document {
	t.Helper()
	all, err := shown.Documents("../..")
	if err != nil {
		t.Fatal(err)
	}
	return all
}
