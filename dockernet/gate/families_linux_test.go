package gate

import (
	"errors"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// Where IPv6 is off on all links there are no rules for what it could reach, and the workload's own loopback works. Once
// a link has it, the next Spec opens what that allows, and nothing before.
func TestLinksWithoutIPv6(t *testing.T) {
	l := newLab(t, false)
	const target = "2001:db8:2::5"
	turn := func(off string) {
		l.workload.Run(t, func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", []byte(off), 0) })
	}
	turn("1")
	s := l.spec(t, l.listen(t), phaseOf(t, "allowlist", target, "192.0.2.5"))
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	chains := func() []string {
		there, err := existing(l.gate.kernel)
		if err != nil {
			t.Fatal(err)
		}
		return there.Chains
	}
	judged := l.gate.staged.refs[policy.Baseline]
	if list := chains(); slices.Contains(list, judged.chain(nft.IPv6)) || !slices.Contains(list, judged.chain(nft.IPv4)) {
		t.Errorf("the chains are %v, want those of IPv4 alone", list)
	}
	l.workload.Run(t, func() error {
		own, err := net.Listen("tcp6", "[::1]:0")
		if err != nil {
			return err
		}
		defer own.Close()
		c, err := net.Dial("tcp6", own.Addr().String())
		if err != nil {
			return err
		}
		return c.Close()
	})

	turn("0")
	h := l.workload.Handle(t)
	link, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	own := &netlink.Addr{IPNet: netnstest.IPNet(prefixes("2001:db8:1::2/64")[0]), Flags: unix.IFA_F_NODAD}
	if err := errors.Join(h.AddrAdd(link, own), h.RouteAdd(&netlink.Route{Gw: addrs("2001:db8:1::1")[0].AsSlice()})); err != nil {
		t.Fatal(err)
	}
	at := net.JoinHostPort(target, "80")
	if got := l.probe(t, "udp", at); got != "refused" {
		t.Errorf("before the rules follow: got %s", got)
	}
	if err := errors.Join(l.gate.Stage(s), l.gate.Switch(policy.Baseline)); err != nil {
		t.Fatal(err)
	}
	// Until the router is found, packets may be given up.
	wait(t, at+" to answer", func() bool { return l.probe(t, "udp", at) == "direct" })
	if got := l.probe(t, "udp", "[2001:db8:2::6]:80"); got != "refused" {
		t.Errorf("what is not a target: got %s", got)
	}
}
