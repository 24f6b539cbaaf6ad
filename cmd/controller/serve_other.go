//go:build !linux

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
)

func serve(context.Context, *slog.Logger, settings) error {
	return errors.New("the controller runs on Linux only")
}

// routes are not known here; the engine refuses what overlaps.
func routes() ([]netip.Prefix, error) { return nil, nil }
