package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sluice/controller/api"
)

func newVerify(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify CONTAINER",
		Short: "Prove by probes from inside that a container's policy holds",
		Long: `Verify sends packets from inside of a container's network that its policy refuses: foreign DNS, bare addresses by TCP,
UDP and ICMP, QUIC, cloud metadata, ports of the controller, raw frames, forged marks and sources. A probe passes if it
was refused and if a counter of Sluice's rules, or a decision of the proxy, shows who has done it. The exit code is 1 if
any does not.

Nothing of it leaves the host while the policy holds. If it does not, packets go to addresses and names that are reserved
for documentation, and to the metadata address. Only what --reach names is connected to.`,
		Example: "  sluice verify web --reach example.com:443",
		Args:    cobra.ExactArgs(1),
	}
	var v api.Verify
	cmd.Flags().StringSliceVar(&v.Reach, "reach", nil, "connect to `HOST:PORT` too, which has to work; give it again for more")
	cmd.Flags().BoolVar(&v.Quarantine, "quarantine", false, "refuse everything if a probe does not pass")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		got, err := g.client().Verify(cmd.Context(), args[0], v)
		if err != nil {
			return failed(err)
		}
		if g.json {
			err = printJSON(cmd, got)
		} else {
			err = printVerification(cmd, &got)
		}
		if err == nil && !got.OK {
			return errReported
		}
		return err
	}
	return cmd
}

// printVerification prints a table of at most 80 columns.
func printVerification(cmd *cobra.Command, v *api.Verification) error {
	rows := [][]string{{"probe", "target", "result", "because"}}
	for _, p := range v.Probes {
		because := p.Got
		switch {
		case p.Verdict == api.Skipped:
			because = p.Detail
		case len(p.Proof) > 0:
			because += ": " + strings.Join(p.Proof, ", ")
		case p.Verdict == api.Unproven:
			because += ", but not by our rules"
		case p.Detail != "" && p.Verdict != api.Passed:
			because += ": " + p.Detail
		}
		rows = append(rows, []string{p.Name, short(clean(p.Target), 22), string(p.Verdict), short(clean(because), 29)})
	}
	if err := printTable(cmd, rows); err != nil {
		return err
	}
	cmd.Printf("%s, phase %s (%s): %s\n", v.Container, v.Phase, v.Mode, verified(v))
	return nil
}

// verified says in a few words what came out.
func verified(v *api.Verification) string {
	counts := map[api.Verdict]int{}
	for _, p := range v.Probes {
		counts[p.Verdict]++
	}
	bad := len(v.Probes) - counts[api.Passed] - counts[api.Skipped]
	if bad > 0 {
		return fmt.Sprintf("DOES NOT HOLD: %s of %d", count(bad, "probe"), len(v.Probes)-counts[api.Skipped])
	}
	return fmt.Sprintf("holds: %s passed, %d do not apply", count(counts[api.Passed], "probe"), counts[api.Skipped])
}
