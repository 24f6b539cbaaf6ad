package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sluice/controller/api"
	"sluice/policy"
)

func newAttach(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "attach CONTAINER --policy FILE",
		Short: "Put a running container under a policy",
		Long: `Attach puts a running container under the policies of a file: one policy for all phases, or one for each. When it
returns, the policy of the first phase is in force, and what was open and is refused by it has been cut.

The container may be on any bridge network. It keeps its policy until it is removed or detached; if it is restarted by
others, it runs a moment without (sluice status says how long). sluice run has no such moment.`,
		Example: "  sluice attach web --policy policy.yaml --phase run",
		Args:    cobra.ExactArgs(1),
	}
	file := cmd.Flags().String("policy", "", `the policy FILE, "-" for stdin (needed)`)
	if err := cmd.MarkFlagRequired("policy"); err != nil {
		panic(err) // the flag does not exist
	}
	phase := addFirstPhase(cmd)
	weak := cmd.Flags().Bool("allow-weak", false, "accept a container that may get round its policy, as far as that is possible")
	verify := cmd.Flags().Bool("verify", false, "prove by probes that the policy holds, as sluice verify, or refuse everything")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		document, err := readPolicies(cmd, *file)
		if err != nil {
			return err
		}
		s, err := g.client().Attach(cmd.Context(), api.Attach{Container: args[0], Policy: document, Phase: phase.String(), Options: api.Options{AllowWeak: *weak, Verify: *verify}})
		if err != nil {
			return failed(err)
		}
		if g.json {
			return printJSON(cmd, s)
		}
		what := fmt.Sprintf("attached in %.1f ms", s.Milliseconds)
		if s.Unchanged {
			what = "attached already"
		}
		cmd.Printf("%s: %s, phase %s (%s)\n", s.Name, what, s.Phase, modeAndTargets(s))
		if s.Verification != nil {
			cmd.Printf("%s: policy %s\n", s.Name, verified(s.Verification))
		}
		for _, w := range s.Weak {
			cmd.PrintErrf("sluice: warning: %s\n", w)
		}
		return nil
	}
	return cmd
}

// modeAndTargets says what kind of policy is in force.
func modeAndTargets(s api.Status) string {
	if s.Targets == 0 {
		return s.Mode
	}
	return s.Mode + ", " + count(s.Targets, "target")
}

// readPolicies reads the policies of all phases, so that what is wrong is said here.
func readPolicies(cmd *cobra.Command, name string) ([]byte, error) {
	document, err := readDocument(cmd, name)
	if err != nil {
		if errs, ok := errors.AsType[*policy.Errors](err); ok {
			err = fmt.Errorf("%s is refused:\n%w", display(name), errs)
		}
		return nil, failed(err)
	}
	text, err := document.All().MarshalJSON()
	if err != nil {
		return nil, failed(err)
	}
	return text, nil
}

// addFirstPhase adds --phase to a command that begins with one.
func addFirstPhase(cmd *cobra.Command) *phaseFlag {
	phase := &phaseFlag{policy.Baseline}
	cmd.Flags().Var(phase, "phase", "begin with baseline, run or evaluation")
	return phase
}

func newDetach(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "detach CONTAINER",
		Short:   "Take a container's policy away",
		Long:    "Detach takes a container's policy away: nothing of it is left, and the container reaches what its networks let it.",
		Example: "  sluice detach web",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := g.client().Detach(cmd.Context(), args[0]); err != nil {
				return failed(err)
			}
			if g.json {
				return printJSON(cmd, struct{}{})
			}
			cmd.Printf("%s: detached\n", args[0])
			return nil
		},
	}
}
