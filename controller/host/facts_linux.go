package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"sluice/controller"
	"sluice/dockernet/engine"
	"sluice/dockernet/netns"
)

// factsAge is how long facts are taken for true. Networks that are made meanwhile are known at once, by their events;
// the host's own addresses seldom change.
const factsAge = 10 * time.Second

// facts remembers what has to be known of the host.
type facts struct {
	client   *engine.Client
	constant controller.Facts

	mu    sync.Mutex // guards all below
	known controller.Facts
	until time.Time
}

// forget makes the next caller ask again.
func (f *facts) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until = time.Time{}
}

func (f *facts) get(ctx context.Context) (controller.Facts, error) {
	f.mu.Lock()
	known, until := f.known, f.until
	f.mu.Unlock()
	if time.Now().Before(until) {
		return known, nil
	}
	known, err := f.ask(ctx)
	if err != nil {
		return known, fmt.Errorf("facts of the host: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known, f.until = known, time.Now().Add(factsAge)
	return known, nil
}

func (f *facts) ask(ctx context.Context) (controller.Facts, error) {
	v := f.constant
	networks, err := f.client.Networks(ctx)
	if err != nil {
		return v, err
	}
	for _, n := range networks {
		v.Subnets = append(v.Subnets, n.Subnets...)
	}
	addresses, err := netns.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return v, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			v.Addresses = append(v.Addresses, ip.Unmap())
		}
	}
	slices.SortFunc(v.Addresses, netip.Addr.Compare)
	v.Addresses = slices.Compact(v.Addresses)
	// A port on all addresses is one on each of them.
	v.Closed = nil
	for _, c := range f.constant.Closed {
		if !c.Addr().IsUnspecified() {
			v.Closed = append(v.Closed, c)
			continue
		}
		for _, a := range v.Addresses {
			v.Closed = append(v.Closed, netip.AddrPortFrom(a, c.Port()))
		}
	}
	return v, nil
}

// NameServers returns those of the host that a container can reach.
func NameServers() ([]netip.AddrPort, error) {
	return nameServers("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
}

// nameServers returns the servers that a file names; where these are stubs on loopback, which no container can reach,
// those behind them, in the other file.
func nameServers(path, behind string) ([]netip.AddrPort, error) {
	servers, err := readServers(path)
	if err != nil {
		return nil, err
	}
	outside := slices.DeleteFunc(slices.Clone(servers), func(s netip.AddrPort) bool { return s.Addr().IsLoopback() })
	if len(outside) > 0 || len(servers) == 0 {
		return outside, nil
	}
	servers, err = readServers(behind)
	servers = slices.DeleteFunc(servers, func(s netip.AddrPort) bool { return s.Addr().IsLoopback() })
	if err == nil && len(servers) == 0 {
		err = fmt.Errorf("%s names loopback addresses only, and %s no other: name servers that the sidecar can reach, by --upstream", path, behind)
	}
	return servers, err
}

func readServers(path string) ([]netip.AddrPort, error) {
	config, err := dns.ClientConfigFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("name servers in %s: %w", path, err)
	}
	var list []netip.AddrPort
	for _, s := range config.Servers {
		if a, err := netip.ParseAddr(s); err == nil {
			list = append(list, netip.AddrPortFrom(a.WithZone(""), dnsPort))
		}
	}
	return list, nil
}
