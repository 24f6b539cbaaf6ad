//go:build !linux

package cut

import (
	"errors"

	"sluice/dockernet/netns"
)

// Doubts are those of Linux.
type Doubts struct{}

func Cut(*netns.Namespace, Spec) (Report, error)      { return Report{}, errors.ErrUnsupported }
func Sweep(*netns.Namespace, []Place) (Report, error) { return Report{}, errors.ErrUnsupported }
func Remember(ns, host *netns.Namespace) error        { return errors.ErrUnsupported }
func Check() error                                    { return errors.ErrUnsupported }
