// Command sluice-proxy is the sidecar: an explicit proxy and DNS filter under the policy of one container or of many.
// This is its command line; what it does is in the packages that it wires together.
//
// Under the name python it stands in for the proxy that AgentCompass starts (see package agentcompass).
//
// Wanted output goes to stdout, all else to stderr. The exit code is 0 when the work is done, 1 when it was refused or
// failed, 2 for wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sluice/proxy/agentcompass"
)

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	log.SetOutput(io.Discard) // net/http prints what servers send unasked there: bytes that are nobody's to log
	ctx, hurry := asked()
	os.Exit(run(ctx, os.Args, system{os.Environ(), os.Stdin, os.Stdout, os.Stderr, hurry.Done()}))
}

// asked returns contexts that end when the program is asked to end, by SIGINT or SIGTERM, and when it is asked a second
// time. A third signal is not waited for.
func asked() (once, twice context.Context) {
	once, end := context.WithCancel(context.Background())
	twice, hurry := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		end()
		<-signals
		signal.Stop(signals)
		hurry()
	}()
	return once, twice
}

// system is what the program sees of the world around it.
type system struct {
	environ        []string // NAME=value
	stdin          io.Reader
	stdout, stderr io.Writer
	hurry          <-chan struct{} // closed when the program shall end without waiting for anybody; nil is never
}

// env returns a variable, "" if it is not set. Of repeated ones the last counts.
func (s system) env(name string) string {
	for _, one := range slices.Backward(s.environ) {
		if value, ok := strings.CutPrefix(one, name+"="); ok {
			return value
		}
	}
	return ""
}

// run executes one command line, the program's name included, and returns the exit code.
func run(ctx context.Context, argv []string, sys system) int {
	name, args := argv[0], argv[1:]
	// The image's entry point is this program, whatever name the command after it has.
	if len(args) > 0 && !agentcompass.IsCommand(name) && agentcompass.IsCommand(args[0]) {
		name, args = args[0], args[1:]
	}
	if agentcompass.IsCommand(name) {
		return exitCode(sys, name, python(ctx, args, sys))
	}
	root := newRoot(sys)
	switch {
	case len(args) == 0 && sys.env("SLUICE_POLICY") == "" && sys.env("SLUICE_CONTROL") == "":
		return exitCode(sys, root.Name(), errors.New("nothing to serve: give --policy FILE (see serve --help), or a command"))
	case len(args) == 0, strings.HasPrefix(args[0], "-") && args[0] != "-h" && args[0] != "--help":
		args = append([]string{"serve"}, args...)
	}
	root.SetArgs(args)
	root.SetIn(sys.stdin)
	root.SetOut(sys.stdout)
	root.SetErr(sys.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return exitCode(sys, cmd.CommandPath(), err)
}

func exitCode(sys system, command string, err error) int {
	if err == nil {
		return exitDone
	}
	if _, ok := errors.AsType[*failure](err); ok {
		fmt.Fprintf(sys.stderr, "sluice-proxy: %v\n", err)
		return exitFailed
	}
	fmt.Fprintf(sys.stderr, "sluice-proxy: %v\n", err)
	if !agentcompass.IsCommand(command) {
		fmt.Fprintf(sys.stderr, "Run '%s --help' for usage.\n", command)
	}
	return exitUsage
}

// failure is an error of the work itself. Every other error that a command returns is wrong usage.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

func failed(err error) error {
	if err == nil {
		return nil
	}
	return &failure{err}
}

func newRoot(sys system) *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice-proxy",
		Short: "Let a container out as far as its policy goes",
		Long: `Let a container out as far as its policy goes: an HTTP proxy (CONNECT and plain requests) and a DNS filter.

Flags without a command are those of serve. Every flag can be given in the environment: SLUICE_POLICY for
--policy, SLUICE_PRIVATE_ZONE for --private-zone, and so on.`,
		Args:              cobra.NoArgs,
		SilenceErrors:     true, // run prints them
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.Flags(), sys) },
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.AddCommand(newServe(sys), newCtl(sys), newHealth(), newVersion())
	return root
}
