//go:build !linux

package probe

import (
	"context"
	"errors"
)

func Send(context.Context, func(func() error) error, Probe) Answer {
	return Answer{Outcome: Failed, Detail: errors.ErrUnsupported.Error()}
}
