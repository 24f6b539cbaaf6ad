package engine

import (
	"context"
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"
)

// OptionMTU is the option of a bridge network that says how many bytes its packets may have.
const OptionMTU = "com.docker.network.driver.mtu"

const (
	usualMTU  = 1500 // what engines give to networks for which nobody says otherwise
	lowestMTU = 1280 // that IPv6 works with (RFC 8200 §5)
	bridgeNet = "bridge"
)

// MTU returns how many bytes packets of a new bridge network may have, if they are to leave the host as they are: as on
// the engine's default bridge, to which its --mtu applies, and on the way out of the host, whichever is less. It is 0
// where that is no less than engines give by themselves.
func (c *Client) MTU(ctx context.Context) (int, error) {
	uplink, err := uplinkMTU()
	if err != nil {
		return 0, err
	}
	n, err := c.inspectNetwork(ctx, bridgeNet)
	if err != nil && !errdefs.IsNotFound(err) { // engines can do without
		return 0, fmt.Errorf("MTU of the default bridge: %w", err)
	}
	bridge, _ := strconv.Atoi(n.Options[OptionMTU]) // none is as 0
	return smallerMTU(uplink, bridge), nil
}

// smallerMTU returns the least of those that are known, if it is less than usual.
func smallerMTU(list ...int) int {
	least := usualMTU
	for _, m := range list {
		if m > 0 {
			least = min(least, m)
		}
	}
	if least == usualMTU {
		return 0
	}
	return max(least, lowestMTU)
}
