package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/docs/shown"
)

// Every command of sluice that a document shows has arguments that the program takes.
func TestDocumentsShowCommandsThatExist(t *testing.T) {
	for _, d := range documents(t) {
		for _, b := range d.Blocks() {
			commands, err := b.Commands("sluice")
			if err != nil {
				t.Error(err)
			}
			for _, args := range commands {
				if err := parse(args[1:]); err != nil {
					t.Errorf("%v: %q: %v", b, args, err)
				}
			}
		}
	}
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
				fmt.Fprintf(&files, "-- %d.sh --\nexec 2>&1\n%s-- %[1]d.want --\n%[3]s", n, s.Command, s.Output)
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

// Operations.md has a row for every flag of serve.
func TestSettingsAreDocumented(t *testing.T) {
	var got, want []string
	for _, d := range documents(t) {
		if filepath.Base(d.Path) == "operations.md" {
			for _, r := range d.Rows("Settings of the controller") {
				name, _, _ := strings.Cut(strings.Trim(r.Cells[0], "`"), " ")
				got = append(got, name)
			}
		}
	}
	newServe(&globals{}).Flags().VisitAll(func(f *pflag.Flag) { want = append(want, "--"+f.Name) })
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("operations.md has rows for %q, the program has %q", got, want)
	}
}

// Commands.md has a row for every command, in the order of the program, with what it says of itself.
func TestCommandsAreDocumented(t *testing.T) {
	var want []string
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.HasParent() && !cmd.HasSubCommands() {
			want = append(want, fmt.Sprintf("| `%s` | %s |", cmd.CommandPath(), cmd.Short))
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(newRoot())
	slices.Sort(want)
	text, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "## sluice\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	var got []string
	for line := range strings.Lines(section) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "| `") {
			got = append(got, line)
		}
	}
	for _, row := range want {
		if !slices.Contains(got, row) {
			t.Errorf("docs/commands.md lacks the row\n%s", row)
		}
	}
	for _, row := range got {
		if !slices.Contains(want, row) {
			t.Errorf("docs/commands.md has a row of no command\n%s", row)
		}
	}
}
