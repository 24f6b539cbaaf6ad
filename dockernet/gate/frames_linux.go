package gate

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
	"sluice/dockernet/nft"
)

// interfaceTries is how often interfaces are asked for, which may come and go.
const interfaceTries = 5

// holdFrames refuses the workload's own frames on all interfaces that there are. Kernels before
// Linux 5.16 cannot, which the preflight of package engine says.
func (g *Gate) holdFrames(which held) (err error) {
	for range interfaceTries {
		if err = g.tryHoldFrames(which); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			break
		}
		if err := g.dial(); err != nil {
			return err
		}
	}
	if g.unheld = errors.Is(err, unix.EOPNOTSUPP); g.unheld {
		return g.dial()
	}
	if err != nil {
		return fmt.Errorf("refuse frames of the workload's: %w", err)
	}
	return nil
}

func (g *Gate) tryHoldFrames(which held) error {
	var interfaces []net.Interface
	if err := g.ns.Do(func() (err error) {
		interfaces, err = netns.Interfaces()
		return err
	}); err != nil {
		return err
	}
	var chains []nft.Chain
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 {
			chains = append(chains, framesChain(i.Name, which))
		}
	}
	b := new(nft.Batch)
	b.AddTable(framesID)
	b.AddCounters(framesID, framesCount)
	b.AddChains(framesID, chains...)
	b.Replace(framesID, chains...)
	return g.kernel.Send(b)
}
