package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"sluice/proxy/agentcompass"
)

// running is where a proxy on this machine can be asked.
type running struct {
	control string // the directory of its socket; "" if it has none
	listen  string // where its clients connect
}

// findRunning finds the one proxy that runs on this machine, or in this container, from this program's file or at least
// by its name. What it was told on its command line and in its environment is known to nobody else: in a container, to no
// health check.
func findRunning(proc string) (running, error) {
	own, err := os.Stat(filepath.Join(proc, "self/exe"))
	if err != nil {
		return running{}, fmt.Errorf("looking for the running proxy: %w", err)
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return running{}, fmt.Errorf("looking for the running proxy: %w", err)
	}
	var found, perhaps []running
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		exe, hidden := os.Stat(filepath.Join(dir, "exe"))
		if hidden == nil && !os.SameFile(exe, own) {
			continue
		}
		argv, environ := readStrings(filepath.Join(dir, "cmdline")), readStrings(filepath.Join(dir, "environ"))
		if len(environ) == 0 {
			environ = os.Environ() // in a container both have the container's
		}
		r, ok := parseRunning(argv, system{environ: environ})
		switch {
		case !ok:
		case hidden == nil:
			found = append(found, r)
		case filepath.Base(argv[0]) == "sluice-proxy" || agentcompass.IsCommand(argv[0]):
			perhaps = append(perhaps, r) // another user's, or a security module keeps it from us
		}
	}
	if len(found) == 0 {
		found = perhaps
	}
	switch len(found) {
	case 0:
		return running{}, errors.New("no proxy runs here: start one, or say where it is with --control DIR or --listen ADDR")
	case 1:
		return found[0], nil
	}
	return running{}, fmt.Errorf("%d proxies run here: say which one is meant with --control DIR or --listen ADDR", len(found))
}

// readStrings reads strings that end in a zero byte each, as proc(5) has them; none if they cannot be read.
func readStrings(file string) []string {
	text, err := os.ReadFile(file)
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

// parseRunning reads a command line as run does, and reports whether it serves.
func parseRunning(argv []string, sys system) (running, bool) {
	if len(argv) == 0 {
		return running{}, false
	}
	name, args := argv[0], argv[1:]
	if len(args) > 0 && !agentcompass.IsCommand(name) && agentcompass.IsCommand(args[0]) {
		name, args = args[0], args[1:]
	}
	o := defaults()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	switch {
	case agentcompass.IsCommand(name):
		command, err := agentcompass.ParseCommand(args)
		settings, missing := agentcompass.FromEnvironment(sys.env)
		if err != nil || command.Probe != nil || missing != nil {
			return running{}, false
		}
		o.switches.add(flags)
		o.listen, args = []string{fmt.Sprintf(":%d", settings.Port)}, nil
	case len(args) == 0, args[0] == "serve", strings.HasPrefix(args[0], "-"):
		o.add(flags)
		if len(args) > 0 && args[0] == "serve" {
			args = args[1:]
		}
	default:
		return running{}, false
	}
	if flags.Parse(args) != nil || fromEnvironment(flags, sys) != nil {
		return running{}, false
	}
	r := running{control: o.control}
	if len(o.listen) > 0 {
		r.listen = o.listen[0]
	}
	return r, true
}
