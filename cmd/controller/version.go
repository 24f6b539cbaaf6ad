package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// built says what this binary was made of, and is the --json output of version.
type built struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion(asJSON *bool) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version, and what it was built with",
		Example: "  sluice version --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := readBuild()
			if *asJSON {
				return printJSON(cmd, b)
			}
			commit := b.Commit
			if commit == "" {
				commit = "unknown commit"
			}
			if b.Modified {
				commit += ", modified"
			}
			cmd.Printf("sluice %s (%s) %s %s\n", b.Version, commit, b.Go, b.Platform)
			return nil
		},
	}
}

// readBuild reads what the Go linker recorded.
func readBuild() built {
	b := built{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}
