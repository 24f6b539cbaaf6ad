package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"sluice/policy"
)

func newCompletion() *cobra.Command {
	scripts := map[string]func(*cobra.Command, io.Writer) error{
		"bash": func(root *cobra.Command, to io.Writer) error { return root.GenBashCompletionV2(to, true) },
		"zsh":  (*cobra.Command).GenZshCompletion,
		"fish": func(root *cobra.Command, to io.Writer) error { return root.GenFishCompletion(to, true) },
	}
	return &cobra.Command{
		Use:   "completion {bash | zsh | fish}",
		Short: "Print the script by which a shell completes this command line",
		Long: `Completion prints a script for bash, zsh or fish. A shell that has read it completes commands, flags, phases and, where
a controller answers, the names of containers.`,
		Example:   `  sluice completion fish | source`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := scripts[args[0]](cmd.Root(), cmd.OutOrStdout()); err != nil {
				return failed(err)
			}
			return nil
		},
	}
}

// completionLimit is how long a shell waits for the controller at most when somebody presses Tab.
const completionLimit = 2 * time.Second

// candidates says what an argument may be, and whether files are offered beside that.
type candidates func(cmd *cobra.Command, g *globals) ([]string, cobra.ShellCompDirective)

// arguments are those of commands that take something other than files.
var arguments = map[string][]candidates{
	"detach":  {containers},
	"explain": {containers},
	"logs":    {containers},
	"phase":   {containers, phases},
	"report":  {containersAndFiles},
	"set":     {containers, files},
	"status":  {containers},
	"verify":  {containers},
}

// complete lets shells complete the arguments of all commands, by the scripts of "sluice completion".
func complete(g *globals, root *cobra.Command) error {
	for _, cmd := range root.Commands() {
		if of := arguments[cmd.Name()]; of != nil {
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				if len(args) >= len(of) {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return of[len(args)](cmd, g)
			}
		}
		if cmd.Flags().Lookup("phase") == nil {
			continue
		}
		err := cmd.RegisterFlagCompletionFunc("phase", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return phases(cmd, g)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func phases(*cobra.Command, *globals) (all []string, _ cobra.ShellCompDirective) {
	for _, p := range []policy.Phase{policy.Baseline, policy.Run, policy.Evaluation} {
		all = append(all, p.String())
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

func files(*cobra.Command, *globals) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// containers are those that are under a policy, none if no controller says so in time.
func containers(cmd *cobra.Command, g *globals) (all []string, _ cobra.ShellCompDirective) {
	if err := fromEnvironment(cmd.Flags()); err != nil { // no hook runs before a completion
		return nil, cobra.ShellCompDirectiveError
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
	defer cancel()
	list, err := g.client().List(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, s := range list {
		all = append(all, cobra.CompletionWithDesc(s.Name, string(s.State)+", "+s.Phase))
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

func containersAndFiles(cmd *cobra.Command, g *globals) ([]string, cobra.ShellCompDirective) {
	all, _ := containers(cmd, g)
	return all, cobra.ShellCompDirectiveDefault
}
