package gate

import "sluice/dockernet/nft"

// FramesRefused reads how many frames of the workload's own making were refused. Without rules it is zero.
func (g *Gate) FramesRefused() (c nft.Counter, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	err = g.do("read counters of", func() error {
		got, err := g.kernel.Counters(framesID)
		c = got[framesCount]
		return err
	})
	return c, err
}
