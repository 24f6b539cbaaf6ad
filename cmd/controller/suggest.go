package main

import (
	"github.com/spf13/cobra"

	"sluice/lifecycle/evidence"
	"sluice/policy"
)

// suggested is the --json output of suggest.
type suggested struct {
	Policy  policy.Policy     `json:"policy"`
	Changes []evidence.Change `json:"changes,omitempty"` // with --against
	Notes   []string          `json:"notes,omitempty"`
}

func newSuggest(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "suggest AUDIT",
		Short: "Make the smallest policy of what was tried",
		Long: `Suggest reads an audit or the result of a task ("-" is stdin) and prints the smallest allowlist, with ports, for what was
allowed in a phase; with --refused also for what was refused. Names become wildcards only where --wildcard says so.
With --against it says what would change: what is missing in that policy (+), and what nothing used (-).

What was tried once may not be all that is needed, and not all that was tried should be allowed: read it before use.`,
		Example: "  sluice suggest audit.jsonl --phase run --against policy.yaml",
		Args:    cobra.ExactArgs(1),
	}
	phase := addPhase(cmd)
	var o evidence.SuggestOptions
	cmd.Flags().BoolVar(&o.Refused, "refused", false, "take what was refused too")
	cmd.Flags().StringSliceVar(&o.Wildcards, "wildcard", nil, "make *.`DOMAIN` of all names under it; give it again for more")
	against := cmd.Flags().String("against", "", "compare with the policy in `FILE`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := readAudit(cmd, args[0])
		if err != nil {
			return failed(err)
		}
		o.Phase = phase.String()
		s, err := evidence.Suggest(r.Phases, o)
		if err != nil {
			return err
		}
		out := suggested{Policy: s.Policy, Notes: s.Notes}
		if *against != "" {
			present, err := readPolicy(cmd, *against, phase.Phase)
			if err != nil {
				return err
			}
			if out.Changes, err = s.Compare(present); err != nil {
				return failed(err)
			}
		}
		if g.json {
			return printJSON(cmd, out)
		}
		for _, n := range out.Notes {
			cmd.PrintErrf("sluice: note: %s\n", clean(n))
		}
		if *against == "" {
			return printJSON(cmd, out.Policy)
		}
		for _, c := range out.Changes {
			cmd.Printf("%s %s\n", map[string]string{"add": "+", "keep": " ", "unused": "-"}[c.What], c.Target)
		}
		return nil
	}
	return cmd
}
