package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/controller/api"
	"sluice/policy"
)

func newList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List the containers that are under a policy",
		Example: "  sluice ls --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := g.client().List(cmd.Context())
			if err != nil {
				return failed(err)
			}
			if g.json {
				return printJSON(cmd, all)
			}
			rows := [][]string{{"CONTAINER", "ID", "STATE", "PHASE", "POLICY", "GEN"}}
			for _, s := range all {
				rows = append(rows, []string{short(s.Name, 20), fmt.Sprintf("%.12s", s.ID), string(s.State), s.Phase, s.Mode,
					strconv.FormatUint(s.Generation, 10)})
			}
			return printStyled(cmd, rows, func(row, column int) style {
				switch {
				case row == 0:
					return bold
				case column == 2:
					return stateStyle(all[row-1].State)
				}
				return ""
			})
		},
	}
}

func newStatus(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "status CONTAINER",
		Short:   "Show what is in force for a container, and its open connections",
		Example: "  sluice status web",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := g.client().Status(cmd.Context(), args[0])
			if err != nil {
				return failed(err)
			}
			if g.json {
				return printJSON(cmd, s)
			}
			return printStatus(cmd, g, s)
		},
	}
}

// maxShown is how many connections are printed for people; --json has a command of its own.
const maxShown = 20

func printStatus(cmd *cobra.Command, g *globals, s api.Status) error {
	rows := [][]string{
		{"container", s.Name + " (" + fmt.Sprintf("%.12s", s.ID) + ")"},
		{"state", string(s.State)},
		{"phase", s.Phase + " since " + s.Since.Format(time.DateTime)},
		{"policy", modeAndTargets(s)},
		{"generation", strconv.FormatUint(s.Generation, 10)},
		{"digest", s.Digest},
	}
	if len(s.Proxy) > 0 {
		rows = append(rows, []string{"proxy", strings.Join(s.Proxy, " ") + " (inside; needs no setting)"})
	}
	if s.UncoveredMilliseconds > 0 {
		rows = append(rows, []string{"uncovered", fmt.Sprintf("%.1f ms of this run", s.UncoveredMilliseconds)})
	}
	for _, phase := range []policy.Phase{policy.Baseline, policy.Run, policy.Evaluation} {
		if text, ok := s.Policies[phase.String()]; ok {
			rows = append(rows, []string{"  " + phase.String(), summary(text)})
		}
	}
	if err := printStyled(cmd, rows, func(row, column int) style {
		switch {
		case column == 0:
			return faint
		case row == 1:
			return stateStyle(s.State)
		case rows[row][0] == "uncovered":
			return red
		}
		return ""
	}); err != nil {
		return err
	}
	o := outputOf(cmd)
	if s.Problem != "" {
		cmd.Println(o.paint(red, "problem: "+s.Problem))
	}
	for _, w := range s.Weak {
		cmd.Println(o.paint(yellow, "weak: "+w))
	}
	for _, n := range s.Notes {
		cmd.Printf("note: %s\n", n)
	}
	if s.State != api.Attached {
		return nil
	}
	flows, err := g.client().Flows(cmd.Context(), s.ID)
	if err != nil {
		return failed(err)
	}
	cmd.Printf("%s through the proxy\n", count(len(flows), "connection"))
	rows = nil
	for i, f := range flows {
		if i == maxShown {
			rows = append(rows, []string{"  …", fmt.Sprintf("and %d more", len(flows)-maxShown)})
			break
		}
		rows = append(rows, []string{"  " + f.Protocol, short(inert(f.Target), 40), f.Address})
	}
	return printTable(cmd, rows)
}

// summary shows a policy in a line.
func summary(text json.RawMessage) string {
	var p policy.Policy
	if err := p.UnmarshalJSON(text); err != nil {
		return err.Error() // a newer controller's
	}
	var targets []string
	for _, t := range p.Targets {
		targets = append(targets, t.String())
	}
	return short(strings.TrimSpace(p.Mode.String()+" "+strings.Join(targets, " ")), 60)
}
