package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"sluice/dockernet/netns"
)

// Open opens the container's network namespace, which the caller closes. When it is open, the engine is asked again
// whether it still is that container's, so that neither a restart nor a name or number that is used again leads to
// another namespace; then the error is [netns.ErrChanged].
func (c *Client) Open(ctx context.Context, of Container) (*netns.Namespace, error) {
	if of.SandboxKey == "" {
		return nil, fmt.Errorf("container %s has no network namespace while its state is %q: start it", of.ID, of.State)
	}
	ns, err := netns.Open(of.SandboxKey, func() error { return c.same(ctx, of) })
	if err != nil {
		// The path may be gone because the container is another one now.
		if changed := c.same(ctx, of); !errors.Is(err, netns.ErrChanged) && errors.Is(changed, netns.ErrChanged) {
			err = fmt.Errorf("%w: %w", changed, err)
		}
		return nil, fmt.Errorf("container %s: %w", of.ID, err)
	}
	return ns, nil
}

func (c *Client) same(ctx context.Context, of Container) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	now, err := c.engine().ContainerInspect(ctx, of.ID)
	if err != nil {
		return fmt.Errorf("inspect again: %w", err)
	}
	if now.ContainerJSONBase == nil || now.State == nil || now.NetworkSettings == nil {
		return errors.New("inspect again: the engine's answer is incomplete")
	}
	started, err := startTime(now.State.StartedAt)
	if err != nil {
		return err
	}
	s := now.NetworkSettings
	if now.ID != of.ID || s.SandboxID != of.SandboxID || s.SandboxKey != of.SandboxKey ||
		!started.Equal(of.Started) || now.State.Pid != of.PID {
		return netns.ErrChanged
	}
	return nil
}

// Link is the pair of interfaces by which a container is on a network.
type Link struct {
	Network string // its id
	// Inside is the interface in the container's namespace.
	Inside      string
	InsideIndex int
	// Host is the other one. Nothing but the pair itself leads to it: names and addresses could be anybody's.
	Host      string
	HostIndex int
}

// Links finds them all: one for each of the container's endpoints, in that order. An error is what is to be expected
// while the engine connects or disconnects the container. The calling thread must be in the namespace of the engine's
// bridges.
func Links(ns *netns.Namespace, of Container) ([]Link, error) {
	inside, err := interfaces(ns)
	if err != nil {
		return nil, err
	}
	var links []Link
	for _, e := range of.Endpoints {
		l, err := findLink(inside, &e)
		if err != nil {
			return nil, fmt.Errorf("container %s, network %s: %w", of.ID, e.Name, err)
		}
		links = append(links, l)
	}
	return links, nil
}

// veth is an end of a pair inside a container.
type veth struct {
	name        string
	index, peer int
	addresses   []netip.Addr
}

func interfaces(ns *netns.Namespace) (list []veth, err error) {
	err = ns.Do(func() error {
		links, err := netns.Whole(netlink.LinkList)
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		addresses, err := netns.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		for _, l := range links {
			if l.Type() != "veth" {
				continue
			}
			a := l.Attrs()
			v := veth{name: a.Name, index: a.Index, peer: a.ParentIndex}
			for _, address := range addresses {
				if ip, ok := netip.AddrFromSlice(address.IP); ok && address.LinkIndex == a.Index {
					v.addresses = append(v.addresses, ip.Unmap())
				}
			}
			list = append(list, v)
		}
		return nil
	})
	return list, err
}

func findLink(inside []veth, e *Endpoint) (Link, error) {
	i := slices.IndexFunc(inside, func(v veth) bool {
		return slices.ContainsFunc(e.Addresses, func(p netip.Prefix) bool { return slices.Contains(v.addresses, p.Addr()) })
	})
	if i < 0 {
		return Link{}, fmt.Errorf("no interface of the container has one of the addresses %v", e.Addresses)
	}
	v := inside[i]
	host, err := netlink.LinkByIndex(v.peer)
	if err != nil {
		return Link{}, fmt.Errorf("the host's end of %s, interface %d: %w", v.name, v.peer, err)
	}
	a := host.Attrs()
	if host.Type() != "veth" || a.ParentIndex != v.index {
		return Link{}, fmt.Errorf("interface %d, %s, is not the other end of %s: is this the engine's network namespace?", v.peer, a.Name, v.name)
	}
	bridge, err := netlink.LinkByIndex(a.MasterIndex)
	if err != nil {
		return Link{}, fmt.Errorf("the bridge of %s: %w", a.Name, err)
	}
	if name := bridge.Attrs().Name; name != e.Bridge {
		return Link{}, fmt.Errorf("%s is on bridge %s, not on %s", a.Name, name, e.Bridge)
	}
	return Link{Network: e.ID, Inside: v.name, InsideIndex: v.index, Host: a.Name, HostIndex: a.Index}, nil
}
