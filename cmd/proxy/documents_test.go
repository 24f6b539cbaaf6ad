package main

import (
	"slices"
	"strings"
	"testing"

	"sluice/docs/shown"
)

// Documents show commands and settings of sluice-proxy as they are.
func TestDocumentsShowCommandsThatExist(t *testing.T) {
	shown.CheckCommands(t, "../..", "sluice-proxy", parse)
	shown.CheckSettings(t, "../..", "Settings of the proxy", newServe(system{}).Flags())
	shown.CheckCommandTable(t, "../..", newRoot(system{}))
}

// parse does with a command line what comes before the work.
func parse(args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") && !slices.Contains([]string{"-h", "--help"}, args[0]) {
		args = append([]string{"serve"}, args...)
	}
	cmd, rest, err := newRoot(system{}).Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

func TestParseSeesWhatIsWrong(t *testing.T) {
	for args, ok := range map[string]bool{
		"--policy p --listen :8080": true, "ctl phase run": true, "health --timeout 1s": true,
		"ctl fase run": false, "ctl phase": false, "serve --polcy p": false, "serve p": false, "bogus": false,
	} {
		if err := parse(strings.Fields(args)); (err == nil) != ok {
			t.Errorf("%s: %v", args, err)
		}
	}
}
