// Command lab starts the closed network of the end-to-end tests for somebody to play in:
//
//	go run ./e2e/lab
//
// It needs root and what scripts/setup installs, prints what to put into the environment, and stays until Ctrl-C,
// which removes everything.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"sluice/e2e/lab/closed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	l, err := closed.Start(ctx)
	if err != nil {
		return err
	}
	fmt.Printf(`The lab is running. In another shell:

    export DOCKER_HOST=%[1]s
    make images                            # the sidecar's image, sluice-proxy:dev
    curl -s --unix-socket %[2]s http://lab/v1/counts

Its internet has every name of e2e/lab/internet/test.zone. Ctrl-C removes everything.
`, l.DockerHost(), l.ControlSocket())
	<-ctx.Done()
	return l.Close()
}
