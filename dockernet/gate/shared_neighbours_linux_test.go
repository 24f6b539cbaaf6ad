package gate

import (
	"fmt"
	"net/netip"
	"testing"

	"sluice/policy"
)

// The kernel alone asks and answers for neighbours of IPv6: a raw socket of the workload's, whose messages are like the
// kernel's, takes nobody's address over and tells nobody anything.
func TestSharedNeighbours(t *testing.T) {
	l := newLab(t, false) // where neighbours have to be found
	own := NewOwn(l.workload.Namespace)
	t.Cleanup(own.Close)
	type message struct {
		name string
		send func(text string) error
	}
	var all []message
	for name, from := range map[string]netip.Addr{"own": own6, "neighbour": sibling6} {
		for to, address := range map[string]netip.Addr{"neighbour": sibling6, "all": netip.MustParseAddr("ff02::1"), "link_local": netip.MustParseAddr("fe80::1:1")} {
			for what, kind := range map[string]byte{"asks": 135, "answers": 136} {
				all = append(all, message{fmt.Sprintf("as_%s_%s_%s", name, what, to), func(text string) error {
					body := append([]byte{0x20, 0, 0, 0}, sibling6.AsSlice()...)
					body = append(body, fmt.Sprintf("%-16s", text)...)
					return sendRaw(icmp6Message(ip6{from: from, to: address, hops: 255}, kind, body), nil)
				}})
			}
		}
	}
	for name, mode := range map[string]string{"no_network": "no-network", "public": "public"} {
		p := phaseOf(t, mode)
		l.install(t, l.shared(t, l.listen(t), p, p, p))
		tap := newTap(t, l.outside, "eth0")
		for i, m := range all {
			l.workload.Run(t, func() error { _ = m.send(leak(i)); return nil })
		}
		l.end(t, own)
		for i := range leaked(tap.until(t, "the end")) {
			t.Errorf("%s: came out: %s", name, all[i].name)
		}
	}
	p := phaseOf(t, "public")
	l.install(t, l.shared(t, l.listen(t), p, p, p))
	if got := l.probe(t, "tcp", "["+sibling6.String()+"]:80"); got != "direct" {
		t.Errorf("a neighbour: %s", got)
	}
	// Where a guard stands behind the gate, it judges them.
	s := l.spec(t, l.listen(t), p, p, p)
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	tap := newTap(t, l.outside, "eth0")
	for i, m := range all {
		l.workload.Run(t, func() error { _ = m.send(leak(i)); return nil })
	}
	l.outside.Run(t, func() error { return sendUDP(netip.AddrPortFrom(own4, 9), "")("the end") })
	if came := leaked(tap.until(t, "the end")); len(came) == 0 {
		t.Error("nothing comes out even then, so this shows nothing")
	}
}
