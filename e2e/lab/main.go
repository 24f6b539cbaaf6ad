// Command lab starts the closed network of the end-to-end tests for somebody to play in:
//
//	go run ./e2e/lab
//
// It needs root and what scripts/setup installs, prints what to put into the environment, and stays until Ctrl-C,
// which removes everything. With -client the image of the tests' workload is loaded too, which takes a minute the
// first time. With -engine "$(scripts/engine)" the lab has a current engine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"sluice/e2e/lab/client"
	"sluice/e2e/lab/closed"
	"sluice/images"
)

func main() {
	withClient := flag.Bool("client", false, "load the image "+client.Tag+": a Debian with network clients, which trusts the lab's certificates")
	engine := closed.EngineFlags()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *withClient, *engine); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, withClient bool, engine closed.Engine) (err error) {
	l, err := closed.StartWith(ctx, closed.Options{Engine: engine})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if withClient {
		if err := loadClient(ctx, l); err != nil {
			return err
		}
	}
	fmt.Printf(`The lab is running. In another shell:

    export DOCKER_HOST=%[1]s
    make images                            # the sidecar's image, sluice-proxy:dev
    docker run -it --rm %[3]s bash    # a client; the lab has it if started with -client
    curl -s --unix-socket %[2]s http://lab/v1/counts

Its internet has every name of e2e/lab/internet/test.zone. Ctrl-C removes everything.
`, l.DockerHost(), l.ControlSocket(), client.Tag)
	<-ctx.Done()
	return nil
}

func loadClient(ctx context.Context, l *closed.Lab) error {
	img, err := client.Image(ctx, l.Internet.CA())
	if err != nil {
		return err
	}
	engine, err := l.Engine()
	if err != nil {
		return err
	}
	defer engine.Close()
	return images.Load(ctx, engine, img)
}
