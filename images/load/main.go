// Command load puts the sidecar's image into the engine that DOCKER_HOST names, and the controller's if that is given
// too:
//
//	go run ./images/load bin/sluice-proxy bin/sluice
//
// It builds nothing: the binary must be static and made for the engine's machine. "make images" does both.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/docker/docker/client"

	"sluice/images"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) != 1 && len(args) != 2 {
		return errors.New("usage: load BINARY-OF-SLUICE-PROXY [BINARY-OF-SLUICE]")
	}
	proxy, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	img, err := images.SluiceProxy(proxy)
	if err != nil {
		return err
	}
	all := []images.Image{img}
	if len(args) == 2 {
		controller, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		if img, err = images.Sluice(controller, proxy); err != nil {
			return err
		}
		all = append(all, img)
	}
	engine, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return fmt.Errorf("DOCKER_HOST: %w", err)
	}
	defer engine.Close()
	if err := images.Load(ctx, engine, all...); err != nil {
		return err
	}
	for _, img := range all {
		if _, err := fmt.Fprintf(stdout, "%s %.1f MiB loaded into %s\n", img.Tag, float64(img.Size())/(1<<20), engine.DaemonHost()); err != nil {
			return err
		}
	}
	return nil
}
