package host

import (
	"context"
	"errors"
	"os"

	"sluice/controller"
	"sluice/dockernet/guard"
	"sluice/dockernet/probe"
)

// Probe implements [controller.Prober].
func (n *containerNet) Probe(ctx context.Context, p probe.Probe) probe.Answer {
	n.closing.RLock()
	defer n.closing.RUnlock()
	if n.closed {
		return probe.Answer{Detail: os.ErrClosed.Error()}
	}
	return probe.Send(ctx, n.ns.Do, p)
}

// Counted implements [controller.Prober].
func (n *containerNet) Counted() (c controller.Counted, err error) {
	if c.Packets, err = n.Packets(); err != nil {
		return c, err
	}
	n.closing.RLock()
	defer n.closing.RUnlock()
	if n.closed {
		return c, os.ErrClosed
	}
	frames, err := n.gate.FramesRefused()
	if err != nil {
		return c, err
	}
	c.Frames = frames.Packets
	c.Guard, c.Links, err = n.rim.dropped()
	return c, err
}

// dropped is how many frames were dropped for what they are, and on how many links that was looked for.
func (r *rim) dropped() (frames uint64, links int, err error) {
	err = r.all(func(p *guard.Port) error {
		c, err := p.Counters()
		if errors.Is(err, guard.ErrGone) {
			return nil
		}
		frames += c.FalseSource.Packets + c.Malformed.Packets + c.Misdirected.Packets + c.Neighbour.Packets + c.Quarantine.Packets
		links++
		return err
	})
	return frames, links, err
}
