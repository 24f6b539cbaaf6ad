// Command sluice-harbor is the egress sidecar of Harbor's Docker environment. Its image has it under the names that Harbor
// calls:
//
//	/opt/egress-sidecar/entrypoint.sh    keep the container's network under a policy, until SIGTERM
//	network-policy COMMAND               have the sidecar show or change what is in force; without a command it lists them
//	test -f FILE                         say by the exit code whether a file is there, for the health check
//
// The exit code is 0 when the work is done, 1 when it was refused or failed, 2 for wrong usage. The image is loaded by
// "sluice images harbor".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"sluice/cmd/internal/limits"
	"sluice/cmd/internal/steadylog"
	"sluice/harbor"
	"sluice/proxy/audit"
)

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// readyFile is what Harbor's health check looks for.
const readyFile = "/tmp/harbor-docker-egress-control-sidecar.ready"

// socketPath is where network-policy asks, in the container's own files.
const socketPath = "/run/sluice-harbor.sock"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, system{argv: os.Args, env: os.Getenv, ready: readyFile, socket: socketPath, stdout: os.Stdout, stderr: os.Stderr})
	stop()
	os.Exit(code)
}

// system is what surrounds the program.
type system struct {
	argv           []string
	env            func(string) string
	ready, socket  string
	stdout, stderr io.Writer
}

func run(ctx context.Context, sys system) int {
	name, args := "", []string(nil)
	if len(sys.argv) > 0 {
		name, args = filepath.Base(sys.argv[0]), sys.argv[1:]
	}
	switch name {
	case "network-policy":
		a, err := harbor.Ask(ctx, sys.socket, args)
		if err != nil {
			a = harbor.Answer{Code: exitFailed, Stderr: "network-policy: " + err.Error() + "\n"}
		}
		io.WriteString(sys.stdout, a.Stdout)
		io.WriteString(sys.stderr, a.Stderr)
		return a.Code
	case "test":
		return test(args, sys.stderr)
	}
	if len(args) == 1 && args[0] == "version" {
		fmt.Fprintln(sys.stdout, "sluice-harbor "+version())
		return exitDone
	}
	if len(args) > 0 {
		fmt.Fprintf(sys.stderr, "sluice-harbor: it takes nothing, or version: what to do stands in %s and %s\n", harbor.ModeVariable, harbor.HostsVariable)
		return exitUsage
	}
	if err := serve(ctx, sys); err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(sys.stderr, "sluice-harbor: %s\n", strings.TrimRight(line, "\n"))
		}
		return exitFailed
	}
	return exitDone
}

// test is as much of test(1) as a health check takes.
func test(args []string, stderr io.Writer) int {
	if len(args) != 2 || args[0] != "-f" {
		fmt.Fprintln(stderr, "test: this is sluice-harbor, which has test -f FILE alone")
		return exitUsage
	}
	if info, err := os.Stat(args[1]); err != nil || !info.Mode().IsRegular() {
		return exitFailed
	}
	return exitDone
}

// memoryBytes are what the sidecar may use where its container has no limit, as Harbor gives it none: what a task does must
// not make it take the host's. The proxy takes no more clients, and keeps no more for them, than that is enough for.
const memoryBytes = 1 << 30

func serve(ctx context.Context, sys system) (err error) {
	limits.Apply("/", memoryBytes)
	log, end := steadylog.New(sys.stderr)
	defer end()
	records := audit.New(sys.stdout)
	defer func() { err = errors.Join(err, records.Close()) }()
	return harbor.Run(ctx, harbor.Config{
		Mode: sys.env(harbor.ModeVariable), Hosts: sys.env(harbor.HostsVariable),
		Ready: sys.ready, Socket: sys.socket, ResolvConf: "/etc/resolv.conf",
		Version: version(), Log: log, Audit: records,
	})
}

// version is what the Go linker recorded.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
