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

// HoldsFrames reports whether the workload's own frames are refused on all interfaces that there were when a Spec came last,
// so that nothing gets past the gate.
func (g *Gate) HoldsFrames() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.staged != nil && !g.staged.allPublic && !g.unheld
}
