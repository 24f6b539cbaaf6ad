//go:build !linux

package main

import (
	"context"
	"errors"
	"log/slog"
)

func serve(context.Context, *slog.Logger, settings) error {
	return errors.New("the controller runs on Linux only")
}
