package shown

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// CheckCommands wants every command of a program that a document below root shows to have arguments that parse takes.
func CheckCommands(t *testing.T, root, program string, parse func(args []string) error) {
	t.Helper()
	checked := 0
	for _, d := range documents(t, root) {
		for _, b := range d.Blocks() {
			commands, err := b.Commands(program)
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
		t.Errorf("no document shows a command of %s", program)
	}
}

// CheckSettings wants docs/operations.md to have a row for every flag, under a heading.
func CheckSettings(t *testing.T, root, heading string, flags *pflag.FlagSet) {
	t.Helper()
	var got, want []string
	for _, r := range rows(t, root, "docs/operations.md", heading) {
		name, _, _ := strings.Cut(strings.Trim(r.Cells[0], "`"), " ")
		got = append(got, name)
	}
	flags.VisitAll(func(f *pflag.Flag) { want = append(want, "--"+f.Name) })
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags of %s (-the program +docs/operations.md):\n%s", heading, diff)
	}
}

// CheckCommandTable wants docs/commands.md to have, under the program's name, a row for every command with what it says
// of itself, and none of anything else.
func CheckCommandTable(t *testing.T, root string, program *cobra.Command) {
	t.Helper()
	var got, want []string
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.HasParent() && !cmd.HasSubCommands() {
			want = append(want, "| `"+cmd.CommandPath()+"` | "+cmd.Short+" |")
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(program)
	for _, r := range rows(t, root, "docs/commands.md", program.Name()) {
		got = append(got, "| "+strings.Join(r.Cells, " | ")+" |")
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("commands (-the program +docs/commands.md):\n%s", diff)
	}
}

func documents(t *testing.T, root string) []Document {
	t.Helper()
	all, err := Documents(root)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func rows(t *testing.T, root, path, heading string) (rows []Row) {
	t.Helper()
	for _, d := range documents(t, root) {
		if strings.HasSuffix(d.Path, path) {
			rows = append(rows, d.Rows(heading)...)
		}
	}
	return rows
}
