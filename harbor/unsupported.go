//go:build !linux

package harbor

import (
	"context"
	"errors"
)

// Run needs Linux.
func Run(context.Context, Config) error { return errors.ErrUnsupported }
