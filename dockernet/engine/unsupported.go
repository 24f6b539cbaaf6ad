//go:build !linux

package engine

import (
	"context"
	"errors"
	"net/netip"

	"sluice/dockernet/netns"
)

// Link is as on Linux; nothing makes one here.
type Link struct {
	Network, Inside, Host  string
	InsideIndex, HostIndex int
}

func (*Client) Open(context.Context, Container) (*netns.Namespace, error) {
	return nil, errors.ErrUnsupported
}
func Links(*netns.Namespace, Container) ([]Link, error) { return nil, errors.ErrUnsupported }
func Routes() ([]netip.Prefix, error)                   { return nil, errors.ErrUnsupported }
func HostProblems() []Problem {
	return []Problem{{Check: "kernel", What: "this is not Linux", Repair: "run it where the engine runs"}}
}
func uplinkMTU() (int, error) { return 0, nil }
func kernelRelease() string   { return "" }
func SeccompProfile() string  { return "" }
