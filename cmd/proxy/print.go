package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sluice/control"
)

func printJSON(cmd *cobra.Command, v any) error {
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return failed(enc.Encode(v))
}

// table prints rows in columns of equal width.
func table(cmd *cobra.Command, rows [][]string) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return failed(w.Flush())
}

// short keeps the end of a text, where a host name says most, within a column of n characters.
func short(s string, n int) string {
	if count := utf8.RuneCountInString(s); count > n {
		r := []rune(s)
		return "…" + string(r[count-n+1:])
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// size shows a count in at most seven characters.
func size(n uint64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, units := float64(n), "kMGTPE"
	for {
		value /= 1000
		if value < 999.5 || len(units) == 1 {
			return fmt.Sprintf("%.3g %cB", value, units[0])
		}
		units = units[1:]
	}
}

// age shows a duration in at most six characters.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 100*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

func printReceipt(cmd *cobra.Command, r control.Receipt, asJSON bool) error {
	if asJSON {
		return printJSON(cmd, r)
	}
	what := fmt.Sprintf("phase %s is in force (generation %d): %s cut, %d kept", r.Phase, r.Generation, plural(r.FlowsCut, "flow"), r.FlowsKept)
	if r.Unchanged {
		what = fmt.Sprintf("phase %s was in force already (generation %d): nothing changed", r.Phase, r.Generation)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s, %.1f ms\n", what, r.Milliseconds)
	return failed(err)
}

func printFlows(cmd *cobra.Command, flows []control.Flow) error {
	rows := [][]string{{"PROTOCOL", "TARGET", "ADDRESS", "AGE", "IN", "OUT"}}
	for _, f := range flows {
		rows = append(rows, []string{short(f.Protocol, 8), short(f.Target, 23), short(f.Address, 20), age(time.Since(f.Since)), size(f.BytesIn), size(f.BytesOut)})
	}
	return table(cmd, rows)
}

func printStatus(cmd *cobra.Command, all []control.SessionStatus) error {
	rows := [][]string{{"SESSION", "STATE", "PHASE", "MODE", "GENERATION", "FLOWS"}}
	for _, s := range all {
		name := s.Container
		if name == "" {
			name = s.ID
		}
		rows = append(rows, []string{short(name, 20), string(s.State), s.Phase, s.Mode, fmt.Sprint(s.Generation), fmt.Sprint(s.Flows)})
	}
	if err := table(cmd, rows); err != nil {
		return err
	}
	for _, s := range all {
		if s.Source == nil {
			continue
		}
		text := fmt.Sprintf("\n%s is %s since %s\n", s.Source.Path, s.Source.State, s.Source.Since.Format(time.RFC3339))
		if s.Source.Error != "" {
			text += s.Source.Error + "\n"
		}
		for _, r := range s.Source.Rejected {
			text += "rejected: " + r + "\n"
		}
		if _, err := fmt.Fprint(cmd.OutOrStdout(), text); err != nil {
			return failed(err)
		}
	}
	return nil
}

func printExplanation(cmd *cobra.Command, x control.Explanation) error {
	rule := x.Rule
	if rule == "" {
		rule = "none"
	}
	if err := table(cmd, [][]string{{"target", x.Target}, {"phase", x.Phase}, {"verdict", x.Verdict}, {"reason", x.Reason}, {"rule", rule}}); err != nil {
		return err
	}
	if x.Text != "" {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), x.Text); err != nil {
			return failed(err)
		}
	}
	if len(x.Addresses) == 0 {
		return nil
	}
	rows := [][]string{{"ADDRESS", "VERDICT", "REASON", "RULE"}}
	for _, a := range x.Addresses {
		rows = append(rows, []string{a.Address, a.Verdict, a.Reason, short(a.Rule, 14)})
	}
	return table(cmd, rows)
}
