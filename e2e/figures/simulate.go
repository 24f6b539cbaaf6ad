package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sluice/controller/api"
	"sluice/dockernet/netns"
)

// perBridge is how many simulated containers are on one bridge, which takes 1,023 ports at most.
const perBridge = 700

// simulated is a network namespace on a bridge of the engine that passes for a container.
type simulated struct {
	id, name, sandbox, mac string
	address                netip.Prefix
	file                   *os.File // of the namespace, which ends with it
}

// crowd is all of them.
type crowd struct {
	members []*simulated
	real    []*container // one on each bridge
}

// simulate makes network namespaces, joined to bridges of the engine as containers are. They are not attached.
func (st *stage) simulate(ctx context.Context, count int) (*crowd, error) {
	var all crowd
	for bridge := 0; len(all.members) < count; bridge++ {
		network, prefix := fmt.Sprintf("crowd-%d", bridge), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(bridge * 4), 0}), 22)
		link := fmt.Sprintf("crowd%d", bridge)
		if _, err := st.docker("network", "create", "--subnet", prefix.String(), "--opt", "com.docker.network.bridge.name="+link, network); err != nil {
			return nil, err
		}
		real, err := st.start(network, network)
		if err != nil {
			return nil, err
		}
		all.real = append(all.real, real)
		like, err := st.inspectRaw(ctx, network)
		if err != nil {
			return nil, err
		}
		for i := range min(perBridge, count-len(all.members)) {
			n := len(all.members)
			host := prefix.Addr().As4()
			host[2], host[3] = host[2]+byte((i+256)>>8), byte(i)
			s := &simulated{id: fmt.Sprintf("%064x", 1<<40+n), name: fmt.Sprintf("simulated-%d", n), address: netip.PrefixFrom(netip.AddrFrom4(host), prefix.Bits()),
				mac: net.HardwareAddr{2, 0x53, 0, 0, byte(n >> 8), byte(n)}.String()}
			if err := st.makeNamespace(s, real, link, fmt.Sprintf("sim%d", n)); err != nil {
				return nil, fmt.Errorf("simulate container %d: %w", n, err)
			}
			if err := st.front.add(like, s); err != nil {
				return nil, err
			}
			all.members = append(all.members, s)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
		}
	}
	return &all, nil
}

// inspectRaw returns what the engine says of a container, in its own words.
func (st *stage) inspectRaw(ctx context.Context, name string) ([]byte, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(st.DockerHost(), "unix://"))
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/v1.41/containers/"+name+"/json", nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(answer.Body)
}

// makeNamespace makes a namespace with a link to a bridge, and with IPv6 where a real container there has it.
func (st *stage) makeNamespace(s *simulated, real *container, bridge, port string) error {
	err := netns.OnOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		s.file = f
		return err
	})
	if err != nil {
		return err
	}
	s.sandbox = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.file.Fd())
	mac, err := net.ParseMAC(s.mac)
	if err != nil {
		return err
	}
	// The kernel keeps few neighbours that it has found by itself, for all namespaces together (gc_thresh3), and three for each
	// of a crowd are too many: those are told. The loopback device has one for all addresses (arp_hash in the kernel).
	know := func(link int, address netip.Addr, mac net.HardwareAddr) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: link, State: netlink.NUD_PERMANENT, IP: address.AsSlice(), HardwareAddr: mac})
	}
	var gateway net.HardwareAddr
	err = st.InEngineNamespace(func() error {
		master, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		gateway = master.Attrs().HardwareAddr
		if err := know(master.Attrs().Index, s.address.Addr(), mac); err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex, attrs.Flags = port, master.Attrs().Index, net.FlagUp
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(s.file.Fd())), PeerHardwareAddr: mac})
	})
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	ns, err := netns.Open(s.sandbox, nil)
	if err != nil {
		return err
	}
	defer ns.Close()
	off := make(map[string][]byte)
	disable := func(link string) string { return "/proc/sys/net/ipv6/conf/" + link + "/disable_ipv6" }
	if err := real.ns.Do(func() (err error) {
		for _, name := range []string{"lo", "eth0"} {
			if off[name], err = os.ReadFile(disable(name)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return ns.Do(func() error {
		for _, name := range []string{"lo", "eth0"} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := os.WriteFile(disable(name), off[name], 0); err != nil {
				return err
			}
			if name == "eth0" {
				address := &netlink.Addr{IPNet: &net.IPNet{IP: s.address.Addr().AsSlice(), Mask: net.CIDRMask(s.address.Bits(), 32)}}
				if err := netlink.AddrAdd(link, address); err != nil {
					return err
				}
			}
			if err := netlink.LinkSetUp(link); err != nil {
				return err
			}
			neighbour, at := netip.IPv4Unspecified(), make(net.HardwareAddr, 6)
			if name == "eth0" {
				neighbour, at = s.address.Masked().Addr().Next(), gateway
			}
			if err := know(link.Attrs().Index, neighbour, at); err != nil {
				return err
			}
		}
		return netlink.RouteAdd(&netlink.Route{Gw: s.address.Masked().Addr().Next().AsSlice()})
	})
}

// attach attaches simulated containers, two at a time.
func (st *stage) attach(ctx context.Context, all []*simulated, targets int) error {
	text := document(targets)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for _, s := range all {
		group.Go(func() error {
			_, err := st.api.Attach(ctx, api.Attach{Container: s.id, Policy: text, Phase: "run"})
			return err
		})
	}
	return group.Wait()
}

// close lets the namespaces go.
func (c *crowd) close() error {
	var errs []error
	for _, s := range c.members {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}
