//go:build !linux

package xdp

import (
	"errors"
	"time"

	"sluice/dockernet/netns"
)

// Queues are as on Linux; there are none here.
type Queues struct{ Patience time.Duration }

func (*Queues) Keep(*netns.Namespace) error { return errors.ErrUnsupported }
func (*Queues) Add(*netns.Namespace) error  { return errors.ErrUnsupported }
func (*Queues) Close()                      {}
