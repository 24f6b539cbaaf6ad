package attempts

import (
	"net"
	"net/netip"
)

// neighbours tries ARP and neighbour discovery: to take others' addresses over, and to carry data (I-41, I-43).
func (m *maker) neighbours() {
	l := m.link
	everybody := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	add := func(name string, to net.HardwareAddr, kind uint16, make func(token []byte) []byte) {
		a := m.add("frame/"+name, nobody, datagrams, "frame", "", func(token []byte) []byte { return ethernet(to, l.Hardware, kind, make(token)) })
		a.Device = l.Device
	}
	m.family = 0
	for name, claimed := range map[string]netip.Addr{"sibling": l.Peer[0], "gateway": l.Gateway[0], "free": l.Free[0]} {
		add("arp-announces-"+name, everybody, typeARP, func(token []byte) []byte {
			return append(arp(2, l.Hardware, claimed, everybody, claimed), token...)
		})
		add("arp-answers-for-"+name, l.PeerHardware, typeARP, func(token []byte) []byte {
			return append(arp(2, l.Hardware, claimed, l.PeerHardware, l.Peer[0]), token...)
		})
		add("arp-asks-as-"+name, everybody, typeARP, func(token []byte) []byte {
			return append(arp(1, l.Hardware, claimed, make6(), l.Peer[0]), token...)
		})
	}
	add("arp-with-data", everybody, typeARP, func(token []byte) []byte {
		return append(arp(1, l.Hardware, l.Own[0], make6(), l.Peer[0]), token...)
	})
	add("arp-for-outside", everybody, typeARP, func(token []byte) []byte {
		return append(arp(1, l.Hardware, l.Own[0], make6(), m.stranger()), token...)
	})

	if m.IPv4Only {
		return
	}
	m.family = 1
	nodes, nodesHardware := netip.MustParseAddr("ff02::1"), net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	discover := func(name string, from netip.Addr, kind byte, body func(token []byte) []byte) {
		h := header{from: from, to: nodes, hops: 255}
		add(name, nodesHardware, typeIPv6, func(token []byte) []byte { return h.icmp(kind, 0, body(token)) })
	}
	// An option of a type that nobody knows (RFC 4861 §4.6), with room for the token.
	option := func(token []byte) []byte {
		o := append([]byte{253, 3}, token...)
		return append(o, make([]byte, 24-len(o))...)
	}
	for name, claimed := range map[string]netip.Addr{"sibling": l.Peer[1], "gateway": l.Gateway[1], "gateway-link-local": l.GatewayLinkLocal, "own": l.Own[1]} {
		body := func(token []byte) []byte {
			b := append([]byte{0x20, 0, 0, 0}, claimed.AsSlice()...)
			return append(append(append(b, 2, 1), l.Hardware...), option(token)...)
		}
		discover("neighbour-advertises-"+name, l.Own[1], 136, body)
		if name != "own" {
			discover("neighbour-advertises-as-"+name, claimed, 136, body)
		}
	}
	// By a raw socket too, as long as the kernel's own messages are.
	for name, claimed := range map[string]netip.Addr{"sibling": l.Peer[1], "gateway": l.Gateway[1], "gateway-link-local": l.GatewayLinkLocal} {
		for as, from := range map[string]netip.Addr{"": l.Own[1], "-as-it": claimed} {
			h := header{from: from, to: nodes, hops: 255}
			m.packet("neighbour-advertises-"+name+as, nobody, datagrams, h, func(token []byte) []byte {
				b := append([]byte{0x20, 0, 0, 0}, claimed.AsSlice()...)
				return h.icmp(136, 0, append(b, append(token, make([]byte, 16-len(token))...)...))
			}).Device = l.Device
		}
	}
	router := func(token []byte) []byte {
		return append([]byte{64, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}, option(token)...)
	}
	discover("router-advertises", l.Own[1], 134, router)
	discover("router-advertises-as-gateway", l.GatewayLinkLocal, 134, router)
	discover("router-solicits", l.Own[1], 133, func(token []byte) []byte { return append(make4(), option(token)...) })
	discover("redirects", l.GatewayLinkLocal, 137, func(token []byte) []byte {
		b := append(make4(), l.Own[1].AsSlice()...)
		return append(append(b, webAddresses[1].AsSlice()...), option(token)...)
	})
	discover("group-report", l.Own[1], 143, func(token []byte) []byte { return append(make4(), token...) })
	discover("solicits-with-data", l.Own[1], 135, func(token []byte) []byte {
		return append(append(make4(), l.Peer[1].AsSlice()...), option(token)...)
	})
}

func make6() net.HardwareAddr { return make(net.HardwareAddr, 6) }
