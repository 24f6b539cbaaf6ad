package attempts

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

// packets tries whole IP packets, which the gate sees (I-47, and I-41 for their sources).
func (m *maker) packets() {
	for to, name := range map[Target]string{outside: "outside", denied: "denied", sibling: "sibling", host: "host"} {
		h := m.header(m.addressOf(to))
		if (to == outside || to == denied) && m.link != &m.Links[0] {
			to = nobody // the route leads by another network, where the source is false
		}
		m.packet("syn-"+name, to, segments, h, func(token []byte) []byte { return h.tcp(port(), synFlag, token) })
		m.packet("ack-"+name, to, stray, h, func(token []byte) []byte { return h.tcp(port(), ackFlag, token) })
		m.packet("reset-"+name, to, stray, h, func(token []byte) []byte { return h.tcp(port(), rstFlag, token) })
		m.packet("udp-"+name, to, datagrams, h, func(token []byte) []byte { return h.udp(port(), token) })
		m.packet("ping-"+name, to, datagrams, h, h.echo)
	}
	for name, from := range map[string]netip.Addr{"sibling": m.link.Peer[m.family], "free": m.link.Free[m.family], "host": m.link.Gateway[m.family]} {
		h := header{from: from, to: m.stranger()}
		m.packet("udp-as-"+name, nobody, datagrams, h, func(token []byte) []byte { return h.udp(port(), token) }).Blind = m.martian(name)
	}
	h := m.header(m.stranger())
	if m.family == 0 {
		for name, options := range map[string][]byte{"record-route": {7, 7, 4, 0, 0, 0, 0, 0}, "source-route": {131, 7, 4, 203, 0, 113, 66, 0}, "padding": {1, 1, 1, 0}} {
			with := h
			with.options = options
			a := m.packet("option-"+name, nobody, datagrams, h, func(token []byte) []byte { return with.udp(port(), token) })
			a.Blind = name == "source-route" // hosts refuse it
		}
		m.fragments(h.to, nobody, datagrams, func(token []byte) []byte { return h.datagram(40000, port(), token) })
	}
}

// packet adds an attempt with a packet by SOCK_RAW.
func (m *maker) packet(name string, to Target, by Way, h header, make func(token []byte) []byte) *Attempt {
	return m.add("raw/"+name, to, by, "packet", h.to, make)
}

// fragments adds an attempt with a packet in two pieces, which nobody in the container puts together again. The token
// is in the second one.
func (m *maker) fragments(to netip.Addr, of Target, by Way, make func(token []byte) []byte) *Attempt {
	a := m.add("raw/fragments-"+to.String(), of, by, "packet", to, make)
	h := m.header(to)
	if to.IsLoopback() {
		h.from = netip.MustParseAddr("127.0.0.1")
	}
	h.protocol = udp
	h.id = 4712
	whole := a.Send[0]
	first, second := h, h
	first.fragment, second.fragment = 0x2000, 1
	a.Send = [][]byte{first.packet(whole[:8]), second.packet(whole[8:])}
	a.NoDefrag = true
	return a
}

// frames tries whole Ethernet frames, which only the guard sees (I-41, I-43, I-47).
func (m *maker) frames() {
	kind := []uint16{typeIPv4, typeIPv6}[m.family]
	l := m.link
	frame := func(name string, to Target, by Way, hardware net.HardwareAddr, make func(token []byte) []byte) *Attempt {
		a := m.add("frame/"+name, to, by, "frame", "", func(token []byte) []byte { return ethernet(hardware, l.Hardware, kind, make(token)) })
		a.Device = l.Device
		return a
	}
	for to, name := range map[Target]string{outside: "outside", allowed: "allowed", denied: "denied", sibling: "sibling", host: "host"} {
		hardware := l.GatewayHardware
		if to == sibling {
			hardware = l.PeerHardware
		}
		h := m.header(m.addressOf(to))
		frame("syn-"+name, to, segments, hardware, func(token []byte) []byte { return h.tcp(port(), synFlag, token) })
		frame("udp-"+name, to, datagrams, hardware, func(token []byte) []byte { return h.udp(port(), token) })
		frame("udp-past-queue-"+name, to, datagrams, hardware, func(token []byte) []byte { return h.udp(port(), token) }).Bypass = true
		for name2, bypass := range map[string]bool{"udp-by-ring-": false, "udp-by-ring-past-queue-": true} {
			a := frame(name2+name, to, datagrams, hardware, func(token []byte) []byte { return h.udp(port(), token) })
			a.Ring, a.Bypass = true, bypass
		}
		frame("ping-"+name, to, datagrams, hardware, h.echo)
		for name2, flags := range map[string]byte{"ack": ackFlag, "fin": finFlag | ackFlag, "syn-ack": synFlag | ackFlag, "reset": rstFlag, "no-flags": 0, "all-flags": 63} {
			frame(name2+"-"+name, to, stray, hardware, func(token []byte) []byte { return h.tcp(port(), flags, token) }).Blind = true
		}
		kinds := [][]byte{{0, 3, 5}, {129, 1, 137}}[m.family] // echo reply, unreachable, redirect
		frame("echo-reply-"+name, to, stray, hardware, func(token []byte) []byte { return h.icmp(kinds[0], 0, echoBody(token)) }).Blind = true
		frame("unreachable-"+name, to, stray, hardware, func(token []byte) []byte {
			inner := header{from: h.to, to: h.from}.udp(port(), token)
			return h.icmp(kinds[1], 1, append(make4(), inner...))
		}).Blind = true
		frame("redirect-"+name, nobody, stray, hardware, func(token []byte) []byte { return h.icmp(kinds[2], 1, append(make4(), token...)) }).Blind = true
		frame("port-53-"+name, nobody, datagrams, hardware, func(token []byte) []byte { return h.udp(53, query(string(token)+".any.test", dns.TypeA)) }).Blind = true
		frame("tcp-port-53-"+name, nobody, segments, hardware, func(token []byte) []byte { return h.tcp(53, synFlag, token) }).Blind = true
	}
	for name, from := range map[string]netip.Addr{
		"sibling": l.Peer[m.family], "free": l.Free[m.family], "host": l.Gateway[m.family], "stranger": m.stranger(),
		"unspecified": []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[m.family],
	} {
		h := header{from: from, to: m.stranger()}
		frame("as-"+name, nobody, datagrams, l.GatewayHardware, func(token []byte) []byte { return h.udp(port(), token) }).Blind = m.martian(name)
		h = header{from: from, to: l.Peer[m.family]}
		frame("to-sibling-as-"+name, nobody, datagrams, l.PeerHardware, func(token []byte) []byte { return h.udp(port(), token) })
	}
	// The sibling's port by another hardware address, or the host's, or none that there is.
	h, hs := m.header(m.stranger()), m.header(l.Peer[m.family])
	forged := func(name string, from net.HardwareAddr) {
		a := m.add("frame/hardware-of-"+name, nobody, datagrams, "frame", "", func(token []byte) []byte {
			return ethernet(l.PeerHardware, from, kind, hs.udp(port(), token))
		})
		a.Device = l.Device
	}
	forged("nobody", net.HardwareAddr{2, 0, 0, 0, 0, 1})
	for name, hardware := range map[string]net.HardwareAddr{"sibling": l.PeerHardware, "everybody": {255, 255, 255, 255, 255, 255}, "group": {1, 0, 0x5e, 0, 0, 1}} {
		frame("outside-by-"+name, nobody, datagrams, hardware, func(token []byte) []byte { return h.udp(port(), token) })
	}
	for name, protocol := range map[string]byte{"sctp": 132, "gre": 47, "ipip": 4, "6in4": 41, "udplite": 136, "experiment": 253} {
		frame(name, nobody, datagrams, l.GatewayHardware, func(token []byte) []byte { return h.with(protocol).packet(append(make4(), token...)) })
		frame(name+"-to-sibling", nobody, datagrams, l.PeerHardware, func(token []byte) []byte { return hs.with(protocol).packet(append(make4(), token...)) })
	}
	// Frames that are no IP, or hide it.
	raw := func(name string, kind uint16, make func(token []byte) []byte) {
		a := m.add("frame/"+name, nobody, datagrams, "frame", "", func(token []byte) []byte {
			b := make(token)
			if kind == 0 {
				return ethernet(l.PeerHardware, l.Hardware, uint16(len(b)), b)
			}
			return ethernet(l.PeerHardware, l.Hardware, kind, b)
		})
		a.Device = l.Device
	}
	whole := func(token []byte) []byte { return hs.udp(port(), token) }
	acknowledge := func(token []byte) []byte { return hs.tcp(port(), ackFlag, token) }
	for name, make := range map[string]func([]byte) []byte{"udp": whole, "ack": acknowledge} {
		raw("vlan-5-"+name, typeVLAN, func(token []byte) []byte { return tagged(5, kind, make(token)) })
		raw("vlan-0-"+name, typeVLAN, func(token []byte) []byte { return tagged(0, kind, make(token)) })
		raw("qinq-"+name, typeQinQ, func(token []byte) []byte { return tagged(5, typeVLAN, tagged(6, kind, make(token))) })
		raw("snap-"+name, 0, func(token []byte) []byte {
			return append(binary.BigEndian.AppendUint16([]byte{0xaa, 0xaa, 3, 0, 0, 0}, kind), make(token)...)
		})
	}
	for _, other := range []uint16{0x8847, 0x8863, 0x8864, 0x88b5, 0x88cc, 0x88e5, 0x9000, 0xffff, 0x0806, 0x8035} {
		raw(fmt.Sprintf("type-%04x", other), other, func(token []byte) []byte { return append(make4(), token...) })
	}
	if m.family == 0 {
		options := h
		options.options = []byte{7, 7, 4, 0, 0, 0, 0, 0}
		frame("option", nobody, datagrams, l.GatewayHardware, func(token []byte) []byte { return options.udp(port(), token) })
		for name, flags := range map[string]uint16{"first-fragment": 0x2000, "later-fragment": 0x0010, "last-of-many": 0x2010} {
			part := hs
			part.fragment = flags
			// A bridge whose packets are filtered waits for the rest.
			frame(name, nobody, datagrams, l.PeerHardware, func(token []byte) []byte { return part.udp(port(), token) }).Blind = true
		}
		pieces := frame("fragments", nobody, datagrams, l.PeerHardware, func(token []byte) []byte { return hs.datagram(40000, port(), token) })
		payload := pieces.Send[0][14:]
		first, second := hs.with(udp), hs.with(udp)
		first.id, second.id = 4711, 4711 // other pieces have none
		first.fragment, second.fragment = 0x2000, 1
		pieces.Send = [][]byte{
			ethernet(l.PeerHardware, l.Hardware, kind, first.packet(payload[:8])), ethernet(l.PeerHardware, l.Hardware, kind, second.packet(payload[8:])),
		}
		return
	}
	for name, next := range map[string]byte{"hop-by-hop": 0, "routing": 43, "fragment": 44, "destination": 60} {
		body := [6]byte{1, 4, 0, 0, 0, 0} // PadN; as a routing header, an unknown type with no segments left
		if next == 44 {
			body = [6]byte{}
		} else if next == 43 {
			body = [6]byte{253, 0, 0, 0, 0, 0}
		}
		to := hs
		to.protocol = next
		frame("extension-"+name, nobody, datagrams, l.PeerHardware, func(token []byte) []byte {
			return to.packet(extension(udp, body, hs.datagram(40000, port(), token)))
		})
		frame("extension-"+name+"-ack", nobody, datagrams, l.PeerHardware, func(token []byte) []byte {
			return to.packet(extension(tcp, body, hs.segment(40000, port(), ackFlag, token)))
		})
	}
}

func make4() []byte { return make([]byte, 4) }
