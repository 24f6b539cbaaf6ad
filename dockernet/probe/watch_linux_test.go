package probe

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft/nfttest"
)

// bridged is a container on a bridge of a host.
func bridged(t *testing.T) (container, host *netnstest.Namespace, link Link) {
	container, host = netnstest.New(t), netnstest.New(t)
	netnstest.Link(t, netnstest.End{In: container, Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24"), netip.MustParsePrefix("2001:db8:9::2/64")}},
		netnstest.End{In: host, Name: "port"})
	h := host.Handle(t)
	if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}); err != nil {
		t.Fatal(err)
	}
	port, err := h.LinkByName("port")
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := h.LinkByName("br")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{h.LinkSetMaster(port, bridge), h.LinkSetUp(bridge),
		h.AddrAdd(bridge, &netlink.Addr{IPNet: netnstest.IPNet(netip.MustParsePrefix("10.9.0.1/24"))})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	inside := container.Handle(t)
	eth0, err := inside.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := inside.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: netip.MustParseAddr("10.9.0.1").AsSlice()}); err != nil {
		t.Fatal(err)
	}
	return container, host, Link{Port: port.Attrs().Index, Bridge: bridge.Attrs().Index}
}

// watched sends a probe that is looked out for.
func watched(t *testing.T, container, host *netnstest.Namespace, p Probe, link Link) (a Answer) {
	t.Helper()
	host.Run(t, func() error {
		a = SendWatched(t.Context(), container.Do, p, []Link{link})
		return nil
	})
	return a
}

// What leaves the container is seen, and whether rules behind have let it through; what others send is not, however
// much that is.
func TestSendWatched(t *testing.T) {
	container, host, link := bridged(t)
	frame, arp := Probe{Kind: Frame, To: netip.AddrPortFrom(Nobody4, 0)}, Probe{Kind: ARP}
	// The link may not be ready yet.
	for end := time.Now().Add(10 * time.Second); watched(t, container, host, frame, link).Passed == 0; {
		if time.Now().After(end) {
			t.Fatalf("nothing comes through where there are no rules: %+v", watched(t, container, host, frame, link))
		}
	}
	const nothing, dropped, through = "", `table netdev t { chain c { type filter hook ingress device port priority -500; policy drop; }; }`,
		`table netdev t { chain c { type filter hook ingress device port priority -500; policy drop; ether type arp accept; }; }`
	// All that a guard asks of a request, but for who says it.
	const pinned = `table netdev t { chain c { type filter hook ingress device port priority -500; policy accept;
		ether type arp arp operation request arp saddr ip != 10.9.0.2 meta length 28 arp daddr ether 00:00:00:00:00:00 arp daddr ip 10.9.0.0/24 drop; }; }`
	const stopped, refused = `table netdev t { chain c { type filter hook egress device eth0 priority 0; policy drop; }; }`,
		`table inet t { chain c { type filter hook output priority 0; policy drop; }; }`
	// A host that forwards and knows no way says so.
	for name, value := range map[string]string{"ip_forward": "1", "icmp_ratelimit": "0"} {
		host.Run(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0o644) })
	}
	flood := make(chan struct{})
	flooding := make(chan struct{})
	go func() {
		defer close(flooding)
		for {
			select {
			case <-flood:
				return
			default:
				_ = container.Do(func() error { _, _, err := frames(frame); return err })
			}
		}
	}()
	defer func() { close(flood); <-flooding }()
	for _, row := range []struct {
		name            string
		inside, outside string
		probe           Probe
		outcome         Outcome
		stopped         int
		arrived, passed int
	}{
		{"frame-open", nothing, nothing, frame, Silent, 0, 1, 1},
		{"frame-dropped", nothing, dropped, frame, Silent, 0, 1, 0},
		{"frame-stopped", stopped, nothing, frame, Silent, 1, 0, 0},
		{"arp-dropped", nothing, dropped, arp, Silent, 0, 1, 0},
		{"arp-through", nothing, through, arp, Silent, 0, 1, 1},
		{"arp-for-its-sender-alone", nothing, pinned, arp, Silent, 0, 1, 0},
		{"frame-beside-arp", nothing, through, frame, Silent, 0, 1, 0},
		{"source-open", nothing, nothing, Probe{Kind: RawSource, To: netip.AddrPortFrom(Nobody4, 0)}, Silent, 0, 1, 1},
		{"source-refused", refused, nothing, Probe{Kind: RawSource, To: netip.AddrPortFrom(Nobody4, 0)}, Refused, 0, 0, 0},
		{"udp-dropped", nothing, dropped, Probe{Kind: UDP, To: netip.AddrPortFrom(Nobody4, 9)}, Silent, 0, 1, 0},
		{"udp-refused", refused, nothing, Probe{Kind: UDP, To: netip.AddrPortFrom(Nobody4, 9)}, Refused, 0, 0, 0},
		{"no-route", nothing, nothing, Probe{Kind: UDP, To: netip.AddrPortFrom(Nobody6, 9)}, Unreachable, 0, 0, 0},
		{"net-unreachable", nothing, nothing, Probe{Kind: TCP, To: netip.AddrPortFrom(Nobody4, 9)}, Refused, 0, 0, 0},
		{"echo-dropped", nothing, dropped, Probe{Kind: Echo, To: netip.AddrPortFrom(Nobody4, 0)}, Silent, 0, 1, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			inside := container.Handle(t)
			eth0, err := inside.LinkByName("eth0")
			if err != nil {
				t.Fatal(err)
			}
			bridge, err := host.Handle(t).LinkByName("br")
			if err != nil {
				t.Fatal(err)
			}
			if err := inside.NeighSet(&netlink.Neigh{LinkIndex: eth0.Attrs().Index, State: unix.NUD_PERMANENT, IP: netip.MustParseAddr("10.9.0.1").AsSlice(),
				HardwareAddr: bridge.Attrs().HardwareAddr}); err != nil {
				t.Fatal(err)
			}
			for ns, rules := range map[*netnstest.Namespace]string{container: row.inside, host: row.outside} {
				if rules != "" {
					nfttest.Run(t, ns, rules, "-f", "-")
					defer nfttest.Run(t, ns, "", "flush", "ruleset")
				}
			}
			a := watched(t, container, host, row.probe, link)
			if a.Outcome != row.outcome || a.Stopped != row.stopped || a.Arrived != row.arrived || a.Passed != row.passed {
				t.Errorf("got %+v", a)
			}
		})
	}
}
