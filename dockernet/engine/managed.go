package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
)

// NetworkSpec says what a managed network shall be.
type NetworkSpec struct {
	Name     string
	Internal bool // no way out but through the proxy
	IPv6     bool
	// Policy is the JSON of the policies that containers get which name none, "" for none: they are not admitted.
	Policy string
	// MTU is how many bytes its packets may have; 0 is the engine's choice.
	MTU int
	// Pools are where subnets are taken from, in this order; none stands for [DefaultPools].
	Pools []netip.Prefix
	// Taken are networks to keep clear of beside the engine's own: the host's routes, see [Routes].
	Taken []netip.Prefix
}

// DefaultPools are private ranges that engines and VPNs seldom use (RFC 1918, RFC 4193). One that overlaps what is
// taken is used where it does not.
func DefaultPools() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.207.0.0/16"),
		netip.MustParsePrefix("172.30.0.0/16"),
		netip.MustParsePrefix("192.168.224.0/19"),
		netip.MustParsePrefix("fd5c:1ce0:5afe::/48"),
	}
}

const (
	// A subnet has room for 61 containers beside the gateway. The engine's own have 65,000 and run out after 30
	// networks.
	subnetBits4, subnetBits6 = 26, 64
	// bridgePrefix begins the names of managed bridges, by which rules can be there before the engine is.
	bridgePrefix = "sluice-"
	// attempts bounds how often a network is tried again that somebody else has changed meanwhile.
	attempts = 10
	retry    = 100 * time.Millisecond
)

// ErrPoolDry is in the error for a network that there is no subnet for.
var ErrPoolDry = errors.New("no subnet is free")

// CreateNetwork makes a managed network on a bridge whose name begins with "sluice-". A name that exists is an error.
func (c *Client) CreateNetwork(ctx context.Context, s NetworkSpec) (Network, error) {
	n, err := c.createNetwork(ctx, s)
	if err != nil {
		return Network{}, fmt.Errorf("create network %s: %w", s.Name, err)
	}
	return n, nil
}

func (c *Client) createNetwork(ctx context.Context, s NetworkSpec) (Network, error) {
	labels := map[string]string{LabelManaged: "true"}
	if s.Policy != "" {
		labels[LabelPolicy] = s.Policy
	}
	refused := s.Taken // and what the engine turns out not to take
	for range attempts {
		there, err := c.Networks(ctx)
		if err != nil {
			return Network{}, err
		}
		// The engine would make a second network of the same name.
		if slices.ContainsFunc(there, func(n Network) bool { return n.Name == s.Name }) {
			return Network{}, errors.New("a network of this name exists: choose another one, or remove that one")
		}
		subnets, err := choose(s, there, refused)
		if err != nil {
			return Network{}, err
		}
		options := network.CreateOptions{
			Driver: driverBridge, Internal: s.Internal, EnableIPv6: &s.IPv6, Labels: labels, IPAM: &network.IPAM{},
			Options: map[string]string{optionBridge: bridgeName(s.Name)},
		}
		if s.MTU > 0 {
			options.Options[OptionMTU] = strconv.Itoa(s.MTU)
		}
		for _, p := range subnets {
			options.IPAM.Config = append(options.IPAM.Config,
				network.IPAMConfig{Subnet: p.String(), Gateway: p.Addr().Next().String()})
		}
		callCtx, cancel := bounded(ctx)
		created, err := c.engine().NetworkCreate(callCtx, s.Name, options)
		cancel()
		if overlaps(err) {
			refused = slices.Concat(refused, subnets)
			continue
		}
		if err != nil {
			return Network{}, err
		}
		return c.network(ctx, created.ID)
	}
	return Network{}, fmt.Errorf("%w: somebody else took the chosen one %d times: try again", ErrPoolDry, attempts)
}

// bridgeName is the same for the same network, and short enough for an interface (15 bytes).
func bridgeName(network string) string {
	sum := sha256.Sum256([]byte(network))
	return bridgePrefix + hex.EncodeToString(sum[:4])
}

// overlaps reports whether the engine has refused a subnet because of another one, which it has no error type for.
func overlaps(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "overlap") || strings.Contains(err.Error(), "conflicts with network"))
}

// choose takes one free subnet, and one of IPv6 if that is wanted.
func choose(s NetworkSpec, there []Network, taken []netip.Prefix) ([]netip.Prefix, error) {
	pools := s.Pools
	if len(pools) == 0 {
		pools = DefaultPools()
	}
	taken = slices.Clone(taken)
	for _, n := range there {
		taken = append(taken, n.Subnets...)
	}
	v4, err := free(pools, true, subnetBits4, taken)
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, users(there, pools))
	}
	if !s.IPv6 {
		return []netip.Prefix{v4}, nil
	}
	v6, err := free(pools, false, subnetBits6, taken)
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, users(there, pools))
	}
	return []netip.Prefix{v4, v6}, nil
}

// users names the networks that have subnets in the pools.
func users(there []Network, pools []netip.Prefix) string {
	var names []string
	for _, n := range there {
		if slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool {
			return slices.ContainsFunc(pools, s.Overlaps)
		}) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	const most = 5
	total := len(names)
	if total > most {
		names = append(names[:most], "…")
	}
	return fmt.Sprintf("%d networks have one (%s): remove those that are not needed, or give another pool", total, strings.Join(names, ", "))
}

// free returns the first subnet of the length in the pools of the family that overlaps nothing.
func free(pools []netip.Prefix, is4 bool, bits int, taken []netip.Prefix) (netip.Prefix, error) {
	var tried []string
	for _, pool := range pools {
		if pool.Addr().Is4() != is4 {
			continue
		}
		tried = append(tried, pool.String())
		if pool.Bits() > bits {
			continue // smaller than a subnet
		}
		for p := netip.PrefixFrom(pool.Masked().Addr(), bits); pool.Contains(p.Addr()); {
			i := slices.IndexFunc(taken, p.Overlaps)
			if i < 0 {
				return p, nil
			}
			// On behind the larger of the two.
			larger := taken[i]
			if larger.Bits() > bits {
				larger = p
			}
			next, ok := following(larger)
			if !ok {
				break
			}
			p = netip.PrefixFrom(next, bits).Masked()
		}
	}
	return netip.Prefix{}, fmt.Errorf("%w: want a /%d in %s", ErrPoolDry, bits, strings.Join(tried, ", "))
}

// following returns the first address behind a prefix.
func following(p netip.Prefix) (netip.Addr, bool) {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits() - 1; i >= 0; i-- {
		bit := byte(0x80) >> (i % 8)
		b[i/8] ^= bit
		if b[i/8]&bit != 0 {
			a, ok := netip.AddrFromSlice(b)
			return a, ok
		}
	}
	return netip.Addr{}, false // all addresses are in it
}

// ManagedNetworks returns those that have the label. A configuration of networks, which gives its labels to what is made
// from it, is none.
func (c *Client) ManagedNetworks(ctx context.Context) ([]Network, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	list, err := c.engine().NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("label", LabelManaged+"=true"))})
	if err != nil {
		return nil, fmt.Errorf("list managed networks: %w", err)
	}
	var all []Network
	for _, n := range list {
		if n.ConfigOnly {
			continue
		}
		one, err := newNetwork(n)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// RemoveNetwork removes a managed network by its id or name; one that is gone already is no error. The engine refuses
// while it is still busy taking containers off it, so that is tried for a second. Containers that stay are named in the
// error, or taken off if force is set.
func (c *Client) RemoveNetwork(ctx context.Context, name string, force bool) error {
	if err := c.removeNetwork(ctx, name, force); err != nil {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	return nil
}

func (c *Client) removeNetwork(ctx context.Context, name string, force bool) error {
	var last error
	for i := range attempts {
		if i > 0 && !sleep(ctx, retry) {
			return errors.Join(ctx.Err(), last)
		}
		there, err := c.inspectNetwork(ctx, name)
		switch {
		case errdefs.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case there.Labels[LabelManaged] != "true":
			return fmt.Errorf("it has no label %s=true and is not Sluice's: use docker network rm", LabelManaged)
		}
		if force {
			for id, endpoint := range there.Containers {
				// An endpoint whose container is gone is known by its name alone.
				if err := c.disconnect(ctx, there.ID, id, endpoint.Name); err != nil {
					return err
				}
			}
		}
		callCtx, cancel := bounded(ctx)
		last = c.engine().NetworkRemove(callCtx, there.ID)
		cancel()
		switch {
		case last == nil || errdefs.IsNotFound(last):
			return nil
		case !busy(last):
			return last
		}
	}
	there, err := c.inspectNetwork(ctx, name)
	if err != nil {
		return errors.Join(last, err)
	}
	var names []string
	for _, endpoint := range there.Containers {
		names = append(names, endpoint.Name)
	}
	slices.Sort(names)
	return fmt.Errorf("%w: remove these containers or take them off it: %s", last, strings.Join(names, ", "))
}

func (c *Client) inspectNetwork(ctx context.Context, name string) (network.Inspect, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return c.engine().NetworkInspect(ctx, name, network.InspectOptions{})
}

// disconnect takes an endpoint off the network, whether its container is there or not.
func (c *Client) disconnect(ctx context.Context, network, container, name string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err := c.engine().NetworkDisconnect(ctx, network, container, true)
	if errdefs.IsNotFound(err) && name != "" {
		err = c.engine().NetworkDisconnect(ctx, network, name, true)
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// busy reports whether the engine says that a network has endpoints: 403 or 409, by its version.
func busy(err error) bool {
	return errdefs.IsPermissionDenied(err) || errdefs.IsConflict(err) || strings.Contains(err.Error(), "active endpoints")
}
