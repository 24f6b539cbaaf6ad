package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sluice/policy"
	"sluice/policy/convert"
)

func newImport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import FORMAT FILE",
		Short: "Make a policy of another tool's settings",
		Long: `Import prints the policy that says the same as a file of another tool ("-" is stdin):

  harbor   task.toml of Harbor and Terminal-Bench 2: a policy for each phase
  e2b      allow_out and deny_out of an E2B sandbox, JSON
  inspect  allowDomains and allowCIDR of Inspect's Helm values, YAML
  squid    a list of dstdomain entries, or one acl of a squid.conf

What a policy cannot say exactly is refused, and nothing is widened without --accept-wider. Differences are told on
stderr.`,
		Example: "  sluice import harbor task.toml >policy.json",
		Args:    cobra.ExactArgs(2),
	}
	var o convert.Options
	cmd.Flags().BoolVar(&o.Deny, "deny", false, "squid: the list is of what is denied")
	cmd.Flags().BoolVar(&o.Wider, "accept-wider", false, "accept a policy that allows more, where that is told")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(convert.Formats(), args[0]) {
			return fmt.Errorf("%q is not a known format: write %s", args[0], strings.Join(convert.Formats(), ", "))
		}
		data, err := readAll(cmd, args[1], policy.MaxYAMLBytes)
		if err != nil {
			return failed(err)
		}
		r, err := convert.Convert(args[0], data, o)
		if err != nil {
			return failed(fmt.Errorf("%s: %w", display(args[1]), err))
		}
		document, err := r.Document()
		if err != nil {
			return failed(err)
		}
		for _, n := range r.Notes {
			cmd.PrintErrf("sluice: note: %s\n", clean(n))
		}
		cmd.Println(string(document))
		return nil
	}
	return cmd
}
