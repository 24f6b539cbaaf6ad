// Command sluice looks after the network policies of containers. This is its command line; what it does is in the
// packages that it wires together.
//
// Wanted output goes to stdout, all else to stderr. The exit code is 0 when the work is done, 1 when it was refused or
// failed, 2 for wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/controller/api"
)

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	out := newOutput(stdout)
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(out)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if flushErr := out.Flush(); err == nil && flushErr != nil {
		err = failed(fmt.Errorf("write the output: %w", flushErr))
	}
	var failure *failure
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errReported):
		return exitFailed
	case errors.As(err, &failure):
		fmt.Fprintf(stderr, "sluice: %s\n", cleanLines(err))
		return exitFailed
	}
	fmt.Fprintf(stderr, "sluice: %s\nRun '%s --help' for usage.\n", cleanLines(err), cmd.CommandPath())
	return exitUsage
}

// failure is an error of the work itself. Every other error that a command returns is wrong usage.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

func failed(err error) error { return &failure{err} }

// errReported ends a command whose output says already what is wrong.
var errReported = failed(errors.New("reported"))

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "sluice",
		Short:         "Give every container its own outbound network policy",
		Args:          cobra.NoArgs,
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	g := &globals{}
	root.PersistentFlags().BoolVar(&g.json, "json", false, "print JSON, of which fields are added but never changed")
	root.PersistentFlags().StringVar(&g.socket, "socket", api.DefaultSocket, "the controller's socket, `PATH`")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.Flags()) }
	root.AddCommand(newRun(g), newAttach(g), newDetach(g), newPhase(g), newSet(g), newList(g), newStatus(g), newExplain(g), newLogs(g),
		newCheck(&g.json), newNotice(&g.json), newPlan(g), newApply(g), newTask(g), newVerify(g), newReport(g), newAnalyze(g), newSuggest(g), newImages(g), newImport(), newNetwork(g), newServe(g), newCompletion(), newVersion(&g.json))
	if err := complete(g, root); err != nil {
		panic(err) // two completions for one flag
	}
	return root
}

// globals are the flags of all commands.
type globals struct {
	json   bool
	socket string
}

func (g *globals) client() *api.Client { return &api.Client{Socket: g.socket} }

// fromEnvironment gives every flag that is not on the command line the value of its variable, SLUICE_SOCKET for
// instance, if that is not empty.
func fromEnvironment(flags *pflag.FlagSet) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		name := "SLUICE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value := os.Getenv(name)
		if f.Changed || value == "" || f.Name == "help" || failed != nil {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			failed = fmt.Errorf("%s in the environment: %w", name, err)
		}
	})
	return failed
}
