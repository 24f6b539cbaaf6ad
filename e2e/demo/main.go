// Command demo shows the sidecar's job in one screen: a container goes through three phases, each with a network
// policy of its own, and what it tries is allowed or refused accordingly.
//
// "make demo" builds and runs it. It uses the Docker engine that DOCKER_HOST names or that runs on the machine; where
// there is none, it starts one in a network namespace (see the lab). Every address that is dialled belongs to a
// container that the demo made itself. All of it is removed at the end, and after Ctrl-C.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"sluice/e2e/lab/closed"
)

// limit bounds the demo as a whole; it takes some ten seconds.
const limit = 3 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if _, left := errors.AsType[*leftError](err); ctx.Err() != nil && !left {
		fmt.Fprintln(os.Stderr, "demo: interrupted; everything it made is removed")
		os.Exit(130)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// leftError says what could not be removed.
type leftError struct{ error }

func left(err error) error {
	if err == nil {
		return nil
	}
	return &leftError{fmt.Errorf("clean up: %w", err)}
}

// run is the demo, or one of the two programs that it runs in containers.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	switch {
	case len(args) == 0:
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("the demo took too long"))
		defer cancel()
		return show(ctx, stdout)
	case args[0] == "origin":
		return serveOrigin(ctx)
	case args[0] == "wait":
		<-ctx.Done()
		return nil
	case args[0] == "try" && len(args) == 3:
		return tryFromWorkload(ctx, args[1], args[2], stdout)
	}
	return errors.New("usage: demo")
}

func show(ctx context.Context, stdout io.Writer) (err error) {
	host, where, closeLab, err := engine(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, left(closeLab())) }()
	s, err := setStage(ctx, host)
	defer func() { err = errors.Join(err, left(s.clear())) }()
	if err != nil {
		return err
	}
	return play(ctx, s, where, stdout)
}

// engine returns the DOCKER_HOST of an engine that answers, one of our own if there is no other, and what ends it.
func engine(ctx context.Context) (host, where string, end func() error, err error) {
	if _, err := (docker{}).run(ctx, "version", "--format", "{{.Server.Version}}"); err == nil {
		return os.Getenv("DOCKER_HOST"), "the engine that runs here", func() error { return nil }, nil
	} else if ctx.Err() != nil {
		return "", "", nil, err
	}
	if os.Getenv("DOCKER_HOST") != "" {
		return "", "", nil, fmt.Errorf("no engine answers at DOCKER_HOST=%s: correct or unset it", os.Getenv("DOCKER_HOST"))
	}
	lab, err := closed.Start(ctx)
	if err != nil {
		return "", "", nil, fmt.Errorf("no Docker engine runs here, and none can be started: %w", err)
	}
	return lab.DockerHost(), "an engine started for this demo, in a network namespace of its own", lab.Close, nil
}

// sidecarBinary is where "make demo" puts it: beside this program.
func sidecarBinary() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(self), "sluice-proxy"), nil
}
