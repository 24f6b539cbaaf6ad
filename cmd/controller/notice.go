package main

import (
	"strings"

	"github.com/spf13/cobra"

	"sluice/policy"
)

// noticed is the --json output of notice.
type noticed struct {
	Mode   policy.Mode `json:"network_mode"`
	Notice string      `json:"notice"`
	// With --append: the input with the notice in it, and where that was put.
	Input    *string  `json:"input,omitempty"`
	Surfaces []string `json:"surfaces,omitempty"`
}

func newNotice(asJSON *bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notice FILE",
		Short: "Print what an agent is told about its network policy",
		Long: `Notice prints the statement that AgentCompass puts behind an agent's instructions, byte for byte, and a
newline. A public policy has none, so nothing is printed. FILE may be "-" for stdin.

With --append it prints instead that input ("-" is stdin) as the agent gets it: with the statement behind the last
instruction of the user, once. --as says what the input is: a rollout (a JSON object with prompt or messages), a prompt
(a text), a json-prompt (a text that is the JSON of messages), or messages (a JSON list, whose contents are texts or lists
of parts, pictures too). The file stays as it is: artifacts are collected and judged by the original.`,
		Example: "  sluice notice policy.yaml --phase run --append prompt.txt --as prompt",
		Args:    cobra.ExactArgs(1),
	}
	phase := addPhase(cmd)
	input := cmd.Flags().String("append", "", "print the agent's input in `FILE` with the statement behind it")
	form := rolloutForm
	cmd.Flags().Var(&form, "as", "what the input is: "+joinWords(inputForms))
	var harness string
	addHarnessParams(cmd, &harness)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("as") && *input == "" {
			return errFormAlone
		}
		told, err := wantsNotice(cmd, harness)
		if err != nil {
			return err
		}
		p, err := readPolicy(cmd, args[0], phase.Phase)
		if err != nil {
			return err
		}
		if p.Mode == policy.Denylist {
			cmd.PrintErrln("sluice: note: a denylist is not containment, and the notice cannot say so; see sluice check")
		}
		notice := ""
		if told {
			notice = policy.Notice(p)
		}
		if *input != "" {
			copied, surfaces, err := appendNotice(cmd, *input, form, notice)
			if err != nil {
				return failed(err)
			}
			if *asJSON {
				return printJSON(cmd, noticed{p.Mode, notice, &copied, surfaces})
			}
			cmd.Print(strings.TrimSuffix(copied, "\n") + "\n")
			return nil
		}
		switch {
		case *asJSON:
			return printJSON(cmd, noticed{Mode: p.Mode, Notice: notice})
		case notice != "":
			cmd.Println(notice)
		}
		return nil
	}
	return cmd
}
