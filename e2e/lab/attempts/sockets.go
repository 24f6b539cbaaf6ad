package attempts

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"sluice/e2e/lab/tap"
)

// sockets tries what any program can, and what a program can that may open raw sockets (I-09, I-44, I-45, I-46,
// I-47, I-48, I-49, I-50, I-55).
func (m *maker) sockets() {
	ping := []string{"ip4:icmp", "ip6:ipv6-icmp"}[m.family]
	for to, name := range map[Target]string{outside: "outside", allowed: "allowed", denied: "denied", sibling: "sibling", host: "host"} {
		m.tcp("tcp-"+name, to, connection, "tcp", netip.AddrPortFrom(m.addressOf(to), port()))
		m.add("udp-"+name, to, datagrams, "udp", netip.AddrPortFrom(m.addressOf(to), port()), nil)
		a := m.addressOf(to)
		m.add("ping-"+name, to, datagrams, ping, a, func(token []byte) []byte {
			h := m.header(a)
			return h.message(map[int]byte{0: 8, 1: 128}[m.family], 0, echoBody(token))
		})
	}
	whom := host
	if m.Unrouted {
		whom = nobody
	}
	other := m.Host[m.family]
	m.tcp("tcp-other-address-of-host", whom, connection, "tcp", netip.AddrPortFrom(other, port())).Blind = m.Unrouted
	m.add("udp-other-address-of-host", whom, datagrams, "udp", netip.AddrPortFrom(other, port()), nil).Blind = m.Unrouted
	for _, p := range []uint16{22, 25, 80, 443, 853, 2375, 8443} {
		m.tcp("tcp-port-"+strconv.Itoa(int(p)), outside, connection, "tcp", netip.AddrPortFrom(m.stranger(), p))
	}
	m.add("udp-853", outside, datagrams, "udp", netip.AddrPortFrom(m.stranger(), 853), nil)
	m.add("udp-443", outside, quic, "udp", netip.AddrPortFrom(m.stranger(), 443), nil)
	m.tcp("mptcp", outside, connection, "mptcp", netip.AddrPortFrom(m.stranger(), port()))

	m.forbiddenAddresses()

	const harbor = 114514 // with which Harbor's own sidecar lets a socket out
	for _, mark := range []int{1, 0x1000, 0x2000, 0x3000, harbor, -1} {
		a := m.add(fmt.Sprintf("udp-mark-%x", mark), outside, datagrams, "udp", netip.AddrPortFrom(m.stranger(), port()), nil)
		a.Mark = mark
		a = m.tcp(fmt.Sprintf("tcp-mark-%x", mark), outside, connection, "tcp", netip.AddrPortFrom(m.stranger(), port()))
		a.Mark = mark
	}
	a := m.add("udp-bound-to-device", outside, datagrams, "udp", netip.AddrPortFrom(m.stranger(), port()), nil)
	a.Device, a.Blind = m.link.Device, len(m.Links) > 1 // the default route leads by one of them
	// What is bound to an interface does not hear the proxy, whose answers come by the loopback.
	a = m.tcp("tcp-bound-to-device", outside, stray, "tcp", netip.AddrPortFrom(m.stranger(), port()))
	a.Device, a.Blind = m.link.Device, len(m.Links) > 1
	a = m.add("udp-bound-to-loopback", nobody, datagrams, "udp", netip.AddrPortFrom(m.stranger(), port()), nil)
	a.Device, a.Blind = "lo", true
	for name, from := range map[string]netip.Addr{"sibling": m.link.Peer[m.family], "free": m.link.Free[m.family], "host": m.link.Gateway[m.family]} {
		a := m.add("udp-as-"+name, nobody, datagrams, "udp", netip.AddrPortFrom(m.stranger(), port()), nil)
		a.From, a.Blind = from.String(), m.martian(name)
	}

	// Other protocols over IP: IGMP, IP in IP, DCCP, IPv6 in IPv4, GRE, ESP, AH, SCTP, UDP-Lite, and what is none.
	for _, protocol := range []int{2, 4, 33, 41, 47, 50, 51, 59, 132, 136, 253} {
		a := m.add(fmt.Sprintf("protocol-%d", protocol), nobody, datagrams, fmt.Sprintf("ip%d:%d", 4+2*m.family, protocol), m.stranger(),
			func(token []byte) []byte { return append(make([]byte, 8), token...) })
		a.Blind = m.family == 1 && protocol == 59 // ends at the first router
	}
}

// tcp adds an attempt whose first packet has no room for a token.
func (m *maker) tcp(name string, to Target, by Way, network string, dest netip.AddrPort) *Attempt {
	a := m.add(name, to, by, network, dest, noText)
	a.Flow = tap.Flow("tcp", dest)
	return a
}

// noText is what cannot be the beginning of a text, for which the proxy would wait.
func noText(token []byte) []byte { return append([]byte{0}, token...) }

// martian reports whether the host drops what comes from this source by itself, RFC 1812 §5.3.7.
func (m *maker) martian(source string) bool {
	return source == "unspecified" || source == "stranger" || m.family == 0 && source == "host"
}

// forbiddenAddresses are those that no policy opens by accident: the floor, addresses that hide others, other networks.
func (m *maker) forbiddenAddresses() {
	scoped := func(a netip.Addr) netip.Addr { return a.WithZone(m.link.Device) }
	floor := [2][]string{
		{"169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "224.0.0.251", "239.1.2.3", "255.255.255.255"},
		{"fd00:ec2::254", "ff0e::1234"},
	}
	for _, text := range floor[m.family] {
		a := netip.MustParseAddr(text)
		m.add("udp-"+text, nobody, datagrams, "udp", netip.AddrPortFrom(a, port()), nil).Blind = a.IsMulticast() && m.family == 1
		if !a.IsMulticast() && text != "255.255.255.255" {
			m.tcp("tcp-"+text, nobody, connection, "tcp", netip.AddrPortFrom(a, port()))
		}
	}
	for _, a := range []netip.Addr{m.Foreign[m.family], m.Sidecar[m.family]} {
		if a.IsValid() {
			// The engine itself keeps its networks apart.
			m.tcp("tcp-"+a.String(), nobody, connection, "tcp", netip.AddrPortFrom(a, port())).Blind = true
			m.add("udp-"+a.String(), nobody, datagrams, "udp", netip.AddrPortFrom(a, port()), nil).Blind = true
		}
	}
	for _, a := range []netip.Addr{m.Host[m.family], m.link.Gateway[m.family]} {
		if m.Closed == 0 {
			break
		}
		to := netip.AddrPortFrom(a, m.Closed)
		m.add("tcp-closed-"+a.String(), nobody, connection, "tcp", to, func(token []byte) []byte {
			return fmt.Appendf(nil, "GET /%s HTTP/1.0\r\n\r\n", token)
		})
	}
	if m.family == 0 {
		return
	}
	m.add("udp-all-nodes", nobody, datagrams, "udp", netip.AddrPortFrom(scoped(netip.MustParseAddr("ff02::1")), port()), nil)
	gateway := scoped(m.link.GatewayLinkLocal)
	m.add("udp-link-local-of-host", nobody, datagrams, "udp", netip.AddrPortFrom(gateway, port()), nil)
	a := m.tcp("tcp-link-local-of-host", nobody, connection, "tcp", netip.AddrPortFrom(gateway, port()))
	a.Flow = tap.Flow("tcp", netip.AddrPortFrom(m.link.GatewayLinkLocal, netip.MustParseAddrPort(a.To).Port()))
	v4 := deniedAddresses[0].As4()
	for name, hiding := range map[string]netip.Addr{
		"nat64": hide("64:ff9b::", 12, v4), "local-nat64": hide("64:ff9b:1::", 12, v4), "6to4": hide("2002::", 2, v4),
		"nat64-of-metadata": hide("64:ff9b::", 12, [4]byte{169, 254, 169, 254}), "6to4-of-metadata": hide("2002::", 2, [4]byte{169, 254, 169, 254}),
	} {
		to := outside // a policy that opens everything opens this too
		if strings.HasSuffix(name, "metadata") {
			to = nobody
		}
		by := stray
		if to == nobody {
			by = datagrams
		}
		m.add("udp-"+name, to, by, "udp", netip.AddrPortFrom(hiding, port()), nil)
		m.tcp("tcp-"+name, to, by, "tcp", netip.AddrPortFrom(hiding, port()))
	}
}

// hide puts an IPv4 address into an IPv6 one, at a byte.
func hide(prefix string, at int, v4 [4]byte) netip.Addr {
	a := netip.MustParseAddr(prefix).As16()
	copy(a[at:], v4[:])
	return netip.AddrFrom16(a)
}
