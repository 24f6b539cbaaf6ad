package main

import (
	"github.com/spf13/cobra"

	"sluice/policy"
)

// noticed is the --json output of notice.
type noticed struct {
	Mode   policy.Mode `json:"network_mode"`
	Notice string      `json:"notice"`
}

func newNotice(asJSON *bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notice FILE",
		Short: "Print what an agent is told about its network policy",
		Long: `Notice prints the statement that AgentCompass puts behind an agent's instructions, byte for byte, and a
newline. A public policy has none, so nothing is printed. FILE may be "-" for stdin.`,
		Example: "  sluice notice policy.yaml --phase run",
		Args:    cobra.ExactArgs(1),
	}
	phase := addPhase(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := readPolicy(cmd, args[0], phase.Phase)
		if err != nil {
			return err
		}
		if p.Mode == policy.Denylist {
			cmd.PrintErrln("sluice: note: a denylist is not containment, and the notice cannot say so; see sluice check")
		}
		notice := policy.Notice(p)
		switch {
		case *asJSON:
			return printJSON(cmd, noticed{p.Mode, notice})
		case notice != "":
			cmd.Println(notice)
		}
		return nil
	}
	return cmd
}
