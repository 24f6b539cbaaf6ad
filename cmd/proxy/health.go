package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/control"
)

func newHealth() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Say whether the proxy forwards",
		Long: `Health sends bytes through the running proxy, to an echo of its own and back, and says whether they came. Clients
do not see this, and it is in no record of theirs. It asks through the control socket, so the proxy must have been
started with --control. The exit code is 1 if it does not work.`,
		Example: "  sluice-proxy health --control /run/sluice-proxy",
		Args:    cobra.NoArgs,
	}
	client, asJSON := clientFlags(cmd)
	timeout := cmd.Flags().Duration("timeout", 5*time.Second, "how long to wait for the answer")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), *timeout, fmt.Errorf("no answer within %v", *timeout))
		defer cancel()
		h, err := client().Health(ctx)
		if err != nil {
			return failed(err)
		}
		if *asJSON {
			if err := printJSON(cmd, h); err != nil {
				return err
			}
		}
		if !h.OK {
			return failed(errors.New("not healthy: " + strings.Join(h.Problems, "; ")))
		}
		if *asJSON {
			return nil
		}
		return printHealth(cmd, h)
	}
	return cmd
}

func printHealth(cmd *cobra.Command, h control.Health) error {
	text := fmt.Sprintf("healthy: %s through the proxy and back in %.1f ms\n", plural(h.Sessions, "session"), h.Milliseconds)
	if len(h.Problems) > 0 {
		text += "but: " + strings.Join(h.Problems, "; ") + "\n"
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), text)
	return failed(err)
}
