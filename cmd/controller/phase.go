package main

import (
	"github.com/spf13/cobra"

	"sluice/controller/api"
	"sluice/policy"
)

func newPhase(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "phase CONTAINER PHASE",
		Short: "Switch a container to another phase",
		Long: `Phase puts the policy of a phase in force: baseline, run or evaluation. When it returns, nothing passes any more that
this policy refuses, and what both policies allow goes on untouched. If it fails with "quarantined", nothing passes at
all until a switch succeeds; after any other failure everything is as it was.`,
		Example: "  sluice phase web run",
		Args:    cobra.ExactArgs(2),
	}
	generation := addGeneration(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		phase, err := policy.ParsePhase(args[1])
		if err != nil {
			return err
		}
		r, err := g.client().Phase(cmd.Context(), args[0], phase.String(), *generation)
		if err != nil {
			return failed(err)
		}
		return printReceipt(cmd, g, r)
	}
	return cmd
}

func newSet(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set CONTAINER FILE",
		Short: "Replace a container's policies",
		Long: `Set replaces the policies of all phases by those of a file ("-" is stdin); the phase stays. When it returns, nothing
passes any more that the new policy of that phase refuses. If the file is wrong, nothing has changed.`,
		Example: "  sluice set web policy.yaml",
		Args:    cobra.ExactArgs(2),
	}
	generation := addGeneration(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		document, err := readPolicies(cmd, args[1])
		if err != nil {
			return err
		}
		r, err := g.client().Set(cmd.Context(), args[0], document, *generation)
		if err != nil {
			return failed(err)
		}
		return printReceipt(cmd, g, r)
	}
	return cmd
}

func addGeneration(cmd *cobra.Command) *uint64 {
	return cmd.Flags().Uint64("generation", 0, "refuse the change if the container's generation is not smaller (0: never)")
}

func printReceipt(cmd *cobra.Command, g *globals, r api.Receipt) error {
	switch {
	case g.json:
		return printJSON(cmd, r)
	case r.Unchanged:
		cmd.Printf("%s: phase %s was in force already (generation %d): nothing changed\n", r.Container, r.Phase, r.Generation)
	default:
		cmd.Printf("%s: phase %s is in force (generation %d): %s cut, %d kept, %d inbound open, %.1f ms\n",
			r.Container, r.Phase, r.Generation, count(r.FlowsCut, "flow"), r.FlowsKept, r.InboundOpen, r.Milliseconds)
	}
	return nil
}
