package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"sluice/dockernet/engine"
)

// network is one managed network, and a line of --json output.
type network struct {
	Name     string   `json:"name"`
	ID       string   `json:"id"`
	Bridge   string   `json:"bridge"`
	Internal bool     `json:"internal"`
	Subnets  []string `json:"subnets"`
}

func describeNetwork(n engine.Network) network {
	v := network{Name: n.Name, ID: n.ID, Bridge: n.Bridge, Internal: n.Internal}
	for _, s := range n.Subnets {
		v.Subnets = append(v.Subnets, s.String())
	}
	return v
}

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
		spec := engine.NetworkSpec{Name: args[0], Internal: *internal, IPv6: *ipv6}
		if *file != "" {
			text, err := readPolicies(cmd, *file)
			if err != nil {
				return err
			}
			spec.Policy = string(text)
		}
		var err error
		if spec.Taken, err = routes(); err != nil {
			return failed(err)
		}
		return withEngine(func(c *engine.Client) error {
			n, err := c.CreateNetwork(cmd.Context(), spec)
			if err != nil {
				return err
			}
			if g.json {
				return printJSON(cmd, describeNetwork(n))
			}
			cmd.Printf("%s: made, on %s with %s\n", n.Name, n.Bridge, strings.Join(describeNetwork(n).Subnets, " and "))
			return nil
		})
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
			return withEngine(func(c *engine.Client) error {
				all, err := c.ManagedNetworks(cmd.Context())
				if err != nil {
					return err
				}
				list := []network{}
				rows := [][]string{{"NETWORK", "BRIDGE", "INTERNAL", "SUBNETS"}}
				for _, n := range all {
					v := describeNetwork(n)
					list = append(list, v)
					yes := "no"
					if v.Internal {
						yes = "yes"
					}
					rows = append(rows, []string{short(v.Name, 30), v.Bridge, yes, strings.Join(v.Subnets, " ")})
				}
				if g.json {
					return printJSON(cmd, list)
				}
				return printTable(cmd, rows)
			})
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
		return withEngine(func(c *engine.Client) error {
			if err := c.RemoveNetwork(cmd.Context(), args[0], *force); err != nil {
				return err
			}
			if g.json {
				return printJSON(cmd, struct{}{})
			}
			cmd.Printf("%s: removed\n", args[0])
			return nil
		})
	}
	return cmd
}

// withEngine calls f with the engine that DOCKER_HOST names.
func withEngine(f func(*engine.Client) error) error {
	c, err := engine.Dial("")
	if err != nil {
		return failed(err)
	}
	if err := errors.Join(f(c), c.Close()); err != nil {
		return failed(err)
	}
	return nil
}
