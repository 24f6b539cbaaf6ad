package attempts

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// query is a question of DNS.
func query(name string, kind uint16) []byte {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), kind)
	b, err := q.Pack()
	if err != nil {
		panic(err) // of a name that is ours
	}
	return b
}

// overTCP puts its length before a message, RFC 1035 §4.2.2.
func overTCP(message []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
}

// names tries to carry names out, and to be told of names (I-03, I-04, I-05, I-08).
func (m *maker) names() {
	servers := map[string]netip.AddrPort{
		"public-resolver": netip.MustParseAddrPort([]string{"8.8.8.8:53", "[2001:4860:4860::8888]:53"}[m.family]),
		"upstream":        netip.MustParseAddrPort([]string{"198.51.100.53:53", "[2001:db8::53]:53"}[m.family]),
		"stranger":        netip.AddrPortFrom(m.stranger(), 53),
	}
	blind := map[string]bool{}
	if m.family == 0 {
		servers["local-resolver"], blind["local-resolver"] = netip.MustParseAddrPort("127.0.0.11:53"), !m.Resolver[0].IsValid()
		if m.Resolver[0].IsValid() {
			servers["local-resolver-itself"] = m.Resolver[0]
		}
	}
	for name, server := range servers {
		for kind, ask := range map[string]func(token []byte) []byte{
			"a":    func(token []byte) []byte { return query(string(token)+".any.test", dns.TypeA) },
			"txt":  func(token []byte) []byte { return query(string(token)+".any.test", dns.TypeTXT) },
			"null": func(token []byte) []byte { return query(string(token)+".any.test", dns.TypeNULL) },
			"long": func(token []byte) []byte {
				return query(string(token)+strings.Repeat("."+strings.Repeat("a", 60), 3)+".any.test", dns.TypeA)
			},
		} {
			m.add("dns-"+name+"-udp-"+kind, outside, question, "udp", server, ask).Blind = blind[name]
			if kind != "null" {
				to, by := server, question
				if name == "local-resolver-itself" {
					to, by = m.Resolver[1], stray // to the proxy it is a loopback address like others
				}
				m.add("dns-"+name+"-tcp-"+kind, outside, by, "tcp", to, func(token []byte) []byte { return overTCP(ask(token)) }).Blind = blind[name]
			}
		}
	}
	if m.family == 0 && m.Resolver[0].IsValid() {
		// Past all rules for what leaves: pieces, and frames on the loopback interface.
		resolver := m.Resolver[0]
		m.fragments(resolver.Addr(), outside, stray, func(token []byte) []byte {
			h := header{from: netip.MustParseAddr("127.0.0.1"), to: resolver.Addr()}
			return h.datagram(40000, resolver.Port(), query(string(token)+".any.test", dns.TypeA))
		})
		h := header{from: netip.MustParseAddr("127.0.0.1"), to: resolver.Addr()}
		a := m.add("frame/dns-on-loopback", outside, question, "frame", "", func(token []byte) []byte {
			return ethernet(make6(), make6(), typeIPv4, h.udp(resolver.Port(), query(string(token)+".any.test", dns.TypeA)))
		})
		a.Device, a.Blind = "lo", true // the kernel wants such packets to be its own, RFC 1812 §5.3.7
	}
}
