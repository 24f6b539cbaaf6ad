package engine

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
)

// Network is one that containers are on.
type Network struct {
	ID, Name string
	Driver   string // "bridge"
	Internal bool   // has no way out
	IPv6     bool
	Labels   map[string]string
	// Bridge is the name of the host's interface, "" if the driver is not "bridge".
	Bridge   string
	Subnets  []netip.Prefix
	Gateways []netip.Addr // the host's addresses on it
}

// Managed reports whether Sluice manages the network: what comes from it is dropped until the container is admitted.
func (n *Network) Managed() bool { return n.Labels[LabelManaged] == "true" }

// Options of the driver "bridge".
const (
	driverBridge = "bridge"
	optionBridge = "com.docker.network.bridge.name"
	// defaultBridge is the name of the network that containers are on by default. Its containers find each other by
	// links alone.
	defaultBridge = "bridge"
)

// Networks returns all that the engine has.
func (c *Client) Networks(ctx context.Context) ([]Network, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	list, err := c.engine().NetworkList(ctx, network.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	var all []Network
	for _, n := range list {
		one, err := newNetwork(n)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func (c *Client) network(ctx context.Context, id string) (Network, error) {
	n, err := c.engine().NetworkInspect(ctx, id, network.InspectOptions{})
	if err != nil {
		return Network{}, fmt.Errorf("network %s: %w", id, err)
	}
	return newNetwork(n)
}

func newNetwork(n network.Inspect) (Network, error) {
	v := Network{ID: n.ID, Name: n.Name, Driver: n.Driver, Internal: n.Internal, IPv6: n.EnableIPv6, Labels: n.Labels}
	if n.Driver == driverBridge {
		v.Bridge = n.Options[optionBridge]
		if v.Bridge == "" && len(n.ID) >= 12 {
			v.Bridge = "br-" + n.ID[:12]
		}
	}
	for _, config := range n.IPAM.Config {
		if config.Subnet != "" {
			p, err := netip.ParsePrefix(config.Subnet)
			if err != nil {
				return Network{}, fmt.Errorf("network %s: subnet: %w", n.Name, err)
			}
			v.Subnets = append(v.Subnets, p.Masked())
		}
		if config.Gateway != "" {
			address, _, _ := strings.Cut(config.Gateway, "/")
			a, err := netip.ParseAddr(address)
			if err != nil {
				return Network{}, fmt.Errorf("network %s: gateway: %w", n.Name, err)
			}
			v.Gateways = append(v.Gateways, a)
		}
	}
	return v, nil
}

// HostGateway returns the host's addresses that "host-gateway" stands for in extra hosts: those on the default bridge,
// unless the engine was told others, which it does not tell.
func (c *Client) HostGateway(ctx context.Context) ([]netip.Addr, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	n, err := c.network(ctx, defaultBridge)
	if errdefs.IsNotFound(err) {
		return nil, nil // an engine without one
	}
	if err != nil {
		return nil, err
	}
	if len(n.Gateways) == 0 {
		// Some engines do not tell, until they are restarted, that they have taken the first ones.
		for _, s := range n.Subnets {
			n.Gateways = append(n.Gateways, s.Addr().Next())
		}
	}
	return n.Gateways, nil
}

// Sibling is a running container on one of another's networks.
type Sibling struct {
	ID string
	// Network is the id of the network that the rest is about. A container on two of them is two siblings.
	Network   string
	Names     []string // lower case, under which it is found there
	Addresses []netip.Addr
}

// Siblings returns the running containers on the container's networks, without itself. It inspects each of them, about
// a millisecond each, since a list does not have their aliases: it is for policies with a name that could be one.
func (c *Client) Siblings(ctx context.Context, of Container) ([]Sibling, error) {
	s, err := c.siblings(ctx, of)
	if err != nil {
		return nil, fmt.Errorf("siblings of container %s: %w", of.ID, err)
	}
	return s, nil
}

func (c *Client) siblings(ctx context.Context, of Container) ([]Sibling, error) {
	if len(of.Endpoints) == 0 {
		return nil, nil
	}
	ids := filters.NewArgs()
	for _, e := range of.Endpoints {
		ids.Add("network", e.ID)
	}
	listCtx, cancel := bounded(ctx)
	defer cancel()
	list, err := c.engine().ContainerList(listCtx, container.ListOptions{Filters: ids}) // the running ones
	if err != nil {
		return nil, err
	}
	var all []Sibling
	for _, s := range list {
		if s.ID == of.ID {
			continue
		}
		other, err := c.Inspect(ctx, s.ID)
		if errdefs.IsNotFound(err) {
			continue // it has gone since
		}
		if err != nil {
			return nil, err
		}
		for _, e := range of.Endpoints {
			if one, ok := other.on(&e); ok {
				all = append(all, one)
			}
		}
	}
	return all, nil
}

// Hosts returns every name that the container can reach an address by without asking a DNS server, in lower case:
// siblings by their names and aliases, links, extra hosts. It costs what [Client.Siblings] costs.
func (c *Client) Hosts(ctx context.Context, of Container) (map[string][]netip.Addr, error) {
	hosts := make(map[string][]netip.Addr)
	add := func(name string, addresses ...netip.Addr) {
		for _, a := range addresses {
			if !slices.Contains(hosts[name], a) {
				hosts[name] = append(hosts[name], a)
			}
		}
	}
	siblings, err := c.Siblings(ctx, of)
	if err != nil {
		return nil, err
	}
	for _, s := range siblings {
		for _, name := range s.Names {
			add(name, s.Addresses...)
		}
	}
	for _, h := range of.ExtraHosts {
		if h.Address.IsValid() {
			add(strings.ToLower(h.Name), h.Address)
			continue
		}
		gateway, err := c.HostGateway(ctx)
		if err != nil {
			return nil, err
		}
		add(strings.ToLower(h.Name), gateway...)
	}
	return hosts, nil
}

// on returns what the container is to another one with this endpoint.
func (c *Container) on(seen *Endpoint) (Sibling, bool) {
	for _, e := range c.Endpoints {
		if e.ID != seen.ID || len(e.Addresses) == 0 {
			continue
		}
		s := Sibling{ID: c.ID, Network: e.ID}
		for _, p := range e.Addresses {
			s.Addresses = append(s.Addresses, p.Addr())
		}
		for _, name := range e.Names {
			s.Names = append(s.Names, strings.ToLower(name))
		}
		for alias, target := range seen.Links {
			if target == c.Name || target == c.ID {
				s.Names = append(s.Names, strings.ToLower(alias))
			}
		}
		slices.Sort(s.Names)
		s.Names = slices.Compact(s.Names)
		return s, true
	}
	return Sibling{}, false
}

// parsePort reads the number of a port, 0 for none.
func parsePort(s string) (uint16, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err
}
