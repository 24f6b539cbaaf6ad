//go:build !linux

package resolver

import (
	"context"
	"errors"
	"net/netip"

	"sluice/dockernet/netns"
)

// Find is as on Linux.
func Find(context.Context, *netns.Namespace, string) ([]netip.AddrPort, error) {
	return nil, errors.ErrUnsupported
}
