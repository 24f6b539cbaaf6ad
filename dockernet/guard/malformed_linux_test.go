package guard

import (
	"maps"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/nft"
)

// Addresses outside that no policy of the tests names.
var (
	other4 = netip.MustParseAddr("192.0.2.200")
	other6 = netip.MustParseAddr("2001:db8:2:3::200")
)

// Ethertypes.
const (
	ethVLAN  = 0x8100
	ethQinQ  = 0x88a8
	ethPPPoE = 0x8864
	ethLLDP  = 0x88cc
	ethLab   = 0x88b5 // for experiments, IEEE 802
)

// Frames that are not what they claim to be, or that nobody can judge, are dropped in every mode; so the one in force is
// public.
func TestFramesThatNoPhaseAllows(t *testing.T) {
	l := newLab(t, "absc")
	a, b, c := l.containers["a"].station, l.containers["b"].station, l.containers["c"].station
	l.install(t, "a", phaseOf(t, "public"))
	l.silence(t, "a")

	to4 := ip{from: a.ip4, to: other4}
	to6 := ip{from: a.ip6, to: other6}
	v4 := func(packet []byte) []byte { return ethernet(bridgeA, a.hardware, unix.ETH_P_IP, packet) }
	v6 := func(packet []byte) []byte { return ethernet(bridgeA, a.hardware, unix.ETH_P_IPV6, packet) }
	toB4 := func(packet []byte) []byte { return ethernet(b.hardware, a.hardware, unix.ETH_P_IP, packet) }
	toB6 := func(packet []byte) []byte { return ethernet(b.hardware, a.hardware, unix.ETH_P_IPV6, packet) }
	toAll := func(kind uint16, body []byte) []byte { return ethernet(broadcast, a.hardware, kind, body) }
	// extension puts an IPv6 extension header before UDP, RFC 8200 §4.
	extension := func(kind byte, body ...byte) func(string) []byte {
		return func(key string) []byte {
			datagram := to6.datagram(1000, 2000, key)[40:]
			return v6(ip{from: a.ip6, to: other6, proto: kind}.packet(append(append([]byte{unix.IPPROTO_UDP, 0}, body...), datagram...)))
		}
	}
	with := func(h ip, change func(*ip)) ip { change(&h); return h }
	fragment := func(bits uint16) ip { return with(to4, func(h *ip) { h.fragment = bits; h.proto = unix.IPPROTO_UDP }) }

	for _, tt := range []struct {
		name  string
		frame func(key string) []byte
		// why is the counter of the dropped frame. Frames of controls reach the watchers in want.
		why, want string
	}{
		{"control_udp4", func(key string) []byte { return v4(to4.datagram(1000, 2000, key)) }, "", "host outside"},
		{"control_udp6", func(key string) []byte { return v6(to6.datagram(1000, 2000, key)) }, "", "host outside"},
		{"control_syn4", func(key string) []byte { return v4(to4.segment(1000, 80, syn, 0, key)) }, "", "host outside"},
		{"control_syn6", func(key string) []byte { return v6(to6.segment(1000, 80, syn, 0, key)) }, "", "host outside"},
		{"control_echo4", func(key string) []byte { return v4(to4.echo(8, key)) }, "", "host outside"},
		{"control_echo6", func(key string) []byte { return v6(to6.echo(128, key)) }, "", "host outside"},
		{"control_sibling4", func(key string) []byte { return toB4(ip{from: a.ip4, to: b.ip4}.datagram(1000, 2000, key)) }, "", "b"},
		{"control_sibling6", func(key string) []byte { return toB6(ip{from: a.ip6, to: b.ip6}.datagram(1000, 2000, key)) }, "", "b"},
		{"control_dont_fragment", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.fragment = 0x4000 }).datagram(1000, 2000, key))
		}, "", "host outside"},

		// Sources.
		{"hardware_of_sibling", func(key string) []byte {
			return ethernet(bridgeA, b.hardware, unix.ETH_P_IP, to4.datagram(1000, 2000, key))
		}, sourceCount, ""},
		{"hardware_of_gateway", func(key string) []byte {
			return ethernet(c.hardware, bridgeA, unix.ETH_P_IP, ip{from: a.ip4, to: c.ip4}.datagram(1000, 2000, key))
		}, sourceCount, ""},
		{"hardware_of_nobody", func(key string) []byte {
			return ethernet(bridgeA, nft.Hardware{2, 0, 0, 0, 0, 99}, unix.ETH_P_IP, to4.datagram(1000, 2000, key))
		}, sourceCount, ""},
		{"source_of_sibling4", func(key string) []byte { return v4(ip{from: b.ip4, to: other4}.datagram(1000, 2000, key)) }, sourceCount, ""},
		{"source_of_sibling6", func(key string) []byte { return v6(ip{from: b.ip6, to: other6}.datagram(1000, 2000, key)) }, sourceCount, ""},
		{"source_of_gateway4", func(key string) []byte { return toB4(ip{from: gateway.ip4, to: b.ip4}.datagram(1000, 2000, key)) }, sourceCount, ""},
		{"source_of_gateway6", func(key string) []byte { return toB6(ip{from: gateway.ip6, to: b.ip6}.datagram(1000, 2000, key)) }, sourceCount, ""},
		{"source_of_outside4", func(key string) []byte { return v4(ip{from: remote4, to: other4}.segment(1000, 80, syn, 0, key)) }, sourceCount, ""},
		{"source_unspecified4", func(key string) []byte {
			return toAll(unix.ETH_P_IP, ip{from: netip.IPv4Unspecified(), to: netip.MustParseAddr("255.255.255.255")}.datagram(68, 67, key))
		}, sourceCount, ""},
		{"source_unspecified6", func(key string) []byte {
			return toB6(ip{from: netip.IPv6Unspecified(), to: b.ip6}.datagram(1000, 2000, key))
		}, sourceCount, ""},
		{"source_loopback4", func(key string) []byte {
			return v4(ip{from: netip.MustParseAddr("127.0.0.1"), to: other4}.datagram(1000, 2000, key))
		}, sourceCount, ""},
		{"source_of_unused_address", func(key string) []byte {
			return v4(ip{from: netip.MustParseAddr("198.51.100.77"), to: other4}.datagram(1000, 2000, key))
		}, sourceCount, ""},
		{"source_link_local_of_sibling", func(key string) []byte { return toB6(ip{from: b.linkLocal6, to: b.ip6}.datagram(1000, 2000, key)) }, sourceCount, ""},

		// Ethertypes.
		{"vlan", func(key string) []byte {
			return tagged(toB4(ip{from: a.ip4, to: b.ip4}.datagram(1000, 2000, key)), ethVLAN, 1)
		}, malformedCount, ""},
		{"vlan_0", func(key string) []byte {
			return tagged(toB4(ip{from: a.ip4, to: b.ip4}.datagram(1000, 2000, key)), ethVLAN, 0)
		}, malformedCount, ""},
		{"vlan_6", func(key string) []byte {
			return tagged(toB6(ip{from: a.ip6, to: b.ip6}.datagram(1000, 2000, key)), ethVLAN, 1)
		}, malformedCount, ""},
		{"vlan_in_vlan", func(key string) []byte {
			return tagged(tagged(toB4(ip{from: a.ip4, to: b.ip4}.datagram(1000, 2000, key)), ethVLAN, 1), ethQinQ, 2)
		}, malformedCount, ""},
		{"vlan_to_all", func(key string) []byte {
			return tagged(toAll(unix.ETH_P_IP, to4.datagram(1000, 2000, key)), ethVLAN, 5)
		}, malformedCount, ""},
		{"ethertype_experimental", func(key string) []byte { return toAll(ethLab, []byte(key)) }, malformedCount, ""},
		{"ethertype_lldp", func(key string) []byte { return toAll(ethLLDP, []byte(key)) }, malformedCount, ""},
		{"ethertype_pppoe", func(key string) []byte {
			return toAll(ethPPPoE, append([]byte{0x11, 0, 0, 1, 0, 60, 0, 0x21}, ip{from: a.ip4, to: b.ip4}.datagram(1, 2, key)...))
		}, malformedCount, ""},
		{"ethertype_rarp", func(key string) []byte { return toAll(0x8035, []byte(key)) }, malformedCount, ""},
		{"ieee_802_3", func(key string) []byte { return toAll(uint16(3+len(key)), append([]byte{0x42, 0x42, 3}, key...)) }, malformedCount, ""},
		{"ethertype_ip6_content_ip4", func(key string) []byte {
			return ethernet(b.hardware, a.hardware, unix.ETH_P_IPV6, ip{from: a.ip4, to: b.ip4}.datagram(1000, 2000, key))
		}, malformedCount, ""},
		{"ethertype_ip4_content_ip6", func(key string) []byte {
			return ethernet(b.hardware, a.hardware, unix.ETH_P_IP, ip{from: a.ip6, to: b.ip6}.datagram(1000, 2000, key))
		}, malformedCount, ""},

		// What hides or changes the destination.
		{"fragment_first", func(key string) []byte {
			return v4(fragment(0x2000).packet([]byte("\x03\xe8\x07\xd0\x00\x20\x00\x00" + key)))
		}, malformedCount, ""},
		{"fragment_later", func(key string) []byte { return v4(fragment(0x2001).packet([]byte(key))) }, malformedCount, ""},
		{"fragment_last", func(key string) []byte { return v4(fragment(1).packet([]byte(key))) }, malformedCount, ""},
		{"fragment_to_sibling", func(key string) []byte {
			return toB4(ip{from: a.ip4, to: b.ip4, fragment: 0x2000, proto: unix.IPPROTO_TCP}.packet([]byte(key)))
		}, malformedCount, ""},
		{"option_record_route", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.options = []byte{7, 7, 4, 0, 0, 0, 0, 0} }).datagram(1000, 2000, key))
		}, malformedCount, ""},
		{"option_source_route", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.options = []byte{131, 7, 4, 192, 0, 2, 9, 0} }).datagram(1000, 2000, key))
		}, malformedCount, ""},
		{"option_none_but_there", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.options = []byte{1, 1, 1, 0} }).datagram(1000, 2000, key))
		}, malformedCount, ""},
		{"header_hop_by_hop", extension(0, 5, 2, 0, 0, 1, 0), malformedCount, ""},
		{"header_routing", extension(43, 0, 0, 0, 0, 0, 0), malformedCount, ""},
		{"header_fragment", extension(44, 0, 0, 0, 0, 0, 1), malformedCount, ""},
		{"header_fragment_more", extension(44, 0, 1, 0, 0, 0, 1), malformedCount, ""},
		{"header_destination", extension(60, 1, 4, 0, 0, 0, 0), malformedCount, ""},
		{"header_authentication", extension(51, 0, 0, 0, 0, 0, 1), malformedCount, ""},
		{"header_none", func(key string) []byte { return v6(with(to6, func(h *ip) { h.proto = 59 }).packet([]byte(key))) }, malformedCount, ""},

		// Protocols, and parts of them that are not for containers.
		{"sctp4", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.proto = unix.IPPROTO_SCTP }).packet([]byte(key)))
		}, malformedCount, ""},
		{"sctp6", func(key string) []byte {
			return v6(with(to6, func(h *ip) { h.proto = unix.IPPROTO_SCTP }).packet([]byte(key)))
		}, malformedCount, ""},
		{"gre", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.proto = unix.IPPROTO_GRE }).packet([]byte(key)))
		}, malformedCount, ""},
		{"ip_in_ip", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.proto = unix.IPPROTO_IPIP }).packet(to4.datagram(1000, 2000, key)))
		}, malformedCount, ""},
		{"ip6_in_ip4", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.proto = unix.IPPROTO_IPV6 }).packet(to6.datagram(1000, 2000, key)))
		}, malformedCount, ""},
		{"esp", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.proto = unix.IPPROTO_ESP }).packet([]byte(key)))
		}, malformedCount, ""},
		{"igmp", func(key string) []byte {
			return toAll(unix.ETH_P_IP, ip{from: a.ip4, to: netip.MustParseAddr("224.0.0.22"), proto: unix.IPPROTO_IGMP}.packet([]byte(key)))
		}, malformedCount, ""},
		{"udplite", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.proto = unix.IPPROTO_UDPLITE }).packet([]byte(key)))
		}, malformedCount, ""},
		{"raw_255", func(key string) []byte { return v4(with(to4, func(h *ip) { h.proto = 255 }).packet([]byte(key))) }, malformedCount, ""},
		{"icmp6_in_ip4", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.proto = unix.IPPROTO_ICMPV6 }).packet([]byte("\x80\x00\x00\x00" + key)))
		}, malformedCount, ""},
		{"icmp_in_ip6", func(key string) []byte {
			return v6(with(to6, func(h *ip) { h.proto = unix.IPPROTO_ICMP }).packet([]byte("\x08\x00\x00\x00" + key)))
		}, malformedCount, ""},
		{"port_0_tcp", func(key string) []byte { return v4(to4.segment(1000, 0, syn, 0, key)) }, malformedCount, ""},
		{"port_0_udp", func(key string) []byte { return v4(to4.datagram(1000, 0, key)) }, malformedCount, ""},
		{"port_0_udp6", func(key string) []byte { return v6(to6.datagram(1000, 0, key)) }, malformedCount, ""},
		{"header_cut_short", func(key string) []byte {
			return v4(with(to4, func(h *ip) { h.proto = unix.IPPROTO_TCP }).packet([]byte{3}))
		}, malformedCount, ""},
		{"icmp_redirect", func(key string) []byte { return toB4(ip{from: a.ip4, to: b.ip4}.echo(5, key)) }, malformedCount, ""},
		{"icmp_router", func(key string) []byte { return toB4(ip{from: a.ip4, to: b.ip4}.echo(9, key)) }, malformedCount, ""},
		{"icmp_timestamp", func(key string) []byte { return toB4(ip{from: a.ip4, to: b.ip4}.echo(13, key)) }, malformedCount, ""},
		{"icmp6_router_solicit", func(key string) []byte { return toB6(ip{from: a.ip6, to: b.ip6, hops: 255}.echo(133, key)) }, malformedCount, ""},
		{"icmp6_router_advert", func(key string) []byte { return toB6(ip{from: a.linkLocal6, to: b.ip6, hops: 255}.echo(134, key)) }, malformedCount, ""},
		{"icmp6_redirect", func(key string) []byte { return toB6(ip{from: a.linkLocal6, to: b.ip6, hops: 255}.echo(137, key)) }, malformedCount, ""},
		{"icmp6_listener_report", func(key string) []byte { return toB6(ip{from: a.ip6, to: b.ip6, hops: 1}.echo(143, key)) }, malformedCount, ""},
		{"icmp6_node_query", func(key string) []byte { return toB6(ip{from: a.ip6, to: b.ip6}.echo(139, key)) }, malformedCount, ""},

		// The floor, and what the Spec closes.
		{"floor_metadata", func(key string) []byte {
			return v4(ip{from: a.ip4, to: netip.MustParseAddr("169.254.169.254")}.segment(1000, 80, syn, 0, key))
		}, refusedCount, ""},
		{"floor_metadata6", func(key string) []byte {
			return v6(ip{from: a.ip6, to: netip.MustParseAddr("fd00:ec2::254")}.segment(1000, 80, syn, 0, key))
		}, refusedCount, ""},
		{"floor_hidden", func(key string) []byte {
			return v6(ip{from: a.ip6, to: netip.MustParseAddr("64:ff9b::a9fe:a9fe")}.datagram(1000, 80, key))
		}, notReplyCount, ""},
		{"floor_group", func(key string) []byte {
			return toAll(unix.ETH_P_IP, ip{from: a.ip4, to: netip.MustParseAddr("224.0.0.251")}.datagram(5353, 5353, key))
		}, notReplyCount, ""},
		{"floor_group6", func(key string) []byte {
			return toAll(unix.ETH_P_IPV6, ip{from: a.ip6, to: netip.MustParseAddr("ff02::fb")}.datagram(5353, 5353, key))
		}, notReplyCount, ""},
		{"floor_broadcast", func(key string) []byte {
			return toAll(unix.ETH_P_IP, ip{from: a.ip4, to: netip.MustParseAddr("198.51.100.255")}.datagram(1000, 2000, key))
		}, notReplyCount, ""},
		{"closed4", func(key string) []byte { return v4(ip{from: a.ip4, to: uplink4}.segment(1000, 9464, syn, 0, key)) }, refusedCount, ""},
		{"closed6", func(key string) []byte { return v6(ip{from: a.ip6, to: uplink6}.segment(1000, 9464, syn, 0, key)) }, refusedCount, ""},
		{"control_not_closed", func(key string) []byte { return v4(ip{from: a.ip4, to: uplink4}.segment(1000, 9465, syn, 0, key)) }, "", "host"},
		{"dns4", func(key string) []byte { return v4(to4.datagram(1000, 53, key)) }, notReplyCount, ""},
		{"dns6", func(key string) []byte { return v6(to6.datagram(1000, 53, key)) }, notReplyCount, ""},
		{"dns_tcp", func(key string) []byte { return v4(to4.segment(1000, 53, syn, 0, key)) }, refusedCount, ""},
		{"dns_of_host", func(key string) []byte { return v4(ip{from: a.ip4, to: gateway.ip4}.datagram(1000, 53, key)) }, notReplyCount, ""},
		{"dns_of_sibling", func(key string) []byte { return toB4(ip{from: a.ip4, to: b.ip4}.datagram(1000, 53, key)) }, notReplyCount, ""},

		// A packet to elsewhere would be read by whoever has the hardware address.
		{"elsewhere_to_sibling4", func(key string) []byte { return toB4(to4.datagram(1000, 2000, key)) }, misdirectedCount, ""},
		{"elsewhere_to_sibling6", func(key string) []byte { return toB6(to6.datagram(1000, 2000, key)) }, misdirectedCount, ""},
		{"elsewhere_to_all", func(key string) []byte { return toAll(unix.ETH_P_IP, to4.datagram(1000, 2000, key)) }, misdirectedCount, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key := l.token()
			before := l.dropped(t, "a")
			if got := l.where(t, "a", []byte(key), tt.frame(key)); got != tt.want {
				t.Errorf("reaches %q, want %q", got, tt.want)
			}
			want := map[string]uint64{}
			if tt.why != "" {
				want[tt.why] = 1
			}
			if dropped := since(before, l.dropped(t, "a")); !maps.Equal(dropped, want) {
				t.Errorf("counted as dropped: %v, want %v", dropped, want)
			}
		})
	}
}
