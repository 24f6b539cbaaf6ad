package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// fromEnvironment gives every flag that is not on the command line the value of its variable, if that is not empty.
func fromEnvironment(flags *pflag.FlagSet, sys system) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		name := variable(f.Name)
		value := sys.env(name)
		if f.Changed || value == "" || f.Name == "help" || failed != nil {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			failed = fmt.Errorf("%s in the environment: %w", name, err)
		}
	})
	return failed
}

// variable is the name of a flag in the environment.
func variable(flag string) string {
	return "SLUICE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
