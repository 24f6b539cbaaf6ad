package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/docker/docker/client"
	"github.com/spf13/cobra"

	"sluice/images"
)

func newImages(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "images",
		Short:   "Load images of Sluice's into the engine, under the names by which others look for them",
		Example: "  sluice images harbor",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(newImagesHarbor(&g.json))
	return cmd
}

func newImagesHarbor(asJSON *bool) *cobra.Command {
	var pkg, binary string
	cmd := &cobra.Command{
		Use:   "harbor",
		Short: "Stand in for the egress sidecar of Harbor's Docker environment",
		Long: `Harbor looks for its sidecar's image by a name with a hash of the files that it would build the image from, and uses
what has that name. This loads Sluice's image under it, into the engine that DOCKER_HOST names.

The hash depends on the modes of the files, so on how Harbor was installed. Without --harbor-package it is that of
Harbor ` + images.HarborVersion + ` from PyPI, installed by pip or uv under the umask 022.`,
		Example: `  sluice images harbor --harbor-package "$(python3 -c 'import os, harbor; print(os.path.dirname(harbor.__file__))')"`,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&pkg, "harbor-package", "", "compute the name from Harbor's package in `DIR`, which has environments/ in it")
	cmd.Flags().StringVar(&binary, "binary", "", "the `PATH` of sluice-harbor (default: beside this program)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		done, known, err := loadHarbor(cmd.Context(), pkg, binary)
		if err != nil {
			return failed(err)
		}
		if !known {
			cmd.PrintErrf("sluice: warning: %s has not the sidecar of Harbor %s: try one task, and look whether the sidecar's log has errors\n",
				pkg, images.HarborVersion)
		}
		if *asJSON {
			return printJSON(cmd, done)
		}
		cmd.Printf("%s %.1f MiB loaded into %s\n", done.Image, float64(done.Bytes)/(1<<20), done.Engine)
		return nil
	}
	return cmd
}

// loadedImage is what images prints with --json.
type loadedImage struct {
	Image  string `json:"image"`
	Bytes  int64  `json:"bytes"`
	Engine string `json:"engine"`
}

func loadHarbor(ctx context.Context, pkg, path string) (done loadedImage, known bool, err error) {
	if path == "" {
		own, err := os.Executable()
		if err != nil {
			return done, false, fmt.Errorf("find this program: %w: say where sluice-harbor is by --binary", err)
		}
		path = filepath.Join(filepath.Dir(own), "sluice-harbor")
	}
	binary, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: put sluice-harbor there, or say where it is by --binary", err)
	}
	if err != nil {
		return done, false, err
	}
	engine, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return done, false, fmt.Errorf("DOCKER_HOST: %w", err)
	}
	defer engine.Close()
	version, err := engine.ServerVersion(ctx)
	if err != nil {
		return done, false, fmt.Errorf("ask the engine for its platform: %w", err)
	}
	if own := "linux/" + runtime.GOARCH; version.Os+"/"+version.Arch != own {
		return done, false, fmt.Errorf("the engine %s is of %s/%s and sluice-harbor of %s: run the sluice of the engine's platform",
			engine.DaemonHost(), version.Os, version.Arch, own)
	}
	tag, known, err := images.HarborTag(pkg, version.Os+"/"+version.Arch)
	if err != nil {
		return done, false, fmt.Errorf("%w: give the directory of Harbor's package by --harbor-package", err)
	}
	img, err := images.Harbor(binary, tag)
	if err != nil {
		return done, false, err
	}
	if err := images.Load(ctx, engine, img); err != nil {
		return done, false, err
	}
	return loadedImage{Image: tag, Bytes: img.Size(), Engine: engine.DaemonHost()}, known, nil
}
