package guard

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/nft"
)

// eventually waits until f holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func (l *lab) isMute(name string) bool {
	l.guard.sets.Lock()
	defer l.guard.sets.Unlock()
	return l.guard.names[managedPorts][l.containers[name].port()]
}

// heard is who hears a container that has no rules, of whatever it may send.
func (l *lab) heard(t testing.TB, from, to string) string {
	t.Helper()
	a, b := l.containers[from].station, l.containers[to].station
	key := l.token()
	text := []byte(key)
	return l.where(t, from, text,
		ethernet(b.hardware, a.hardware, ethLab, text),
		ethernet(broadcast, a.hardware, ethLab, text),
		ethernet(b.hardware, a.hardware, unix.ETH_P_ARP, append(arpPacket(1, a.hardware, a.ip4, nft.Hardware{}, b.ip4), key...)),
		tagged(ethernet(b.hardware, a.hardware, unix.ETH_P_IP, ip{from: a.ip4, to: b.ip4}.datagram(1, 2, key)), ethVLAN, 3),
		ethernet(b.hardware, a.hardware, uint16(3+len(key)), append([]byte{0x42, 0x42, 3}, key...)),
		ethernet(b.hardware, a.hardware, unix.ETH_P_IP, ip{from: a.ip4, to: b.ip4}.datagram(1, 2, key)),
		ethernet(b.hardware, a.hardware, unix.ETH_P_IPV6, ip{from: a.ip6, to: b.ip6}.datagram(1, 2, key)))
}

// On a managed network two containers without rules do not hear each other either, also if they come later than the
// network.
func TestPortsThatComeLater(t *testing.T) {
	l := newLab(t, "as")
	check(t, l.guard.AddBridge(labBridge, true))
	l.install(t, "s", phaseOf(t, "public"))
	l.addContainer(t, "b", 9)
	if got := l.heard(t, "b", "a"); got == "" {
		t.Error("nobody hears a port that nobody watches: the test shows nothing")
	}
	l.watchGaps(t)
	if got := l.heard(t, "b", "a"); got != "" {
		t.Errorf("%q hear a port that was there when Watch began", got)
	}
	l.addContainer(t, "c", 10)
	eventually(t, "port c is known", func() bool { return l.isMute("c") })
	for _, to := range []string{"a", "b"} {
		if got := l.heard(t, "c", to); got != "" {
			t.Errorf("%q hear a port that came later", got)
		}
	}

	// A name that the network has no more is free for others.
	h := l.host.Handle(t)
	port, err := h.LinkByName("veth-c")
	if err != nil {
		t.Fatal(err)
	}
	check(t, h.LinkSetNoMaster(port))
	eventually(t, "port c is forgotten", func() bool { return !l.isMute("c") })
	bridge, err := h.LinkByName(labBridge)
	if err != nil {
		t.Fatal(err)
	}
	check(t, h.LinkSetMaster(port, bridge))
	eventually(t, "port c is known again", func() bool { return l.isMute("c") })
	check(t, h.LinkDel(port))
	eventually(t, "port c is forgotten for good", func() bool { return !l.isMute("c") })
}

// What ports without rules send does not even tell the bridge where somebody is: it would send there what is for others.
func TestPortsWithoutRulesTakeNobodysPlace(t *testing.T) {
	l := newLab(t, "abs")
	check(t, l.guard.AddBridge(labBridge, true))
	for _, name := range []string{"b", "s"} {
		l.install(t, name, phaseOf(t, "public"))
	}
	a, b := l.containers["a"], l.containers["b"]
	key := l.token()
	frames := [][]byte{ethernet(a.hardware, b.hardware, ethLab, []byte(key))}
	for last := range 64 { // the first 16 are for bridges only
		group := nft.Hardware{0x01, 0x80, 0xc2, 0, 0, byte(last)}
		for _, kind := range []uint16{ethLLDP, unix.ETH_P_IP, unix.ETH_P_IPV6, unix.ETH_P_ARP, 38} {
			frames = append(frames, ethernet(group, b.hardware, kind, []byte(key)))
		}
	}
	l.where(t, "a", []byte(key), frames...)
	s := l.containers["s"]
	key = l.token()
	if got := l.where(t, "s", []byte(key), ethernet(b.hardware, s.hardware, unix.ETH_P_IP, ip{from: s.ip4, to: b.ip4}.datagram(1, 2, key))); got != "b" {
		t.Errorf("what is for b reaches %q", got)
	}
}

// A bridge that comes later, or takes another one's place, is judged like the first.
func TestBridgesThatComeLater(t *testing.T) {
	l := newLab(t, "abs")
	if err := l.guard.AddBridge("br-later", false); !errors.Is(err, ErrNoBridge) {
		t.Fatalf("a bridge that is not there: %v", err)
	}
	check(t, l.guard.AddBridge(labBridge, true))
	l.watchGaps(t)
	h := l.host.Handle(t)
	add := func(name string) netlink.Link {
		t.Helper()
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = name, bridgeA[:]
		check(t, h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
		link, err := h.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	calls := func(name string) func() bool {
		return func() bool { return callsHooks(t, l.host, name) == [2]byte{1, 1} }
	}
	add("br-later")
	eventually(t, "the bridge that came later calls the rules", calls("br-later"))
	add("br-other")

	for round := range 3 {
		bridge, err := h.LinkByName(labBridge)
		if err != nil {
			t.Fatal(err)
		}
		check(t, h.LinkDel(bridge))
		eventually(t, "its ports are forgotten", func() bool { return !l.isMute("a") })
		bridge = add(labBridge)
		for _, c := range l.containers {
			port, err := h.LinkByName(c.port())
			if err != nil {
				t.Fatal(err)
			}
			check(t, h.LinkSetMaster(port, bridge))
		}
		address(t, h, labBridge, "198.51.100.1/24", "2001:db8:1::1/64")
		for _, c := range l.containers {
			neighbourOf(t, h, labBridge, c.ip4, c.hardware[:])
		}
		eventually(t, fmt.Sprintf("bridge %d calls the rules", round), calls(labBridge))
		eventually(t, "its ports are known", func() bool { return l.isMute("a") && l.isMute("b") && l.isMute("s") })
	}
	l.install(t, "s", phaseOf(t, "public"))
	l.watch(t, "host", l.host, labBridge)
	if got := l.heard(t, "a", "b"); got != "" {
		t.Errorf("%q hear a container without rules", got)
	}
	if got := callsHooks(t, l.host, "br-other"); got != [2]byte{0, 0} {
		t.Errorf("nf_call_iptables and nf_call_ip6tables of somebody else's bridge are %v", got)
	}

	setHooks(t, l.host, labBridge, 0)
	eventually(t, "the bridge calls the rules again", calls(labBridge))
}

// A bridge is left as it was found.
func TestBridgeIsLeftAsItWas(t *testing.T) {
	for _, before := range [][2]byte{{0, 0}, {1, 0}, {0, 1}, {1, 1}} {
		for _, how := range []string{"removed", "removed_by_the_next_process", "cleared"} {
			t.Run(fmt.Sprintf("%s_%d%d", how, before[0], before[1]), func(t *testing.T) {
				l := newLab(t, "s")
				check(t, l.guard.RemoveBridge(labBridge))
				l.host.Run(t, func() error {
					b, err := l.guard.bridge(labBridge)
					if err != nil {
						return err
					}
					return l.guard.teach(b, [habits]bool{before[0] == 1, before[1] == 1})
				})
				if got := callsHooks(t, l.host, labBridge); got != before {
					t.Fatalf("before: %v", got)
				}
				passing := func() bool {
					b, err := l.guard.bridge(labBridge)
					check(t, err)
					return b.groups == passesBit
				}
				check(t, l.guard.AddBridge(labBridge, true))
				check(t, l.guard.AddBridge(labBridge, false))
				if passing() {
					t.Error("a bridge that is not managed passes on what it did not before")
				}
				check(t, l.guard.AddBridge(labBridge, true))
				if !passing() {
					t.Error("a managed bridge does not pass on what the rules shall see")
				}
				if got := callsHooks(t, l.host, labBridge); got != [2]byte{1, 1} {
					t.Fatalf("looked after: %v", got)
				}
				if how == "removed_by_the_next_process" {
					check(t, l.guard.Close())
					l.guard = l.openGuard(t)
					check(t, l.guard.AddBridge(labBridge, true))
				}
				if how == "cleared" {
					check(t, l.guard.Clear())
				} else {
					check(t, l.guard.RemoveBridge(labBridge))
				}
				if passing() {
					t.Error("left alone, it passes on what it did not before")
				}
				if got := callsHooks(t, l.host, labBridge); got != before {
					t.Errorf("left alone: %v, want %v", got, before)
				}
			})
		}
	}
}
