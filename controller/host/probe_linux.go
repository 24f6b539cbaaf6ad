package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/vishvananda/netlink"

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
	links, err := n.rim.links()
	if err != nil {
		return probe.Answer{Detail: err.Error()}
	}
	return probe.SendWatched(ctx, n.ns.Do, p, links)
}

// links are those where guards are, as they are now.
func (r *rim) links() (all []probe.Link, err error) {
	r.mu.Lock()
	names := slices.Sorted(maps.Keys(r.ports))
	r.mu.Unlock()
	for _, name := range names {
		port, err := netlink.LinkByName(name)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		all = append(all, probe.Link{Port: port.Attrs().Index, Bridge: port.Attrs().MasterIndex})
	}
	return all, nil
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
