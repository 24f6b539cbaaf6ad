// Package attempts lists what a container may try against its policy, and says what of it may pass.
//
// Every attempt stands for a way round the policy that some product once left open; docs/cases.md has their numbers.
// Package attack makes them, inside of a container; package tap sees what of them arrives where.
package attempts

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/miekg/dns"

	"sluice/e2e/lab/tap"
)

// Surroundings are what a container may try to reach.
type Surroundings struct {
	Links []Link
	// Internal is set if none of the networks leads outside.
	Internal bool
	// Unrouted is set if no gateway leads even to the host's other addresses, as on internal networks from Docker 28 on.
	Unrouted bool
	// Ringless is set if the engine's seccomp profile refuses io_uring, as from Docker 25 on.
	Ringless bool
	// Resolver is where the engine's resolver listens inside of the container, for UDP and TCP, if there is one.
	Resolver [2]netip.AddrPort
	// Listeners are where the proxy listens inside of the container.
	Listeners []netip.AddrPort
	// Host are addresses of the host on no network of the container's, Foreign those of a container on another network,
	// Sidecar those of the proxy's container; by family, like all pairs here. The latter two may be missing.
	Host, Foreign, Sidecar [2]netip.Addr
	// IPv4Only is set if the container has no addresses of IPv6.
	IPv4Only bool
	// Closed is a port of the controller's on all addresses of the host; 0 if there is no controller.
	Closed uint16
}

// Link is one network of the container.
type Link struct {
	// Device is the interface inside.
	Device                                  string
	Hardware, GatewayHardware, PeerHardware net.HardwareAddr
	// Own, Gateway and Peer, a container beside this one, have addresses there. Free is one that nobody has.
	Own, Gateway, Peer, Free [2]netip.Addr
	GatewayLinkLocal         netip.Addr
	// Broadcast is IPv4's own for the network.
	Broadcast netip.Addr
}

// What was given out so far, in all runs.
var tokens, ports, strangers atomic.Int32

// maker makes the attempts of one run.
type maker struct {
	*Surroundings
	all    []*Attempt
	family int
	link   *Link
}

// All lists the attempts of one run. Each has a token of its own, and what has no room for one has a flow of its own, in
// all runs of this process.
func (s *Surroundings) All() []*Attempt {
	m := &maker{Surroundings: s}
	for i := range s.Links {
		m.link = &s.Links[i]
		for m.family = range s.families() {
			m.sockets()
			m.packets()
			m.frames()
			if i == 0 {
				m.names()
				m.questions()
				m.proxies()
				m.requests()
				m.hellos()
				m.tricks()
			}
		}
	}
	for i := range s.Links { // last, for these may work
		m.link = &s.Links[i]
		m.neighbours()
	}
	return m.all
}

// families is how many there are to be tried.
func (s *Surroundings) families() int {
	if s.IPv4Only {
		return 1
	}
	return 2
}

// Held lists connections that may be open when a policy comes: TCP to the echo port, UDP.
func (s *Surroundings) Held() []*Attempt {
	m := &maker{Surroundings: s, link: &s.Links[0]}
	const echo = 7 // of the lab's internet
	for m.family = range 2 {
		for to, name := range map[Target]string{outside: "outside", allowed: "allowed", denied: "denied", sibling: "sibling", host: "host"} {
			m.add("held-udp-"+name, to, datagrams, "udp", netip.AddrPortFrom(m.addressOf(to), port()), nil)
			if to != sibling && to != host && !s.Internal {
				m.add("held-tcp-"+name, to, connection, "tcp", netip.AddrPortFrom(m.addressOf(to), echo), nil)
			}
		}
	}
	return m.all
}

// Names lists attempts to ask for names.
func (s *Surroundings) Names() []*Attempt {
	m := &maker{Surroundings: s, link: &s.Links[0]}
	for m.family = range 2 {
		m.names()
	}
	return m.all
}

// Beside lists frames by the first link, which the container can send as soon as it has the interface, whatever hardware
// address that has.
func (s *Surroundings) Beside() []*Attempt {
	m := &maker{Surroundings: s, link: &s.Links[0]}
	for m.family = range 2 {
		m.startingFrames(outside, "outside")
		m.startingFrames(host, "host")
	}
	for _, a := range m.all {
		a.OwnHardware = true
	}
	return m.all
}

// Starting lists attempts of a container that has just begun to run: some of each kind. Without its hardware address on
// the first link there are no frames among them.
func (s *Surroundings) Starting() []*Attempt {
	m := &maker{Surroundings: s, link: &s.Links[0]}
	for m.family = range 2 {
		l := m.link
		for to, name := range map[Target]string{outside: "outside", allowed: "allowed", host: "host"} {
			a := m.addressOf(to)
			if !a.IsValid() {
				continue
			}
			m.tcp("tcp-"+name, to, connection, "tcp", netip.AddrPortFrom(a, port()))
			m.add("udp-"+name, to, datagrams, "udp", netip.AddrPortFrom(a, port()), nil)
			if l.Hardware != nil {
				m.startingFrames(to, name)
			}
		}
		m.add("protocol-253", nobody, datagrams, fmt.Sprintf("ip%d:253", 4+2*m.family), m.stranger(), nil)
		resolver := netip.MustParseAddrPort([]string{"8.8.8.8:53", "[2001:4860:4860::8888]:53"}[m.family])
		ask := func(token []byte) []byte { return query(string(token)+".any.test", dns.TypeA) }
		m.add("dns-udp", outside, question, "udp", resolver, ask)
		m.add("dns-tcp", outside, question, "tcp", resolver, func(token []byte) []byte { return overTCP(ask(token)) })
		if m.family == 0 {
			m.add("dns-local", outside, question, "udp", "127.0.0.11:53", ask)
		}
	}
	return m.all
}

// startingFrames are a datagram and the first segment of a connection.
func (m *maker) startingFrames(to Target, name string) {
	l := m.link
	kind := []uint16{typeIPv4, typeIPv6}[m.family]
	h := m.header(m.addressOf(to))
	for what, packet := range map[string]func(uint16, []byte) []byte{
		"udp": h.udp,
		"syn": func(to uint16, token []byte) []byte { return h.tcp(to, synFlag, token) },
	} {
		a := m.add("frame/"+what+"-"+name, to, map[string]Way{"udp": datagrams, "syn": segments}[what], "frame", "", func(token []byte) []byte {
			return ethernet(l.GatewayHardware, l.Hardware, kind, packet(port(), token))
		})
		a.Device = l.Device
	}
}

// add adds an attempt that may not pass by any policy unless to says otherwise.
func (m *maker) add(name string, to Target, by Way, network string, dest any, send func(token []byte) []byte) *Attempt {
	a := &Attempt{Name: fmt.Sprintf("v%d/%s/%s", 4+2*m.family, m.link.Device, name), Whom: to, Way: by}
	a.Token, a.Network, a.To = tap.Token(int(tokens.Add(1))), network, fmt.Sprint(dest)
	if send == nil {
		send = func(token []byte) []byte { return token }
	}
	a.Send = [][]byte{send([]byte(a.Token))}
	// Engine 20.10 drops neighbour discovery on internal networks, for its groups are not in the subnet.
	a.Blind = m.Internal && m.family == 1 && to == sibling && network != "frame"
	m.all = append(m.all, a)
	return a
}

// firstPort is the lowest port that stands for one attempt.
const firstPort = 20000

// Unmistakable reports whether the attempt's flow is no other's, in any run.
func (a *Attempt) Unmistakable() bool {
	to, err := netip.ParseAddrPort(a.To)
	return err == nil && to.Port() >= firstPort
}

// port is one that no other attempt uses.
func port() uint16 { return uint16(firstPort + ports.Add(1)%40000) }

// stranger is an address outside that hardly any other attempt is for.
func (m *maker) stranger() netip.Addr {
	n := strangers.Add(1)
	if m.family == 1 {
		a := netip.MustParseAddr("2001:db8:7::").As16()
		binary.BigEndian.PutUint32(a[12:], uint32(n))
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + n%254)})
}

// addressOf is an address of a target.
func (m *maker) addressOf(to Target) netip.Addr {
	switch to {
	case allowed:
		return allowedAddresses[m.family]
	case denied:
		return deniedAddresses[m.family]
	case sibling:
		return m.link.Peer[m.family]
	case host:
		return m.link.Gateway[m.family]
	}
	return m.stranger()
}

// header is one from the container's own address.
func (m *maker) header(to netip.Addr) header { return header{from: m.link.Own[m.family], to: to} }
