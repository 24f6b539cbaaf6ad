package gate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/policy"
)

// Addresses of the tests below: the workload's, one that an allowlist names, one that is refused.
var (
	own4, own6       = netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("2001:db8:1::2")
	good4, good6     = netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8:2::5")
	bad4, bad6       = netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("2001:db8:2::200")
	sibling4         = netip.MustParseAddr("198.51.100.20")
	sibling6         = netip.MustParseAddr("2001:db8:1::20")
	broadcast4       = netip.MustParseAddr("198.51.100.255")
	multicast4       = netip.MustParseAddr("224.0.0.5")
	loopbackOther    = netip.MustParseAddr("127.0.0.9")
	mapped6          = netip.MustParseAddr("::ffff:192.0.2.200")
	linkLocalSibling = netip.MustParseAddr("fe80::20")
)

// attempt is a way to get a text out that no rule may let through.
type attempt struct {
	name string
	// public: also where everything but the floor is allowed.
	public bool
	send   func(text string) error
}

func raw4(h ip4, payload func(text string) []byte) func(string) error {
	return func(text string) error { return sendRaw(h.packet(payload(text)), nil) }
}

func raw6(h ip6, payload func(text string) []byte) func(string) error {
	return func(text string) error { return sendRaw(h.packet(payload(text)), nil) }
}

// elsewhere6 sends a packet to where another address would go.
func elsewhere6(route netip.Addr, h ip6) func(string) error {
	return func(text string) error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, h.packet(udp(1234, 80, text)), 0, &unix.SockaddrInet6{Addr: route.As16()})
	}
}

func plainText(text string) []byte { return []byte(text) }

func udpTo(port uint16) func(string) []byte {
	return func(text string) []byte { return udp(1234, port, text) }
}

// sendUDP uses a plain socket, bound to an interface if one is given.
func sendUDP(to netip.AddrPort, device string, prepare ...func(int) error) func(string) error {
	return func(text string) error {
		family, address := socketAddress(to)
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if device != "" {
			if err := unix.BindToDevice(fd, device); err != nil {
				return err
			}
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1); err != nil {
			return err
		}
		for _, p := range prepare {
			if err := p(fd); err != nil {
				return err
			}
		}
		return unix.Sendto(fd, []byte(text), 0, address)
	}
}

func noDefragment(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_NODEFRAG, 1) }

// inTurn sends two packets.
func inTurn(first, second func(string) error) func(string) error {
	return func(text string) error {
		_ = first("first")
		return second(text)
	}
}

func attempts() []attempt {
	port := func(a netip.Addr, p uint16) netip.AddrPort { return netip.AddrPortFrom(a, p) }
	sourceRoute := func(fd int) error {
		// Loose source route by way of an allowed address, RFC 791 §3.1.
		return unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS,
			string(append([]byte{1, 131, 7, 4}, good4.AsSlice()...)))
	}
	// A routing header by way of an allowed address, RFC 8200 §4.4 and RFC 8754 §2.
	segments := func(text string) []byte {
		h := append([]byte{unix.IPPROTO_UDP, 2, 4, 1, 0, 0, 0, 0}, bad6.AsSlice()...)
		return append(h, udp(1234, 80, text)...)
	}
	hopByHop := func(text string) []byte {
		return append([]byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}, udp(1234, 80, text)...)
	}
	neighbour := func(to netip.Addr, kind byte, hops byte, size int) func(string) error {
		return func(text string) error {
			body := append(make([]byte, 4), sibling6.AsSlice()...)
			body = append(body, fmt.Sprintf("%-*s", size, text)...)
			return sendRaw(icmp6Message(ip6{from: own6, to: to, hops: hops}, kind, body), nil)
		}
	}
	forged := raw4(ip4{from: bad4, to: own4, protocol: unix.IPPROTO_UDP}, func(text string) []byte { return udp(80, 1234, text) })
	forgedByDevice := func(text string) error {
		return sendRaw(ip4{from: bad4, to: own4, protocol: unix.IPPROTO_UDP}.packet(udp(80, 1234, text)), toDevice("eth0"))
	}
	reply := sendUDP(port(bad4, 80), "", func(fd int) error { return unix.Bind(fd, &unix.SockaddrInet4{Port: 1234, Addr: own4.As4()}) })
	return []attempt{
		{"udp", false, sendUDP(port(bad4, 80), "")},
		{"udp_ipv6", false, sendUDP(port(bad6, 80), "")},
		{"udp_raw", false, raw4(ip4{from: own4, to: bad4, protocol: unix.IPPROTO_UDP}, udpTo(80))},
		{"udp_by_device", false, sendUDP(port(bad4, 80), "eth0")},
		{"udp_transparent", false, sendUDP(port(bad4, 80), "", func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1) })},
		{"udp_marked", false, sendUDP(port(bad4, 80), "", func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1) })},
		{"tcp_without_syn", false, func(text string) error {
			return sendRaw(tcp4(port(own4, 1234), port(bad4, 80), 1, 1, 0x18, text), nil)
		}},
		{"tcp_syn_with_data", false, func(text string) error {
			return sendRaw(tcp4(port(own4, 1235), port(bad4, 80), 1, 0, 0x02, text), nil)
		}},
		{"tcp_reset_with_data", false, func(text string) error {
			return sendRaw(tcp4(port(own4, 1236), port(bad4, 80), 1, 1, 0x14, text), nil)
		}},
		{"tcp_no_flags", false, func(text string) error {
			return sendRaw(tcp4(port(own4, 1237), port(bad4, 80), 1, 1, 0, text), nil)
		}},
		{"first_fragment", false, raw4(ip4{from: own4, to: bad4, protocol: unix.IPPROTO_UDP, fragment: 0x2000}, udpTo(80))},
		{"fragment_not_put_together", true, func(text string) error {
			return sendRaw(ip4{from: own4, to: bad4, protocol: unix.IPPROTO_UDP, fragment: 0x2000}.packet(udp(1234, 80, text)), noDefragment)
		}},
		{"second_fragment_not_put_together", true, func(text string) error {
			return sendRaw(ip4{from: own4, to: bad4, protocol: unix.IPPROTO_UDP, fragment: 0x0002}.packet([]byte(text)), noDefragment)
		}},
		{"fragment_with_false_source", true, func(text string) error {
			return sendRaw(ip4{from: bad4, to: good4, protocol: unix.IPPROTO_UDP, fragment: 0x2000}.packet(udp(1234, 80, text)), noDefragment)
		}},
		{"source_route", true, sendUDP(port(bad4, 80), "", sourceRoute)},
		{"ip_options", true, raw4(ip4{from: own4, to: good4, protocol: unix.IPPROTO_UDP, options: []byte{1, 1, 1, 0}}, udpTo(80))},
		{"routing_header", true, raw6(ip6{from: own6, to: good6, next: unix.IPPROTO_ROUTING, hops: 64}, segments)},
		{"hop_by_hop", true, raw6(ip6{from: own6, to: good6, next: unix.IPPROTO_HOPOPTS, hops: 64}, hopByHop)},
		{"sctp", true, raw4(ip4{from: own4, to: good4, protocol: unix.IPPROTO_SCTP}, plainText)},
		{"gre", true, raw4(ip4{from: own4, to: good4, protocol: unix.IPPROTO_GRE}, plainText)},
		{"ipip", true, raw4(ip4{from: own4, to: good4, protocol: unix.IPPROTO_IPIP}, func(text string) []byte {
			return ip4{from: own4, to: bad4, protocol: unix.IPPROTO_UDP}.packet(udp(1234, 80, text))
		})},
		{"udplite", true, raw4(ip4{from: own4, to: good4, protocol: unix.IPPROTO_UDPLITE}, udpTo(80))},
		{"unknown_protocol", true, raw4(ip4{from: own4, to: good4, protocol: 253}, plainText)},
		{"unknown_protocol_ipv6", true, raw6(ip6{from: own6, to: good6, next: 253, hops: 64}, plainText)},
		{"port_zero", true, raw4(ip4{from: own4, to: good4, protocol: unix.IPPROTO_UDP}, udpTo(0))},
		{"icmp_timestamp", true, func(text string) error { return sendRaw(icmp4Message(own4, good4, 13, text), nil) }},
		{"icmp_unasked_answer", true, func(text string) error { return sendRaw(icmp4Message(own4, good4, 0, text), nil) }},
		{"icmp_error", true, func(text string) error { return sendRaw(icmp4Message(own4, bad4, 3, text), nil) }},
		{"icmp_echo", false, func(text string) error { return sendRaw(icmp4Message(own4, bad4, 8, text), nil) }},
		{"neighbour_far_away", true, neighbour(bad6, 135, 255, 16)},
		{"neighbour_answer_far_away", true, neighbour(good6, 136, 255, 16)},
		{"neighbour_hop_limit", true, neighbour(sibling6, 135, 64, 16)},
		{"neighbour_with_data", true, neighbour(sibling6, 135, 255, 64)},
		{"neighbour_multicast_far", true, neighbour(netip.MustParseAddr("ff0e::1"), 135, 255, 16)},
		{"redirect_message", true, neighbour(sibling6, 137, 255, 16)},
		{"router_advertisement", true, neighbour(netip.MustParseAddr("ff02::1"), 134, 255, 16)},
		{"membership_report", true, neighbour(netip.MustParseAddr("ff02::16"), 143, 1, 64)},
		{"igmp", true, raw4(ip4{from: own4, to: multicast4, protocol: unix.IPPROTO_IGMP}, plainText)},
		{"multicast", true, sendUDP(port(multicast4, 80), "eth0")},
		{"multicast_ipv6", true, raw6(ip6{from: own6, to: netip.MustParseAddr("ff02::fb"), next: unix.IPPROTO_UDP, hops: 1}, udpTo(5353))},
		{"broadcast", true, sendUDP(port(broadcast4, 80), "")},
		{"broadcast_all", true, sendUDP(port(netip.MustParseAddr("255.255.255.255"), 80), "eth0")},
		{"link_local", true, raw6(ip6{from: own6, to: linkLocalSibling, next: unix.IPPROTO_UDP, hops: 64}, udpTo(80))},
		{"loopback_by_device", true, sendUDP(port(loopbackOther, 80), "eth0")},
		{"loopback_ipv6_by_device", true, sendUDP(port(netip.IPv6Loopback(), 80), "eth0")},
		// Redirected to ::1, but not to the loopback interface.
		{"dns_ipv6_by_device", true, sendUDP(port(bad6, 53), "eth0")},
		{"engine_by_device", true, sendUDP(port(engineResolver, 80), "eth0")},
		{"mapped_address", true, elsewhere6(good6, ip6{from: own6, to: mapped6, next: unix.IPPROTO_UDP, hops: 64})},
		{"loopback_address_on_the_wire", true, elsewhere6(good6, ip6{from: own6, to: netip.IPv6Loopback(), next: unix.IPPROTO_UDP, hops: 64})},
		{"routed_as_an_allowed_address", false, elsewhere6(good6, ip6{from: own6, to: bad6, next: unix.IPPROTO_UDP, hops: 64})},
		{"false_source", true, raw4(ip4{from: bad4, to: good4, protocol: unix.IPPROTO_UDP}, udpTo(80))},
		{"false_source_ipv6", true, raw6(ip6{from: bad6, to: good6, next: unix.IPPROTO_UDP, hops: 64}, udpTo(80))},
		{"answer_to_a_forged_question", false, inTurn(forged, reply)},
		{"answer_to_a_question_by_device", false, inTurn(forgedByDevice, reply)},
		{"answer_to_a_false_source", false, inTurn(
			raw4(ip4{from: bad4, to: good4, protocol: unix.IPPROTO_UDP}, udpTo(80)),
			raw4(ip4{from: good4, to: bad4, protocol: unix.IPPROTO_UDP}, func(text string) []byte { return udp(80, 1234, text) }))},
	}
}

func TestNothingGetsPast(t *testing.T) {
	for _, tt := range []struct {
		name   string
		phases []direct.Phase
	}{
		{"public", []direct.Phase{phaseOf(t, "public")}},
		{"public_beside_names", []direct.Phase{phaseOf(t, "public"), phaseOf(t, "allowlist", "ok.test")}},
		{"no_network", []direct.Phase{phaseOf(t, "no-network")}},
		{"allowlist", []direct.Phase{phaseOf(t, "allowlist", good4.String(), good6.String(), loopbackOther.String(), "::1")}},
		{"denylist", []direct.Phase{phaseOf(t, "denylist", bad4.String(), bad6.String())}},
		{"denylist_names", []direct.Phase{phaseOf(t, "denylist", bad4.String(), bad6.String(), "evil.test")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, false)
			s := l.spec(t, l.listen(t), tt.phases...)
			if err := l.gate.Install(s, policy.Baseline); err != nil {
				t.Fatal(err)
			}
			l.neighbours(t)
			tap := newTap(t, l.outside, "eth0")
			for i, a := range attempts() {
				if strings.HasPrefix(tt.name, "public") && !a.public {
					continue
				}
				l.workload.Run(t, func() error { _ = a.send(leak(i)); return nil })
			}
			// The workload's kernel says that nobody is there, behind all that came before.
			l.outside.Run(t, func() error { return sendUDP(netip.AddrPortFrom(own4, 9), "")("the end") })
			for i := range leaked(tap.until(t, "the end")) {
				t.Errorf("came out: %s", attempts()[i].name)
			}
		})
	}
}

// The attempts do reach the outside where there are no rules, so that the test above can fail.
func TestAttemptsWorkWithoutRules(t *testing.T) {
	l := newLab(t, false)
	l.neighbours(t)
	tap := newTap(t, l.outside, "eth0")
	for i, a := range attempts() {
		l.workload.Run(t, func() error {
			if err := a.send(leak(i)); err != nil {
				t.Logf("%s: %v", a.name, err)
			}
			return nil
		})
	}
	l.workload.Run(t, func() error { return sendUDP(netip.AddrPortFrom(good4, 80), "")("the end") })
	came := leaked(tap.until(t, "the end"))
	for i, a := range attempts() {
		if !came[i] {
			t.Errorf("%s does not come out even without rules", a.name)
		}
	}
}

// headers6 puts an extension header before what an IPv6 packet carries. Each says of which kind it is, and the text is
// in it or behind it (RFC 8200 §4.3, §4.4, §4.6, RFC 8754 §2).
var headers6 = map[string]struct {
	kind byte
	make func(next byte, text string) []byte
}{
	"routing_header": {unix.IPPROTO_ROUTING, func(next byte, text string) []byte {
		return append([]byte{next, 2, 4, 1, 0, 0, 0, 0}, fmt.Sprintf("%-16s", text)...) // as if an address
	}},
	"destination_options": {unix.IPPROTO_DSTOPTS, padded},
	"hop_by_hop":          {unix.IPPROTO_HOPOPTS, padded},
}

// padded is a header of 16 bytes with an option that has the text in it.
func padded(next byte, text string) []byte {
	return append([]byte{next, 1, 1, 12}, fmt.Sprintf("%-12s", text)...)
}

// No rule that lets something through looks for ports or types behind options or extension headers: those say where
// else a packet goes, and have room for more than it seems to carry.
func TestNothingGetsPastBehindOptions(t *testing.T) {
	l := newLab(t, false)
	l.serve(t)
	s := l.spec(t, l.listen(t), phaseOf(t, "no-network"), phaseOf(t, "public"))
	s.Open = []netip.AddrPort{netip.AddrPortFrom(sibling4, 8080), netip.AddrPortFrom(sibling6, 8080)}
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	l.neighbours(t)
	inbound := make(map[netip.Addr]uint16) // ports of connections from the siblings
	for _, a := range [][2]netip.Addr{{sibling4, own4}, {sibling6, own6}} {
		c, err := l.dial(t, "udp", a[0], a[1])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := exchange(c); got != "inside" {
			t.Fatalf("from %v: got %s", a[0], got)
		}
		inbound[a[0]] = netip.MustParseAddrPort(c.LocalAddr().String()).Port()
	}
	search := append(make([]byte, 4), sibling6.AsSlice()...)
	plain := map[string]func(text string) []byte{ // what the rules let through
		"open": func(text string) []byte {
			return tcp6(netip.AddrPortFrom(own6, 1234), netip.AddrPortFrom(sibling6, 8080), 1, 0, 2, text)
		},
		"reply": func(text string) []byte {
			return ip6{from: own6, to: sibling6, next: unix.IPPROTO_UDP, hops: 64}.packet(udp6(own6, sibling6, 7000, inbound[sibling6], text))
		},
		"neighbour": func(string) []byte { return icmp6Message(ip6{from: own6, to: sibling6, hops: 255}, 135, search) },
	}
	var packets []struct {
		name string
		make func(text string) []byte
	}
	add := func(name string, make func(string) []byte) {
		packets = append(packets, struct {
			name string
			make func(string) []byte
		}{name, make})
	}
	for _, what := range []string{"open", "reply", "neighbour"} {
		for _, name := range slices.Sorted(maps.Keys(headers6)) {
			add(what+"_"+name, func(text string) []byte {
				p := plain[what](text)
				h := headers6[name]
				b := slices.Concat(p[:40], h.make(p[6], text), p[40:])
				b[6] = h.kind
				binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
				return b
			})
		}
	}
	nothing := []byte{1, 1, 1, 0}
	add("open_ip_options", func(text string) []byte {
		segment := tcp4(netip.AddrPortFrom(own4, 1234), netip.AddrPortFrom(sibling4, 8080), 1, 0, 2, text)[20:]
		return ip4{from: own4, to: sibling4, protocol: unix.IPPROTO_TCP, options: nothing}.packet(segment)
	})
	add("reply_ip_options", func(text string) []byte {
		return ip4{from: own4, to: sibling4, protocol: unix.IPPROTO_UDP, options: nothing}.packet(udp(7000, inbound[sibling4], text))
	})
	tap := newTap(t, l.outside, "eth0")
	for i, p := range packets {
		l.workload.Run(t, func() error { _ = sendRaw(p.make(leak(i)), nil); return nil })
	}
	l.outside.Run(t, func() error { return sendUDP(netip.AddrPortFrom(own4, 9), "")("the end") })
	came := tap.until(t, "the end")
	for i := range leaked(came) {
		t.Errorf("came out: %s", packets[i].name)
	}
	// The same packets without any of that do come out.
	for i, what := range []string{"open", "reply", "neighbour"} {
		tap := newTap(t, l.outside, "eth0")
		packet := plain[what](leak(i))
		l.workload.Run(t, func() error { return sendRaw(packet, nil) })
		l.outside.Run(t, func() error { return sendUDP(netip.AddrPortFrom(own4, 9), "")("the end") })
		if !slices.ContainsFunc(tap.until(t, "the end"), func(p []byte) bool { return bytes.Equal(p, packet) }) {
			t.Errorf("%s: refused also without options", what)
		}
	}
}

// leak is the text that an attempt sends, short enough for every packet.
func leak(attempt int) string { return fmt.Sprintf("leak%03d", attempt) }

// leaked finds out which texts are in the packets.
func leaked(packets [][]byte) map[int]bool {
	found := make(map[int]bool)
	for _, p := range packets {
		if i := bytes.Index(p, []byte("leak")); i >= 0 && i+7 <= len(p) {
			if n, err := strconv.Atoi(string(p[i+4 : i+7])); err == nil {
				found[n] = true
			}
		}
	}
	return found
}
