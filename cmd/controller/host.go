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
	Severity string `json:"severity"` // "error", "warning", or "info" for what is no problem
	What     string `json:"what"`
	Repair   string `json:"repair,omitempty"`
}

// checkHost prints which engine this host has, and what stands in the way.
func checkHost(cmd *cobra.Command, asJSON bool) error {
	var is string
	var found []engine.Problem
	if err := withEngine(func(c *engine.Client) error {
		found = c.Preflight(cmd.Context())
		if info, err := c.Info(cmd.Context()); err == nil { // or it is among the problems
			is = info.String()
		}
		return nil
	}); err != nil {
		return err
	}
	return printProblems(cmd, is, found, asJSON)
}

func printProblems(cmd *cobra.Command, engineIs string, found []engine.Problem, asJSON bool) error {
	list := []problem{}
	if engineIs != "" {
		list = append(list, problem{Check: "engine", Severity: "info", What: engineIs})
	}
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
		cmd.Printf("%s: %s: %s\n", p.Severity, p.Check, p.What)
		if p.Repair != "" {
			cmd.Printf("  %s\n", p.Repair)
		}
	}
	switch {
	case result != nil:
	case len(found) == 0:
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
