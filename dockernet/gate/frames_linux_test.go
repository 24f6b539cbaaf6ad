package gate

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft"
	"sluice/dockernet/nft/nfttest"
	"sluice/policy"
)

// The workload's own frames stay inside, those of IPv6 only if all phases are public. ARP and what its sockets send do not. A link that
// comes later is covered with the next Spec. [sluice/dockernet/guard.TestChecksumsInOddPlaces] tells why.
func TestFrames(t *testing.T) {
	l := newLab(t, false)
	listeners := l.listen(t)
	outside := newTap(t, l.outside, "eth0")
	narrow := l.spec(t, listeners, phaseOf(t, "public"), phaseOf(t, "allowlist", "192.0.2.5:443"))
	wide := l.spec(t, listeners, phaseOf(t, "public"), phaseOf(t, "public"), phaseOf(t, "public"))
	type kinds string
	const none, ip6, all = kinds(""), kinds("IPv6"), kinds("IPv4 IPv6 other")
	refused := func(when, device string, which kinds) {
		t.Helper()
		for what, kind := range map[string]uint16{"IPv4": unix.ETH_P_IP, "IPv6": unix.ETH_P_IPV6, "other": unix.ETH_P_LOOPBACK} {
			err := sendFrame(t, l.workload, device, kind)
			want := strings.Contains(string(which), what)
			if want != errors.Is(err, unix.ENOBUFS) || !want && err != nil {
				t.Errorf("%s: a frame of %s: %v, want it refused: %v", when, what, err, want)
			}
		}
		if err := sendFrame(t, l.workload, device, unix.ETH_P_ARP); err != nil {
			t.Errorf("%s: ARP: %v", when, err)
		}
	}
	refused("without rules", "eth0", none)
	l.install(t, wide)
	refused("all public", "eth0", ip6)
	l.install(t, narrow)
	refused("public before an allowlist", "eth0", all)
	// What the kernel sends: a raw socket here, other tests have the rest.
	l.workload.Run(t, func() error {
		return sendRaw(ip4{from: own4, to: netip.MustParseAddr("192.0.2.5"), protocol: unix.IPPROTO_UDP}.packet(udp(1, 9, "raw socket")), nil)
	})
	outside.until(t, "raw socket")

	netnstest.Link(t, netnstest.End{In: l.workload, Name: "eth1"}, netnstest.End{In: l.outside, Name: "eth1"})
	refused("on a link that came later", "eth1", none)
	if err := l.gate.Stage(narrow); err != nil {
		t.Fatal(err)
	}
	refused("on a link of the next Spec", "eth1", all)
	if err := l.gate.Quarantine(); err != nil {
		t.Fatal(err)
	}
	refused("in a quarantine", "eth0", all)
	if err := l.gate.Switch(policy.Run); err != nil {
		t.Fatal(err)
	}
	refused("under an allowlist", "eth0", all)
	l.install(t, wide)
	refused("all public again", "eth0", ip6)
	l.install(t, narrow)
	if err := l.gate.Remove(); err != nil {
		t.Fatal(err)
	}
	refused("without rules again", "eth1", none)
}

func sendFrame(t testing.TB, ns *netnstest.Namespace, device string, kind uint16, prepare ...func(int) error) (err error) {
	t.Helper()
	ns.Run(t, func() error {
		err = sendFrameOfKind(device, kind, make([]byte, 64), prepare...)
		return nil
	})
	return err
}

// sendFrameOfKind sends a frame of the workload's own to whoever is on the link.
func sendFrameOfKind(device string, kind uint16, body []byte, prepare ...func(int) error) error {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, p := range prepare {
		if err := p(fd); err != nil {
			return err
		}
	}
	to := &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: networkOrder(kind), Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	if device == "lo" {
		to.Addr = [8]byte{}
	}
	return unix.Sendto(fd, body, 0, to)
}

// The kernel has what nft makes of the listing.
func TestFramesListing(t *testing.T) {
	ours, theirs := netnstest.New(t), netnstest.New(t)
	for _, which := range []held{heldIPv6, heldAll, heldSockets} {
		chain := framesChain("lo", which)
		table := &nft.Table{ID: framesID, Counters: []string{framesCount}, Chains: []nft.Chain{chain}}
		nfttest.Run(t, theirs, "flush ruleset\n"+table.String(), "-f", "-")
		nfttest.Run(t, ours, "", "flush", "ruleset")
		ours.Run(t, func() error { return give(table) })
		// nft asks what kind of interface it is before any ethertype, and shows ours by its place.
		got := strings.NewReplacer("@ll,96,16 0x806", "ether type arp", "@ll,96,16 != 0x86dd", "ether type != ip6").Replace(nfttest.Run(t, ours, "", "list", "ruleset"))
		want := nfttest.Run(t, theirs, "", "list", "ruleset")
		if got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	}
}

func (l *lab) install(t testing.TB, s *Spec) {
	t.Helper()
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
}
