package main

import (
	"cmp"
	"errors"

	"github.com/spf13/cobra"

	"sluice/dockernet/engine"
)

// problem is one line of check --host --json.
type problem struct {
	Check    string `json:"check"`
	Severity string `json:"severity"` // "error" or "warning"
	What     string `json:"what"`
	Repair   string `json:"repair"`
}

// checkHost prints what stands in the way on this host.
func checkHost(cmd *cobra.Command, asJSON bool) error {
	var found []engine.Problem
	if err := withEngine(func(c *engine.Client) error {
		found = c.Preflight(cmd.Context())
		return nil
	}); err != nil {
		return err
	}
	return printProblems(cmd, found, asJSON)
}

func printProblems(cmd *cobra.Command, found []engine.Problem, asJSON bool) error {
	list := []problem{}
	var result error
	for _, f := range found {
		p := problem{Check: f.Check, Severity: "warning", What: f.What, Repair: f.Repair}
		if !f.Warning {
			p.Severity, result = "error", errReported
		}
		list = append(list, p)
	}
	if asJSON {
		return cmp.Or(printJSON(cmd, list), result)
	}
	for _, p := range list {
		cmd.Printf("%s: %s: %s\n  %s\n", p.Severity, p.Check, p.What, p.Repair)
	}
	switch {
	case result != nil:
	case len(list) == 0:
		cmd.Println("this host is ready")
	default:
		cmd.Println("this host is ready, but for the warnings")
	}
	return result
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
