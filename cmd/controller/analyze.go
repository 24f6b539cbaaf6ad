package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sluice/lifecycle/evidence"
	"sluice/policy/pyjson"
	"sluice/trajectory"
)

// analyzed is the --json output of analyze.
type analyzed struct {
	trajectory.Analysis
	Threshold float64 `json:"threshold"`
	Bad       bool    `json:"is_badcase"`
	// Uses and Unexplained are there with --audit.
	Uses        []trajectory.Use         `json:"uses,omitempty"`
	Unexplained []trajectory.Unexplained `json:"unexplained,omitempty"`
}

func newAnalyze(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "analyze TRAJECTORY",
		Short: "Say which steps of an agent's trajectory use the network",
		Long: `Analyze finds operations on the network (curl, wget, installs, clones) in the tool calls of a trajectory, a JSON file
of AgentCompass's or OpenAI's form ("-" is stdin), as AgentCompass's NetworkOperationAnalyzer does, and their ratio to all
steps with tool calls. With --audit it says what became of the targets that they name, and which targets were tried
without being named.

It shows what an agent meant to do, not what was let through: only the audit shows that.`,
		Example: "  sluice analyze trajectory.json --audit audit.jsonl",
		Args:    cobra.ExactArgs(1),
	}
	threshold := cmd.Flags().Float64("threshold", trajectory.DefaultThreshold, "the ratio, 0 to 1, above which a trajectory counts as bad")
	audit := cmd.Flags().String("audit", "", "the audit `FILE` of the same task")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !(*threshold >= 0 && *threshold <= 1) {
			return fmt.Errorf("--threshold: %v is no ratio; write a number from 0 to 1, 0.2 for 20 percent", *threshold)
		}
		data, err := readAll(cmd, args[0], pyjson.MaxBytes)
		if err != nil {
			return failed(err)
		}
		found, err := trajectory.Analyze(data)
		if err != nil {
			return failed(fmt.Errorf("%s: %w", display(args[0]), err))
		}
		a := analyzed{Analysis: found, Threshold: *threshold, Bad: found.Bad(*threshold)}
		if *audit != "" {
			r, err := readAudit(cmd, *audit)
			if err != nil {
				return failed(err)
			}
			a.Uses, a.Unexplained = found.Join(r.Phases)
		}
		if g.json {
			return printJSON(cmd, a)
		}
		return a.print(cmd, *audit != "")
	}
	return cmd
}

func (a analyzed) print(cmd *cobra.Command, joined bool) error {
	cmd.Printf("%d of %s with tool calls use the network: ratio %.4g, threshold %.4g", a.NetworkSteps, count(a.ToolSteps, "step"), a.Ratio, a.Threshold)
	if a.Bad {
		cmd.Print(": too many")
	}
	cmd.Println()
	rows := [][]string{}
	for _, s := range a.Details {
		for _, c := range s.Commands {
			rows = append(rows, []string{fmt.Sprintf("  step %d", s.ID), clean(c.Match), fmt.Sprintf("%.80q", c.Args)})
		}
	}
	if err := printTable(cmd, rows); err != nil || !joined {
		return err
	}
	cmd.Println("\nwhat was let through in the phase run:")
	rows = [][]string{{"  STEP", "OPERATION", "TARGET", "ALLOWED", "REFUSED", "VERDICT"}}
	for _, u := range a.Uses {
		rows = append(rows, []string{fmt.Sprintf("  %d", u.Step), clean(u.Match), clean(u.Target), fmt.Sprint(u.Allowed), fmt.Sprint(u.Refused), u.Verdict})
	}
	for _, u := range a.Unexplained {
		rows = append(rows, []string{"  -", "(no operation names it)", clean(u.Target), fmt.Sprint(u.Allowed), fmt.Sprint(u.Refused), ""})
	}
	return printTable(cmd, rows)
}

// readAudit sums up an audit file, or the result of a task.
func readAudit(cmd *cobra.Command, name string) (evidence.Report, error) {
	in, err := open(cmd, name)
	if err != nil {
		return evidence.Report{}, err
	}
	defer in.Close()
	r, err := evidence.ReadReport(in)
	if err != nil {
		return evidence.Report{}, fmt.Errorf("%s: %w", display(name), err)
	}
	if len(r.Phases) == 0 && len(r.Steps) == 0 {
		return r, errors.New(display(name) + " holds no record; write an audit with sluice task --audit, or sluice logs -f --json")
	}
	return r, nil
}
