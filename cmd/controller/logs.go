package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sluice/control"
)

func newLogs(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs -f [CONTAINER]",
		Short: "Follow the decisions that are made",
		Long: `Logs prints a line for every decision as it is made, and for the end of every connection, of one container or of all.
Nothing is kept but sums, which sluice report prints, so there is nothing to print without -f. A refusal's id is the one
that the client was told.`,
		Example: "  sluice logs -f web",
		Args:    cobra.MaximumNArgs(1),
	}
	follow := cmd.Flags().BoolP("follow", "f", false, "go on until interrupted (needed)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*follow {
			return errors.New("records are not kept: follow them with -f, or see their sums in sluice report CONTAINER")
		}
		id := ""
		if len(args) == 1 {
			s, err := g.client().Status(cmd.Context(), args[0])
			if err != nil {
				return failed(err)
			}
			id = s.ID
		}
		for e, err := range g.client().Events(cmd.Context()) {
			if errors.Is(err, context.Canceled) {
				return nil // interrupted, as it has to end
			}
			if err != nil {
				return failed(err)
			}
			if id != "" && e.ContainerID != id {
				continue
			}
			if err := printEvent(cmd, g, e); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

func printEvent(cmd *cobra.Command, g *globals, e control.Event) error {
	if g.json {
		if err := printJSON(cmd, e); err != nil {
			return err
		}
		return flush(cmd)
	}
	target := inert(e.Target)
	if e.Port != 0 {
		target = net.JoinHostPort(target, strconv.Itoa(int(e.Port)))
	}
	why := e.Reason
	for _, extra := range []struct{ name, value string }{{"rule", e.Rule}, {"address", e.Address}, {"decision", e.Decision}} {
		if extra.value != "" {
			why += " " + extra.name + "=" + inert(extra.value)
		}
	}
	why = strings.TrimSpace(why)
	at := e.Time.Local().Format("15:04:05.000")
	o := outputOf(cmd)
	if o.columns == 0 {
		cmd.Println(strings.TrimSpace(strings.Join([]string{at, e.Container, e.Phase, e.Verdict, e.Protocol, target, why}, " ")))
		return flush(cmd)
	}
	// In columns, and why in a line of its own if it does not fit beside the target.
	at = at[:len("15:04:05")]
	before := fmt.Sprintf("%-16s  %-10s  ", short(e.Container, 16), e.Phase)
	after := fmt.Sprintf("  %-8s  ", short(e.Protocol, 8))
	used := utf8.RuneCountInString(at+"  "+before+after) + verdictWidth
	target = o.fit(target, used)
	space := "  "
	if used+utf8.RuneCountInString(target+space+why) > o.columns {
		space = "\n" + strings.Repeat(" ", len(at)+2)
		why = o.fit(why, len(at)+2)
	}
	cmd.Println(o.paint(faint, at) + "  " + before + o.paint(verdictStyle(e.Verdict), fmt.Sprintf("%-*s", verdictWidth, e.Verdict)) +
		after + target + space + o.paint(faint, why))
	return flush(cmd)
}

// verdictWidth is the length of the longest verdict.
const verdictWidth = len("refuse")

// flush hands on what was printed, for those who wait for it.
func flush(cmd *cobra.Command) error {
	if out, ok := cmd.OutOrStdout().(interface{ Flush() error }); ok {
		if err := out.Flush(); err != nil {
			return failed(fmt.Errorf("write the output: %w", err))
		}
	}
	return nil
}
