package main

import (
	"strings"

	"github.com/spf13/cobra"

	"sluice/controller/api"
)

func newNetwork(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "network",
		Short: "Make, list and remove managed networks",
		Long: `On a managed network a container is silent until its policy is in force. Its policy comes from its labels
(sluice.policy, sluice.phase), or from the network's.`,
		Example: "  sluice network create tasks --policy policy.yaml",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(newNetworkCreate(g), newNetworkList(g), newNetworkRemove(g))
	return cmd
}

func newNetworkCreate(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "create NAME",
		Short:   "Make a managed network",
		Example: "  sluice network create tasks --internal",
		Args:    cobra.ExactArgs(1),
	}
	internal := cmd.Flags().Bool("internal", false, "no way out but through the proxy")
	ipv6 := cmd.Flags().Bool("ipv6", false, "with IPv6")
	file := cmd.Flags().String("policy", "", "the policy FILE of containers that name none; without, they stay silent")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		spec := api.NewNetwork{Name: args[0], Internal: *internal, IPv6: *ipv6}
		if *file != "" {
			var err error
			if spec.Policy, err = readPolicies(cmd, *file); err != nil {
				return err
			}
		}
		n, err := g.client().CreateNetwork(cmd.Context(), spec)
		if err != nil {
			return failed(err)
		}
		if g.json {
			return printJSON(cmd, n)
		}
		cmd.Printf("%s: made, on %s with %s\n", n.Name, n.Bridge, strings.Join(n.Subnets, " and "))
		if n.Warning != "" {
			cmd.PrintErrf("sluice: warning: %s\n", n.Warning)
		}
		return nil
	}
	return cmd
}

func newNetworkList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List the managed networks",
		Example: "  sluice network ls",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := g.client().Networks(cmd.Context())
			if err != nil {
				return failed(err)
			}
			if g.json {
				return printJSON(cmd, all)
			}
			rows := [][]string{{"NETWORK", "BRIDGE", "INTERNAL", "SUBNETS"}}
			for _, n := range all {
				yes := "no"
				if n.Internal {
					yes = "yes"
				}
				rows = append(rows, []string{short(n.Name, 25), n.Bridge, yes, strings.Join(n.Subnets, " ")})
			}
			return printTable(cmd, rows)
		},
	}
}

func newNetworkRemove(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rm NAME",
		Short:   "Remove a managed network",
		Example: "  sluice network rm tasks",
		Args:    cobra.ExactArgs(1),
	}
	force := cmd.Flags().Bool("force", false, "take containers off it first")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := g.client().RemoveNetwork(cmd.Context(), args[0], *force); err != nil {
			return failed(err)
		}
		if g.json {
			return printJSON(cmd, struct{}{})
		}
		cmd.Printf("%s: removed\n", args[0])
		return nil
	}
	return cmd
}
