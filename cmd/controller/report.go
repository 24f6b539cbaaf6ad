package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"sluice/lifecycle/evidence"
)

func newReport(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "report {CONTAINER | FILE}",
		Short: "Say what was tried in each phase, and what became of it",
		Long: `Report says what has happened to a container since the controller began to look after it: its switches, and what it
tried in each phase. It also sums up the result of a task (sluice task --result) or an audit: the file of sluice task
--audit, or the lines of sluice logs -f --json. "-" is stdin. What is no file is a container's name or id. With --html it
writes one file that loads nothing, for a browser or a phone.

With --check it verifies that no line of the audit of a task was changed, taken out or put in, and prints the digest of
the last one. The result of the task has that too, and the digest at each step beside its receipt: with --result they are
compared, so that a missing end shows, and a file that was written anew. The exit code is 1 if the audit is not whole.`,
		Example: "  sluice report audit.jsonl",
		Args:    cobra.ExactArgs(1),
	}
	html := cmd.Flags().String("html", "", "write the report to `FILE` as HTML")
	check := cmd.Flags().Bool("check", false, "verify the chain of an audit file")
	head := cmd.Flags().String("head", "", "with --check: the `DIGEST` that the last line must have")
	result := cmd.Flags().String("result", "", "with --check: the task's result `FILE`, whose digests must be those of the audit's lines")
	top := cmd.Flags().Int("top", 20, "attempts of a phase to print; --json prints all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("head") && *head == "" {
			return errors.New("--head: is empty, so nothing would be compared; give the digest of the last line")
		}
		if cmd.Flags().Changed("result") && *result == "" {
			return errors.New("--result: is empty, so nothing would be compared; give the task's result file")
		}
		if *check {
			return checkAudit(cmd, g, args[0], *head, *result)
		}
		if *head != "" || *result != "" {
			return errors.New("--head and --result belong to --check")
		}
		r, err := readReport(cmd, g, args[0])
		if err != nil {
			return failed(err)
		}
		if *html != "" {
			f, err := os.Create(*html)
			if err != nil {
				return failed(err)
			}
			if err := errors.Join(r.WriteHTML(f), f.Close()); err != nil {
				return failed(err)
			}
		}
		switch {
		case g.json:
			return printJSON(cmd, r)
		case *html != "":
			return nil
		}
		return printReport(cmd, r, *top)
	}
	return cmd
}

// readReport reads a file if there is one, and asks for a container otherwise.
func readReport(cmd *cobra.Command, g *globals, name string) (evidence.Report, error) {
	if _, err := os.Stat(name); name == "-" || !errors.Is(err, os.ErrNotExist) {
		return readAudit(cmd, name)
	}
	if strings.ContainsRune(name, filepath.Separator) {
		return evidence.Report{}, fmt.Errorf("there is no file %s", name)
	}
	r, err := g.client().Report(cmd.Context(), name)
	if err != nil {
		return evidence.Report{}, fmt.Errorf("there is no file %s, and of a container: %w", name, err)
	}
	return evidence.OfContainer(r), nil
}

func printReport(cmd *cobra.Command, r evidence.Report, top int) error {
	if r.Task != "" || r.Container != nil {
		cmd.Println(clean(r.Title()))
	}
	if c := r.Container; c != nil {
		cmd.Printf("%s, phase %s (%s), generation %d, since %s\n", clean(string(c.State)), clean(c.Phase), clean(modeAndTargets(*c)), c.Generation, c.Since.Local().Format(time.DateTime))
		if c.Problem != "" {
			cmd.Printf("%s\n", clean(c.Problem))
		}
	}
	if r.Error != "" {
		cmd.Printf("failed: %s\n", clean(r.Error))
	}
	for _, a := range r.Advice {
		cmd.Printf("%s\n", clean(a))
	}
	if len(r.Steps) > 0 {
		rows := [][]string{{"BOUNDARY", "ENVIRONMENT", "PHASE", "GENERATION", "SECONDS", ""}}
		for _, s := range r.Steps {
			name, note := string(s.Boundary), ""
			switch {
			case s.Error != "":
				note = "failed: " + s.Error
			case s.TimedOut:
				note = "timed out"
			case s.ExitCode != nil:
				note = fmt.Sprintf("exit code %d", *s.ExitCode)
			case s.Switch && s.Receipt != nil:
				note = fmt.Sprintf("%s cut, %d kept, %.1f ms", count(s.Receipt.FlowsCut, "flow"), s.Receipt.FlowsKept, s.Receipt.Milliseconds)
			}
			if s.Switch {
				name = "-> " + s.Phase.String()
			}
			rows = append(rows, []string{clean(name), clean(string(s.Environment)), s.Phase.String(), fmt.Sprint(s.Generation), fmt.Sprintf("%.3f", s.Seconds), clean(note)})
		}
		if err := printTable(cmd, rows); err != nil {
			return err
		}
	}
	for _, p := range r.Phases {
		mode := ""
		if m := r.Modes[p.Phase]; m != "" {
			mode = " (" + m + ")"
		}
		cmd.Printf("\n%s%s: %d allowed, %d refused (%d in DNS), %d cut, %d failed; %d bytes in, %d out\n",
			clean(p.Phase), clean(mode), p.Allowed, p.Refused, p.NamesRefused, p.Cut, p.Failed, p.BytesIn, p.BytesOut)
		rows := [][]string{{"  TARGET", "PROTOCOL", "VERDICT", "TIMES", "RULE", "FIRST", "LAST"}}
		for _, a := range p.Attempts[:min(len(p.Attempts), max(top, 0))] {
			rule := a.Rule
			if missing := a.Missing(); rule == "" && missing != "" {
				rule = "would need " + missing
			}
			rows = append(rows, []string{"  " + clean(a.Where()), clean(a.Protocol), clean(a.Verdict + " " + a.Reason), fmt.Sprint(a.Count), clean(rule),
				a.First.Local().Format("15:04:05.000"), a.Last.Local().Format("15:04:05.000")})
		}
		if err := printTable(cmd, rows); err != nil {
			return err
		}
		if more := len(p.Attempts) - top; more > 0 || p.Untold > 0 {
			cmd.Printf("  and %d more, which --json prints; %d attempts were at too many targets to be told\n", max(more, 0), p.Untold)
		}
	}
	for _, p := range r.Packets {
		if p.Allowed+p.Refused > 0 {
			cmd.Printf("\n%s: by address alone %d packets let through, with %d bytes, %d refused\n", clean(p.Phase), p.Allowed, p.AllowedBytes, p.Refused)
		}
	}
	if r.Violation {
		cmd.Println("\nthe agent tried what its policy refuses")
	} else {
		cmd.Println("\nnothing was refused in the phase run")
	}
	if r.Enforcement != nil {
		cmd.Println(clean(r.Enforcement.String()))
	}
	if r.Problem != "" {
		cmd.PrintErrf("sluice: warning: the evidence is not complete: %s\n", clean(r.Problem))
	}
	return nil
}

// clean replaces what would do something to a terminal: a file may come from anybody.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// cleanLines is [clean] for the lines of an error, which may name what a workload has chosen: a file in an artifact, say.
func cleanLines(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		lines[i] = clean(strings.ReplaceAll(line, "\t", "    "))
	}
	return strings.Join(lines, "\n")
}

// checkAudit verifies the chain of an audit file.
func checkAudit(cmd *cobra.Command, g *globals, name, want, result string) error {
	var heads []string
	if result != "" {
		in, err := open(cmd, result)
		if err != nil {
			return failed(err)
		}
		defer in.Close()
		if heads, err = evidence.Heads(in); err != nil {
			return failed(fmt.Errorf("%s: %w", display(result), err))
		}
		want = cmp.Or(want, heads[len(heads)-1])
	}
	in, err := open(cmd, name)
	if err != nil {
		return failed(err)
	}
	defer in.Close()
	head, err := evidence.Check(in, heads...)
	if err != nil {
		return failed(fmt.Errorf("%s is not whole: %w", display(name), err))
	}
	if want != "" && head != want {
		return failed(fmt.Errorf("%s is not whole: its last line has the digest %q, not %q: lines at its end are missing or more were added", display(name), head, want))
	}
	if g.json {
		return printJSON(cmd, struct {
			OK   bool   `json:"ok"`
			Head string `json:"head"`
		}{true, head})
	}
	cmd.Printf("%s: whole, head %s\n", display(name), head)
	return nil
}
