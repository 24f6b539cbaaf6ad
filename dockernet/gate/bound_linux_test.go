package gate

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
	"sluice/policy"
)

// boundRequest is as request, of a socket that is bound to an interface.
func boundRequest(device, network, to string) string {
	d := net.Dialer{Timeout: patience, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if failed := raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), device) }); failed != nil {
			return failed
		}
		return err
	}}
	c, err := d.DialContext(context.Background(), network, to)
	if err != nil {
		return outcome(err)
	}
	defer c.Close()
	return exchange(c)
}

// A socket that is bound to an interface, by its option or by a link-local address, cannot reach the listener. So it is
// refused at once where others are redirected, and served where they go straight.
func TestBoundToAnInterface(t *testing.T) {
	names := []string{"allowlist", "ok.test", "192.0.2.5", "2001:db8:2::5"}
	for _, tt := range []struct {
		name   string
		phases [][]string
		direct []string // of what is tried
	}{
		{"no_network", [][]string{{"no-network"}}, nil},
		{"allowlist", [][]string{names}, []string{"192.0.2.5:80", "[2001:db8:2::5]:80"}},
		{"link_local_named", [][]string{append(names, "fe80::1")}, []string{"192.0.2.5:80", "[2001:db8:2::5]:80", "[fe80::1%eth0]:80"}},
		{"public", [][]string{{"public"}}, []string{"192.0.2.5:80", "[2001:db8:2::5]:80", "192.0.2.9:80", "[2001:db8:2::9]:80", "198.51.100.20:80"}},
		{"public_beside_names", [][]string{{"public"}, names}, []string{"198.51.100.20:80"}},
		{"denylist_names", [][]string{{"denylist", "evil.test"}}, []string{"198.51.100.20:80"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, false)
			h := l.workload.Handle(t)
			eth0, err := h.LinkByName("eth0")
			if err != nil {
				t.Fatal(err)
			}
			if err := h.AddrAdd(eth0, &netlink.Addr{IPNet: netnstest.IPNet(netip.MustParsePrefix("fe80::2/64")), Flags: unix.IFA_F_NODAD}); err != nil {
				t.Fatal(err)
			}
			phases := [3][]string{tt.phases[0], tt.phases[len(tt.phases)-1], tt.phases[len(tt.phases)-1]}
			s := l.spec(t, l.listen(t), phaseOf(t, phases[0][0], phases[0][1:]...), phaseOf(t, phases[1][0], phases[1][1:]...), phaseOf(t, phases[2][0], phases[2][1:]...))
			if err := l.gate.Install(s, policy.Baseline); err != nil {
				t.Fatal(err)
			}
			l.neighbours(t)
			there, err := l.outside.Handle(t).LinkByName("eth0")
			if err != nil {
				t.Fatal(err)
			}
			if err := h.NeighSet(&netlink.Neigh{LinkIndex: eth0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: netip.MustParseAddr("fe80::1").AsSlice(), HardwareAddr: there.Attrs().HardwareAddr}); err != nil {
				t.Fatal(err)
			}
			if err := l.outside.Handle(t).AddrAdd(there, &netlink.Addr{IPNet: netnstest.IPNet(netip.MustParsePrefix("fe80::1/64")), Flags: unix.IFA_F_NODAD}); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			for _, to := range []string{"192.0.2.5:80", "[2001:db8:2::5]:80", "192.0.2.9:80", "[2001:db8:2::9]:80", "198.51.100.20:80",
				"[fe80::1%eth0]:80", "192.0.2.9:53", "[2001:db8:2::9]:53", "127.0.0.11:53", "127.0.0.1:3128"} {
				want[to] = "refused"
			}
			for _, to := range tt.direct {
				want[to] = "direct"
			}
			for to, want := range want {
				var got string
				number := strings.Replace(to, "%eth0", "%"+strconv.Itoa(eth0.Attrs().Index), 1) // names are cached for all namespaces
				l.workload.Run(t, func() error { got = boundRequest("eth0", "tcp", number); return nil })
				if got != want {
					t.Errorf("tcp to %s: got %s, want %s", to, got, want)
				}
				if to == "192.0.2.9:53" || to == "[2001:db8:2::9]:53" {
					l.workload.Run(t, func() error { got = boundRequest("eth0", "udp", to); return nil })
					if got != "refused" {
						t.Errorf("udp to %s: got %s, want it refused", to, got)
					}
				}
			}
			// Those that are not bound go on.
			if got := l.probe(t, "udp", "192.0.2.9:53"); got != "dns" {
				t.Errorf("DNS of another socket: got %s", got)
			}
		})
	}
}

// On an interface without a default route the kernel takes every address of IPv4 for a neighbour's.
func TestBoundToAnotherInterface(t *testing.T) {
	l := newLab(t, false)
	netnstest.Link(t, netnstest.End{In: l.workload, Name: "eth1", Addresses: prefixes("198.51.101.2/24")}, netnstest.End{In: l.outside, Name: "eth1"})
	l.install(t, l.spec(t, l.listen(t), phaseOf(t, "allowlist", "ok.test")))
	for network, to := range map[string]string{"tcp": "192.0.2.9:80", "udp": "192.0.2.9:53"} {
		var got string
		l.workload.Run(t, func() error { got = boundRequest("eth1", network, to); return nil })
		if got != "refused" {
			t.Errorf("%s to %s: got %s", network, to, got)
		}
	}
}
