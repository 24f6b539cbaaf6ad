package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/docs/shown"
)

// Every command of sluice-proxy that a document shows has arguments that the program takes.
func TestDocumentsShowCommandsThatExist(t *testing.T) {
	checked := 0
	for _, d := range documents(t) {
		for _, b := range d.Blocks() {
			commands, err := b.Commands("sluice-proxy")
			if err != nil {
				t.Error(err)
			}
			for _, args := range commands {
				checked++
				if err := parse(args[1:]); err != nil {
					t.Errorf("%v: %q: %v", b, args, err)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no document shows a command")
	}
}

func documents(t *testing.T) []shown.Document {
	t.Helper()
	all, err := shown.Documents("../..")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// parse does with a command line what comes before the work.
func parse(args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") && !slices.Contains([]string{"-h", "--help"}, args[0]) {
		args = append([]string{"serve"}, args...)
	}
	cmd, rest, err := newRoot(system{}).Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

func TestParseSeesWhatIsWrong(t *testing.T) {
	for args, ok := range map[string]bool{
		"--policy p --listen :8080": true, "ctl phase run": true, "health --timeout 1s": true,
		"ctl fase run": false, "ctl phase": false, "serve --polcy p": false, "serve p": false, "bogus": false,
	} {
		if err := parse(strings.Fields(args)); (err == nil) != ok {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// Operations.md has a row for every flag of serve.
func TestSettingsAreDocumented(t *testing.T) {
	var got, want []string
	for _, d := range documents(t) {
		if filepath.Base(d.Path) == "operations.md" {
			for _, r := range d.Rows("Settings of the proxy") {
				name, _, _ := strings.Cut(strings.Trim(r.Cells[0], "`"), " ")
				got = append(got, name)
			}
		}
	}
	newServe(system{}).Flags().VisitAll(func(f *pflag.Flag) { want = append(want, "--"+f.Name) })
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("operations.md has rows for %q, the program has %q", got, want)
	}
}

// Commands.md has a row for every command, with what it says of itself.
func TestCommandsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## sluice-proxy\n")
	n := 0
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if row := fmt.Sprintf("| `%s` | %s |\n", cmd.CommandPath(), cmd.Short); cmd.HasParent() && !cmd.HasSubCommands() {
			n++
			if !strings.Contains(section, row) {
				t.Errorf("docs/commands.md lacks the row\n%s", row)
			}
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(newRoot(system{}))
	if got := strings.Count(section, "| `"); got != n {
		t.Errorf("docs/commands.md has %d rows, the program %d commands", got, n)
	}
}
