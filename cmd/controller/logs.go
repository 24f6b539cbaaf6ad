package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice/control"
)

func newLogs(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs -f [CONTAINER]",
		Short: "Follow the decisions that are made",
		Long: `Logs prints a line for every decision as it is made, and for the end of every connection, of one container or of all.
Nothing is kept, so there is nothing to print without -f. A refusal's id is the one that the client was told.`,
		Example: "  sluice logs -f web",
		Args:    cobra.MaximumNArgs(1),
	}
	follow := cmd.Flags().BoolP("follow", "f", false, "go on until interrupted (needed)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*follow {
			return errors.New("records are not kept: follow them with -f")
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
	target := e.Target
	if e.Port != 0 {
		target = net.JoinHostPort(e.Target, strconv.Itoa(int(e.Port)))
	}
	line := fmt.Sprintf("%s %s %s %s %s %s %s", e.Time.Local().Format("15:04:05.000"), e.Container, e.Phase, e.Verdict, e.Protocol, target, e.Reason)
	for _, extra := range []struct{ name, value string }{{"rule", e.Rule}, {"address", e.Address}, {"decision", e.Decision}} {
		if extra.value != "" {
			line += " " + extra.name + "=" + extra.value
		}
	}
	cmd.Println(strings.TrimSpace(line))
	return flush(cmd)
}

// flush hands on what was printed, for those who wait for it.
func flush(cmd *cobra.Command) error {
	if out, ok := cmd.OutOrStdout().(interface{ Flush() error }); ok {
		if err := out.Flush(); err != nil {
			return failed(fmt.Errorf("write the output: %w", err))
		}
	}
	return nil
}
