//go:build !linux

package xdp

import (
	"errors"

	"sluice/dockernet/netns"
)

// Queues are as on Linux; there are none here.
type Queues struct{}

func (*Queues) Keep(*netns.Namespace) error { return errors.ErrUnsupported }
func (*Queues) Close()                      {}
