package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sluice/dockernet/engine"
	"sluice/matcher"
	"sluice/policy"
)

// maxWarnings is how many warnings of a file are printed for people; --json prints them all.
const maxWarnings = 50

// checked is what check finds in one file, and its --json output.
type checked struct {
	File     string           `json:"file"`
	OK       bool             `json:"ok"`
	Policies []checkedPolicy  `json:"policies,omitempty"`
	Errors   []*policy.Error  `json:"errors,omitempty"`
	Omitted  int              `json:"errors_omitted,omitempty"`
	Warnings []policy.Warning `json:"warnings,omitempty"`
}

// checkedPolicy is one policy of a file. Phase is empty where the file holds one policy; Default says that the file
// does not name the phase.
type checkedPolicy struct {
	Phase   string        `json:"phase,omitempty"`
	Default bool          `json:"default,omitempty"`
	Mode    policy.Mode   `json:"network_mode"`
	Targets int           `json:"targets"`
	Digest  policy.Digest `json:"digest"`
}

func newCheck(asJSON *bool) *cobra.Command {
	var host, seccomp bool
	cmd := &cobra.Command{
		Use:   "check {FILE... | --host | --seccomp}",
		Short: "Say whether policy files are valid, or whether this host can enforce them",
		Long: `Check reads policy files in JSON or YAML ("-" is stdin) and prints for each of them "ok" with the mode,
the number of targets and the digest of every policy, or all that is wrong: where, what, and what to write
instead. What is legal but likely not meant is printed as a warning and changes nothing.
The exit code is 1 if any file is refused.

With --host it looks at the kernel, the privileges and the engine for all that sluice serve needs, and changes nothing.
The exit code is 1 if anything stands in the way.

With --seccomp it prints the seccomp profile that sluice run gives to containers, for others (docker run --security-opt
seccomp=FILE): Docker's own one, which also refuses sockets that no network rule sees.`,
		Example: "  sluice check policy.yaml",
		RunE: func(cmd *cobra.Command, files []string) error {
			switch {
			case host && seccomp, (host || seccomp) == (len(files) > 0):
				return errors.New("give policy files, --host or --seccomp")
			case host:
				return checkHost(cmd, *asJSON)
			case seccomp:
				cmd.Println(engine.SeccompProfile())
				return nil
			}
			var result error
			for _, name := range files {
				c, err := checkFile(cmd, name)
				if err != nil {
					cmd.PrintErrf("sluice: %v\n", err)
					result = errReported
					continue
				}
				if !c.OK {
					result = errReported
				}
				if *asJSON {
					if err := printJSON(cmd, c); err != nil {
						return err
					}
					continue
				}
				c.print(cmd)
			}
			return result
		},
	}
	cmd.Flags().BoolVar(&host, "host", false, "check this host and its engine")
	cmd.Flags().BoolVar(&seccomp, "seccomp", false, "print the seccomp profile of sluice run")
	return cmd
}

func checkFile(cmd *cobra.Command, name string) (checked, error) {
	doc, err := readDocument(cmd, name)
	if err != nil {
		errs, ok := errors.AsType[*policy.Errors](err)
		if !ok {
			return checked{}, err
		}
		return checked{File: display(name), Errors: errs.All, Omitted: errs.Omitted}, nil
	}
	c := checked{File: display(name), OK: true, Warnings: doc.Warnings(matcher.FloorPrefixes())}
	if doc.Policy != nil {
		c.Policies = []checkedPolicy{{Mode: doc.Policy.Mode, Targets: len(doc.Policy.Targets), Digest: doc.Policy.Digest()}}
		return c, nil
	}
	for i, p := range doc.Phases.Phases() {
		phase := policy.Phase(i)
		c.Policies = append(c.Policies, checkedPolicy{phase.String(), doc.Phases[phase] == nil, p.Mode, len(p.Targets), p.Digest()})
	}
	return c, nil
}

func (c checked) print(cmd *cobra.Command) {
	if !c.OK {
		cmd.Printf("%s: refused\n", c.File)
		for _, err := range c.Errors {
			cmd.Printf("  error: %v\n", err)
		}
		if c.Omitted > 0 {
			cmd.Printf("  and %d more\n", c.Omitted)
		}
		return
	}
	cmd.Printf("%s: ok\n", c.File)
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, p := range c.Policies {
		what := p.Phase
		if what == "" {
			what = "policy"
		}
		if p.Default {
			what += " (default)"
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", what, p.Mode, count(p.Targets, "target"), p.Digest)
	}
	table.Flush()
	for i, w := range c.Warnings {
		if i == maxWarnings {
			cmd.Printf("  and %d more warnings, which --json prints\n", len(c.Warnings)-maxWarnings)
			break
		}
		cmd.Printf("  warning: %v\n", w)
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
