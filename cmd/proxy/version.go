package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, and what it was built with",
		Example: "  sluice-proxy version --json",
		Args:    cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b := readBuild()
		if *asJSON {
			return printJSON(cmd, b)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "sluice-proxy %s %s %s\n", b.Version, b.Go, b.Platform)
		return failed(err)
	}
	return cmd
}

// built says what this binary was made of, and is the --json output of version.
type built struct {
	Version  string `json:"version"` // with the commit, as the Go linker writes it
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readBuild() built {
	b := built{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	return b
}
