package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// On a managed network a container is mute until it has rules, whatever it sends and whatever address it says it has.
func TestManagedNetwork(t *testing.T) {
	l := newLab(t, "absc")
	if err := l.guard.AddBridge(labBridge, true); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "s"} {
		l.install(t, name, phaseOf(t, "public"))
	}
	serve(t, l.containers["a"].Namespace)
	serve(t, l.containers["b"].Namespace)

	for _, from := range []string{"a", "b"} {
		a := l.containers["a"].station
		if from == "b" { // what a container with another one's addresses would send
			a.ip4, a.ip6 = l.containers["b"].ip4, l.containers["b"].ip6
		}
		for _, to := range []string{"b", "host", "outside"} {
			hardware, to4, to6 := bridgeA, gateway.ip4, gateway.ip6
			switch to {
			case "b":
				hardware, to4, to6 = l.containers["b"].hardware, l.containers["b"].ip4, l.containers["b"].ip6
			case "outside":
				to4, to6 = remote4, remote6
			}
			h4, h6 := ip{from: a.ip4, to: to4}, ip{from: a.ip6, to: to6}
			for kind, frame := range map[string]func(key string) []byte{
				"datagram": func(key string) []byte { return ethernet(hardware, a.hardware, unix.ETH_P_IP, h4.datagram(1, 2, key)) },
				"datagram6": func(key string) []byte {
					return ethernet(hardware, a.hardware, unix.ETH_P_IPV6, h6.datagram(1, 2, key))
				},
				"segment": func(key string) []byte {
					return ethernet(hardware, a.hardware, unix.ETH_P_IP, h4.segment(1, 2, ack, 0, key))
				},
				"echo": func(key string) []byte { return ethernet(hardware, a.hardware, unix.ETH_P_IP, h4.echo(8, key)) },
				"fragment": func(key string) []byte {
					return ethernet(hardware, a.hardware, unix.ETH_P_IP, ip{from: a.ip4, to: to4, proto: 17, fragment: 0x2000}.packet([]byte(key)))
				},
				"false_source": func(key string) []byte {
					return ethernet(hardware, a.hardware, unix.ETH_P_IP, ip{from: other4, to: to4}.datagram(1, 2, key))
				},
				"false_hardware": func(key string) []byte {
					return ethernet(hardware, nft.Hardware{2, 9, 9, 9, 9, 9}, unix.ETH_P_IP, h4.datagram(1, 2, key))
				},
				"experimental": func(key string) []byte { return ethernet(hardware, a.hardware, ethLab, []byte(key)) },
				"vlan": func(key string) []byte {
					return tagged(ethernet(hardware, a.hardware, unix.ETH_P_IP, h4.datagram(1, 2, key)), ethVLAN, 1)
				},
				"arp_like": func(key string) []byte {
					return ethernet(hardware, a.hardware, unix.ETH_P_ARP, append(arpPacket(1, a.hardware, a.ip4, nft.Hardware{}, to4), key...))
				},
				"to_all": func(key string) []byte { return ethernet(broadcast, a.hardware, ethLab, []byte(key)) },
			} {
				key := l.token()
				got := l.where(t, "a", []byte(key), frame(key))
				if got != "" {
					t.Errorf("%s to %s as %s before there are rules: reaches %q", kind, to, from, got)
				}
			}
		}
	}
	if err := ping(l.containers["a"].Namespace, gateway.ip4, silence); err == nil {
		t.Error("the host answers a container without rules")
	}
	c, err := l.guard.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if c.Unmarked.Packets == 0 {
		t.Error("nothing is counted as unmarked")
	}

	l.install(t, "a", phaseOf(t, "allowlist", "198.51.100.3", "2001:db8:1::3"))
	for _, to := range []netip.Addr{l.containers["b"].ip4, l.containers["b"].ip6} {
		c, err := dial(l.containers["a"].Namespace, "tcp", netip.AddrPortFrom(to, 80).String(), patience)
		if err != nil {
			t.Errorf("to %v with rules: %v", to, err)
			continue
		}
		c.Close()
	}
	for _, w := range l.waysIn() {
		if w.name == "outside_published" || w.name == "sibling_published" {
			continue
		}
		for _, to := range w.to {
			c, err := dial(w.from, "tcp", to.String(), patience)
			if err != nil {
				t.Errorf("to %v from %s: %v", to, w.name, err)
				continue
			}
			c.Close()
		}
	}

	if err := l.port("a").Remove(); err != nil {
		t.Fatal(err)
	}
	key := l.token()
	if got := l.where(t, "a", []byte(key), l.fromA(remote4, ip{from: l.containers["a"].ip4, to: remote4}.datagram(1, 2, key))); got != "" {
		t.Errorf("without rules again, a datagram reaches %q", got)
	}
}

// The host does not take ARP of containers without rules: they could claim an address that is to be given to another.
func TestManagedNetworkHasNoARP(t *testing.T) {
	l := newLab(t, "abs")
	if err := l.guard.AddBridge(labBridge, true); err != nil {
		t.Fatal(err)
	}
	a, free := l.containers["a"], netip.MustParseAddr("198.51.100.99")
	h := l.host.Handle(t)
	learned := func() bool {
		t.Helper()
		link, err := h.LinkByName(labBridge)
		if err != nil {
			t.Fatal(err)
		}
		list, err := h.NeighList(link.Attrs().Index, unix.AF_INET)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range list {
			if n.IP.Equal(free.AsSlice()) {
				return true
			}
		}
		return false
	}
	ask := func() {
		l.install(t, "s", phaseOf(t, "public"))
		claim := arpPacket(1, a.hardware, free, nft.Hardware{}, gateway.ip4)
		l.where(t, "a", claim, ethernet(broadcast, a.hardware, unix.ETH_P_ARP, claim))
	}
	ask()
	if learned() {
		t.Error("the host has learned an address from a container without rules")
	}
	if err := l.guard.AddBridge(labBridge, false); err != nil {
		t.Fatal(err)
	}
	ask()
	if !learned() {
		t.Error("the host has not learned the address without rules: the test shows nothing")
	}
}

// The bits of the mark are the guard's, and no others are.
func TestMarkLeavesOtherBitsAlone(t *testing.T) {
	l := newLab(t, "abs")
	l.install(t, "a", phaseOf(t, "public"))
	l.nft(t, `
table netdev before { chain ingress { type filter hook ingress device "veth-a" priority -600; policy accept; meta mark set 0xffffffff; }; }
table inet after {
	counter kept { }
	counter changed { }
	chain prerouting {
		type filter hook prerouting priority -140; policy accept;
		udp sport 4321 meta mark 0xffffcfff counter name "kept"
		udp sport 4321 meta mark != 0xffffcfff counter name "changed"
	}
}`, "-f", "-")
	for _, to := range []netip.Addr{remote4, l.containers["b"].ip4} {
		key := l.token()
		if got := l.where(t, "a", []byte(key), l.fromA(to, ip{from: l.containers["a"].ip4, to: to}.datagram(4321, 2000, key))); got == "" {
			t.Errorf("a datagram to %v does not arrive", to)
		}
	}
	list := l.nft(t, "", "list", "table", "inet", "after")
	if !strings.Contains(list, "counter kept {\n\t\tpackets 2 ") || !strings.Contains(list, "counter changed {\n\t\tpackets 0 ") {
		t.Errorf("the mark is not the one that it was:\n%s", list)
	}
}

// Only bridges that are looked after are judged: a mark of the same bits means nothing elsewhere, and what comes from
// other bridges without a mark is no business of the guard.
func TestOtherBridgesAreLeftAlone(t *testing.T) {
	l := newLab(t, "abs")
	l.install(t, "b", phaseXY(t))
	if err := l.guard.RemoveBridge(labBridge); err == nil {
		t.Error("a bridge is left alone while a port has rules")
	}
	if err := errors.Join(l.port("b").Remove(), l.guard.RemoveBridge(labBridge)); err != nil {
		t.Fatal(err)
	}
	if err := l.port("b").Install(l.spec(t, "b", phaseXY(t)), policy.Baseline); !errors.Is(err, errBridge) {
		t.Errorf("rules on a bridge that nobody looks after: %v", err)
	}
	for _, name := range []string{"", "sixteen_letters_"} {
		if err := l.guard.AddBridge(name, false); err == nil || errors.Is(err, ErrNoBridge) {
			t.Errorf("bridge %q: %v", name, err)
		}
	}
	l.nft(t, `table netdev other { chain ingress { type filter hook ingress device "veth-a" priority 0; policy accept; meta mark set 0x2000; }; }`, "-f", "-")
	key := l.token()
	if got := l.where(t, "a", []byte(key), l.fromA(remote4, ip{from: l.containers["a"].ip4, to: remote4}.datagram(1, 2, key))); got != "host outside" {
		t.Errorf("a datagram with a mark of somebody else reaches %q", got)
	}
	if err := l.guard.AddBridge(labBridge, false); err != nil {
		t.Fatal(err)
	}
	key = l.token()
	if got := l.where(t, "a", []byte(key), l.fromA(remote4, ip{from: l.containers["a"].ip4, to: remote4}.datagram(1, 2, key))); got != "" {
		t.Errorf("the mark means nothing on a bridge that is looked after: reaches %q", got)
	}
}

// A bridge calls the rules for what it passes on because its own attribute says so, and no other bridge does.
func TestBridgeCallsTheRules(t *testing.T) {
	l := newLab(t, "abs")
	a, b := l.containers["a"], l.containers["b"]
	if got := callsHooks(t, l.host, labBridge); got != [2]byte{1, 1} {
		t.Errorf("nf_call_iptables and nf_call_ip6tables are %v", got)
	}
	l.host.Run(t, func() error {
		for _, name := range bridgeSysctls[:2] {
			value, err := os.ReadFile(filepath.Join("/proc/sys/net/bridge", name))
			if err != nil {
				return err
			}
			if strings.TrimSpace(string(value)) != "0" {
				t.Errorf("%s is %s", name, value)
			}
		}
		return nil
	})
	if err := l.guard.AddBridge("br-absent", false); !errors.Is(err, ErrNoBridge) {
		t.Errorf("a bridge that is not there: %v", err)
	}
	if err := l.guard.AddBridge("up0", false); !errors.Is(err, ErrNoBridge) {
		t.Errorf("what is no bridge: %v", err)
	}

	// What may be a reply is judged by conntrack, which does not see it where the bridge does not call the rules. Then
	// nothing passes.
	l.install(t, "a", phaseOf(t, "no-network"))
	setHooks(t, l.host, labBridge, 0)
	for _, to := range []netip.Addr{b.ip4, b.ip6} {
		h := ip{from: a.ip4, to: to}
		if to.Is6() {
			h.from = a.ip6
		}
		before, key := l.counters(t, "a")[unjudgedCount].Packets, l.token()
		if got := l.where(t, "a", []byte(key), l.fromA(to, h.segment(1, 2, ack, 0, key))); got != "" {
			t.Errorf("where the rules are not called a segment to %v reaches %q", to, got)
		}
		if after := l.counters(t, "a")[unjudgedCount].Packets; after == before {
			t.Errorf("a segment to %v is not counted as unjudged", to)
		}
	}
}

// callsHooks reads the attributes of a bridge.
func callsHooks(t testing.TB, ns *netnstest.Namespace, name string) (values [2]byte) {
	t.Helper()
	ns.Run(t, func() error {
		index, err := netInterface(name)
		if err != nil {
			return err
		}
		r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
		m := nl.NewIfInfomsg(unix.AF_UNSPEC)
		m.Index = int32(index)
		r.AddData(m)
		answers, err := r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if err != nil || len(answers) != 1 {
			return fmt.Errorf("%d answers: %w", len(answers), err)
		}
		data, err := nested(answers[0][unix.SizeofIfInfomsg:], unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA)
		if err != nil {
			return err
		}
		for i, kind := range []uint16{nl.IFLA_BR_NF_CALL_IPTABLES, nl.IFLA_BR_NF_CALL_IP6TABLES} {
			value, err := nested(data, kind)
			if err != nil {
				return err
			}
			values[i] = value[0]
		}
		return nil
	})
	return values
}

// nested finds an attribute in one in one.
func nested(b []byte, path ...uint16) ([]byte, error) {
	for _, want := range path {
		list, err := nl.ParseRouteAttr(b)
		if err != nil {
			return nil, err
		}
		b = nil
		for _, a := range list {
			if a.Attr.Type&^unix.NLA_F_NESTED == want {
				b = a.Value
			}
		}
		if b == nil {
			return nil, fmt.Errorf("no attribute %d", want)
		}
	}
	return b, nil
}

func setHooks(t testing.TB, ns *netnstest.Namespace, name string, value byte) {
	t.Helper()
	ns.Run(t, func() error {
		index, err := netInterface(name)
		if err != nil {
			return err
		}
		r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
		m := nl.NewIfInfomsg(unix.AF_UNSPEC)
		m.Index = int32(index)
		r.AddData(m)
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
		data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
		data.AddRtAttr(nl.IFLA_BR_NF_CALL_IPTABLES, []byte{value})
		data.AddRtAttr(nl.IFLA_BR_NF_CALL_IP6TABLES, []byte{value})
		r.AddData(info)
		_, err = r.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}

// The module br_netfilter comes with its sysctls set. Who loads it clears them; who finds it leaves them alone.
func TestLoadBridgeNetfilter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bridge")
	set := func(value string) error {
		err := os.Mkdir(dir, 0o777)
		for _, name := range bridgeSysctls {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(value), 0o666))
		}
		return err
	}
	check := func(want string) {
		t.Helper()
		for _, name := range bridgeSysctls {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
				t.Errorf("%s is %q (%v), want %q", name, got, err, want)
			}
		}
	}
	failure := errors.New("not found in directory")
	if err := loadBridgeNetfilter(dir, func() error { return failure }); !errors.Is(err, failure) || !strings.Contains(err.Error(), "br_netfilter") {
		t.Errorf("without the module: %v", err)
	}
	if err := loadBridgeNetfilter(dir, func() error { return nil }); err == nil {
		t.Error("no error though the module has no sysctls")
	}
	if err := loadBridgeNetfilter(dir, func() error { return set("1") }); err != nil {
		t.Error(err)
	}
	check("0")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := set("1"); err != nil {
		t.Fatal(err)
	}
	if err := loadBridgeNetfilter(dir, func() error { return failure }); err != nil {
		t.Error(err)
	}
	check("1")
}

// One process after another looks after a host.
func TestOpenFindsWhatWasThere(t *testing.T) {
	l := newLab(t, "abs")
	l.install(t, "a", phaseOf(t, "allowlist", "192.0.2.5"))
	if err := l.guard.AddBridge(labBridge, true); err != nil {
		t.Fatal(err)
	}
	before := l.nft(t, "", "list", "ruleset")
	if err := l.guard.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Mark: 0x30, In: l.host.Do}); err == nil {
		t.Error("another mark is taken while there are ports with rules")
	}
	l.guard = l.openGuard(t)
	if diff := cmp.Diff(blocks(before), blocks(l.nft(t, "", "list", "ruleset"))); diff != "" {
		t.Errorf("opening has changed the rules:\n%s", diff)
	}
	if got := l.guard.Found(); len(got) != 1 || got[0] != "veth-a" {
		t.Errorf("found %v", got)
	}
	port := l.port("a")
	if err := port.Switch(policy.Run); !errors.Is(err, errNotInstalled) {
		t.Errorf("a switch before Install: %v", err)
	}
	l.install(t, "a", phaseOf(t, "allowlist", "192.0.2.5"))
	if got := l.guard.Found(); len(got) != 0 {
		t.Errorf("found %v after Install", got)
	}
	after := l.nft(t, "", "list", "ruleset")
	if containsAny(after, groupID(1).Name+" ") || !strings.Contains(after, groupID(2).Name) {
		t.Errorf("rules of the process before are left:\n%s", after)
	}
	p := l.port("a")
	if err := l.guard.Clear(); err != nil {
		t.Fatal(err)
	}
	if err := p.Quarantine(); !errors.Is(err, errRemoved) {
		t.Errorf("after Clear: %v", err)
	}
	if after := l.nft(t, "", "list", "ruleset"); after != "" {
		t.Errorf("rules are left:\n%s", after)
	}
}
