package attempts

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice/e2e/lab/attack"
	"sluice/e2e/lab/tap"
)

// tricks tries what programs hardly ever do with sockets and headers: docs/redteam.md has a row for each.
func (m *maker) tricks() {
	m.oddSockets()
	m.headerOptions()
	m.messages()
	m.extensions()
	m.groupFrames()
}

func word(n int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

// oddSockets are sockets of other kinds, and other ways to use one.
func (m *maker) oddSockets() {
	domain := []int{unix.AF_INET, unix.AF_INET6}[m.family]
	m.add("ring-udp", outside, datagrams, "ring", netip.AddrPortFrom(m.stranger(), port()), nil).Blind = m.Ringless
	socket := func(name string, to Target, by Way, dest netip.AddrPort, domain, kind, protocol int) *attack.Attempt {
		a := m.add(name, to, by, "socket", dest, noText)
		a.Socket = [3]int{domain, kind, protocol}
		if kind == unix.SOCK_STREAM && protocol == 0 {
			a.Flow = tap.Flow("tcp", dest)
		}
		a.Blind = a.Blind || protocol == unix.IPPROTO_SCTP || protocol == unix.IPPROTO_DCCP || protocol == unix.IPPROTO_UDPLITE // not in every kernel
		return &a.Attempt
	}
	to := func() netip.AddrPort { return netip.AddrPortFrom(m.stranger(), port()) }
	if m.family == 0 {
		socket("mapped-udp", outside, datagrams, to(), unix.AF_INET6, unix.SOCK_DGRAM, 0)
		socket("mapped-tcp", outside, connection, to(), unix.AF_INET6, unix.SOCK_STREAM, 0)
		if m.link.Broadcast.IsValid() {
			dest := netip.AddrPortFrom(m.link.Broadcast, port())
			socket("udp-broadcast", nobody, broadcast, dest, domain, unix.SOCK_DGRAM, 0).Options = []attack.Option{{Level: unix.SOL_SOCKET, Name: unix.SO_BROADCAST, Value: word(1)}}
		}
	} else {
		a := m.add("udp-subnet-router", host, datagrams, "udp", netip.AddrPortFrom(netip.PrefixFrom(m.link.Own[1], 64).Masked().Addr(), port()), nil)
		a.Blind = true
	}
	// The first bytes are in the SYN, without a cookie.
	socket("fast-open", outside, connection, to(), domain, unix.SOCK_STREAM, 0).Options = []attack.Option{
		{Level: unix.IPPROTO_TCP, Name: unix.TCP_FASTOPEN_CONNECT, Value: word(1)},
		{Level: unix.IPPROTO_TCP, Name: unix.TCP_FASTOPEN_NO_COOKIE, Value: word(1)},
	}
	// What a whole row of datagrams is cut from after the rules have seen it.
	a := socket("udp-segments", outside, datagrams, to(), domain, unix.SOCK_DGRAM, 0)
	a.Options = []attack.Option{{Level: unix.IPPROTO_UDP, Name: unix.UDP_SEGMENT, Value: word(len(a.Send[0]))}}
	a.Send[0] = append(a.Send[0], a.Send[0]...)
	socket("sctp-socket", nobody, datagrams, to(), domain, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	const dccp = 6 // SOCK_DCCP
	socket("dccp-socket", nobody, datagrams, to(), domain, dccp, unix.IPPROTO_DCCP)
	socket("udplite-socket", nobody, datagrams, to(), domain, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE)
	protocol := []int{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6}[m.family]
	dest := netip.AddrPortFrom(m.stranger(), 0)
	ping := m.add("ping-socket", outside, datagrams, "socket", dest, func(token []byte) []byte {
		return m.header(dest.Addr()).message([]byte{8, 128}[m.family], 0, echoBody(token))
	})
	ping.Socket = [3]int{domain, unix.SOCK_DGRAM, protocol}
}

// headerOptions has the kernel itself put headers in front that name other destinations, or have room for data.
func (m *maker) headerOptions() {
	with := func(name string, dest netip.Addr, level, option int, value func(token []byte) []byte) *Attempt {
		a := m.add("udp-with-"+name, nobody, datagrams, "udp", netip.AddrPortFrom(dest, port()), nil)
		a.Options = []attack.Option{{Level: level, Name: option, Value: value([]byte(a.Token))}}
		return a
	}
	fixed := func(b ...byte) func([]byte) []byte { return func([]byte) []byte { return b } }
	if m.family == 0 {
		by := allowedAddresses[0].As4()
		with("record-route", m.stranger(), unix.IPPROTO_IP, unix.IP_OPTIONS, fixed(7, 7, 4, 0, 0, 0, 0, 0))
		for name, kind := range map[string]byte{"loose-route": 131, "strict-route": 137} { // routers refuse both
			with(name, m.stranger(), unix.IPPROTO_IP, unix.IP_OPTIONS, fixed(kind, 7, 4, by[0], by[1], by[2], by[3], 0)).Blind = true
		}
		return
	}
	// An option that is to be skipped by those who do not know it, RFC 4727 §2.2, around the token.
	options := func(token []byte) []byte {
		b := append([]byte{0, 2, 0x1e, 20}, token...)
		return append(b, make([]byte, 24-len(b))...)
	}
	with("hop-by-hop-options", m.stranger(), unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS, options)
	with("destination-options", m.stranger(), unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, options)
	by := allowedAddresses[1].AsSlice()
	// The allowed address first, then the one that is meant; hosts and routers need not know these.
	with("routing-type-2", m.stranger(), unix.IPPROTO_IPV6, unix.IPV6_RTHDR, fixed(append([]byte{0, 2, 2, 1, 0, 0, 0, 0}, by...)...)).Blind = true
	with("routing-segments", m.stranger(), unix.IPPROTO_IPV6, unix.IPV6_RTHDR,
		fixed(append(append([]byte{0, 4, 4, 1, 1, 0, 0, 0}, make([]byte, 16)...), by...)...)).Blind = true
}

// messages carries data in messages of ICMP of every type.
func (m *maker) messages() {
	kinds := [2]map[string]byte{
		{"echo-reply": 0, "unreachable": 3, "quench": 4, "redirect": 5, "router-search": 10, "exceeded": 11, "parameter": 12, "timestamp": 13,
			"timestamp-reply": 14, "mask": 17, "extended-echo": 42, "experiment": 253},
		{"unreachable": 1, "too-big": 2, "exceeded": 3, "parameter": 4, "echo-reply": 129, "group-query": 130, "group-report": 131, "router-search": 133,
			"router": 134, "redirect": 137, "renumber": 138, "node-information": 139, "group-report-2": 143, "extended-echo": 160, "experiment": 200},
	}
	for name, kind := range kinds[m.family] {
		h := m.header(m.stranger())
		m.packet("message-"+name, outside, stray, h, func(token []byte) []byte {
			inner := header{from: h.to, to: h.from}.udp(port(), token)
			return h.icmp(kind, 0, append(make4(), inner...))
		}).Blind = true // the host's own tracking may drop what answers nothing
	}
}

// extensions tries what stands between the header and a datagram, and ports that are none, on their way through the gate.
func (m *maker) extensions() {
	h := m.header(m.stranger())
	m.packet("udp-port-0", nobody, datagrams, h, func(token []byte) []byte { return h.udp(0, token) })
	m.packet("tcp-port-0", nobody, segments, h, func(token []byte) []byte { return h.tcp(0, synFlag, token) })
	if m.family == 0 {
		return
	}
	for name, next := range map[string]byte{"hop-by-hop": 0, "routing": 43, "fragment": 44, "destination": 60, "mobility": 135, "none": 59} {
		body := map[byte][6]byte{43: {253, 0, 0, 0, 0, 0}, 44: {}}[next]
		if next != 43 && next != 44 {
			body = [6]byte{1, 4} // PadN
		}
		to, by := nobody, datagrams
		if next == 44 {
			to, by = outside, stray // the kernel puts pieces together before any rule, and the whole is judged
		}
		a := m.packet("extension-"+name, to, by, h, func(token []byte) []byte {
			return h.with(next).packet(extension(udp, body, h.datagram(40000, port(), token)))
		})
		a.Blind = next == 0 || next == 59 || next == 135
	}
	// In two pieces: the second has the token, the first the port.
	a := m.packet("fragments", outside, stray, h, func(token []byte) []byte { return h.datagram(40000, port(), token) })
	whole := a.Send[0]
	piece := func(offset uint16, b []byte) []byte {
		return h.with(44).packet(append([]byte{udp, 0, byte(offset >> 8), byte(offset), 0, 0, 18, 104}, b...))
	}
	a.Send = [][]byte{piece(1, whole[:8]), piece(1<<3, whole[8:])}
}

// groupFrames are frames of protocols between switches, to addresses that bridges treat in their own way.
func (m *maker) groupFrames() {
	if m.family == 1 {
		return
	}
	l := m.link
	for name, f := range map[string]struct {
		to   net.HardwareAddr
		kind uint16 // 0 is IEEE 802.3
	}{
		"spanning-tree":  {net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0}, 0},
		"pause":          {net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 1}, 0x8808},
		"link-bundles":   {net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 2}, 0x8809},
		"port-access":    {net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 3}, 0x888e},
		"neighbours":     {net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x0e}, 0x88cc},
		"cisco":          {net.HardwareAddr{1, 0, 0x0c, 0xcc, 0xcc, 0xcc}, 0},
		"time":           {net.HardwareAddr{1, 0x1b, 0x19, 0, 0, 0}, 0x88f7},
		"bridged-in-gre": {l.PeerHardware, 0x6558},
	} {
		a := m.add("frame/"+name, nobody, datagrams, "frame", "", func(token []byte) []byte {
			b := append([]byte{0x42, 0x42, 3}, token...)
			if f.kind != 0 {
				return ethernet(f.to, l.Hardware, f.kind, b)
			}
			return ethernet(f.to, l.Hardware, uint16(len(b)), b)
		})
		a.Device, a.Blind = l.Device, true // bridges keep most to themselves
	}
}
