package guard

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/dockernet/nft"
	"sluice/policy"
)

// known is a frame, and what of it tells that it has arrived.
type known struct{ frame, key []byte }

// arpFrame is an ARP packet of container a, with more bytes behind it.
func (l *lab) arpFrame(to nft.Hardware, packet []byte, more ...byte) known {
	packet = append(packet, more...)
	return known{ethernet(to, l.containers["a"].hardware, unix.ETH_P_ARP, packet), packet}
}

// ndFrame is a message of neighbour discovery from container a.
func (l *lab) ndFrame(h ip, kind, code byte, body []byte) known {
	hardware := bridgeA
	if h.to.IsMulticast() {
		hardware = groupHardware(h.to)
	}
	for _, c := range l.containers {
		if c.ip6 == h.to || c.linkLocal6 == h.to {
			hardware = c.hardware
		}
	}
	packet := h.message(kind, code, body)
	return known{ethernet(hardware, l.containers["a"].hardware, unix.ETH_P_IPV6, packet), packet[40:]}
}

const (
	solicit, advert        = 135, 136
	router, asked, replace = 0x80000000, 0x40000000, 0x20000000 // flags of an advertisement
)

func TestNeighbours(t *testing.T) {
	l := newLab(t, "absc")
	l.install(t, "a", phaseOf(t, "no-network"))
	l.silence(t, "a")
	a, b := l.containers["a"], l.containers["b"]
	var nobody nft.Hardware
	unused4, unused6 := netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("2001:db8:1::77")
	request := func(target netip.Addr) []byte { return arpPacket(1, a.hardware, a.ip4, nobody, target) }
	reply := func(h nft.Hardware, to netip.Addr) []byte { return arpPacket(2, a.hardware, a.ip4, h, to) }
	at := func(packet []byte, offset int, x byte) []byte { packet[offset] = x; return packet }

	// Hop limit 255, from the container's own address unless said otherwise.
	to := func(to netip.Addr) ip { return ip{from: a.ip6, to: to, hops: 255} }
	from := func(from, to netip.Addr) ip { return ip{from: from, to: to, hops: 255} }
	hops := func(h ip, n byte) ip { h.hops = n; return h }
	seek := func(target netip.Addr) []byte { return neighbour(0, target, sourceOption, a.hardware) }
	tell := func(flags uint32, target netip.Addr) []byte {
		return neighbour(flags, target, targetOption, a.hardware)
	}
	allNodes := netip.MustParseAddr("ff02::1")
	more := func(body []byte, x ...byte) []byte { return append(body, x...) }
	nonce := nft.Hardware{1, 2, 3, 4, 5, 6}

	for _, tt := range []struct {
		name string
		known
		want string
	}{
		{"arp_request", l.arpFrame(broadcast, request(b.ip4)), "b c host"},
		{"arp_request_unicast", l.arpFrame(b.hardware, request(b.ip4)), "b"},
		{"arp_request_of_gateway", l.arpFrame(broadcast, request(gateway.ip4)), "b c host"},
		{"arp_request_of_nobody", l.arpFrame(broadcast, request(unused4)), "b c host"},
		{"arp_announcement", l.arpFrame(broadcast, request(a.ip4)), "b c host"},
		{"arp_reply", l.arpFrame(b.hardware, reply(b.hardware, b.ip4)), "b"},
		{"arp_reply_to_all", l.arpFrame(broadcast, reply(broadcast, a.ip4)), "b c host"},

		{"arp_request_in_vlan", known{tagged(l.arpFrame(broadcast, request(b.ip4)).frame, ethVLAN, 5), request(b.ip4)}, ""},
		{"arp_reply_in_vlan_0", known{tagged(l.arpFrame(b.hardware, reply(b.hardware, b.ip4)).frame, ethVLAN, 0), reply(b.hardware, b.ip4)}, ""},
		{"arp_with_payload", l.arpFrame(broadcast, request(b.ip4), 1, 2, 3, 4), ""},
		{"arp_cut_short", l.arpFrame(broadcast, request(b.ip4)[:24]), ""},
		{"arp_hardware_of_sibling", l.arpFrame(broadcast, arpPacket(1, b.hardware, a.ip4, nobody, b.ip4)), ""},
		{"arp_address_of_sibling", l.arpFrame(broadcast, arpPacket(1, a.hardware, b.ip4, nobody, gateway.ip4)), ""},
		{"arp_reply_for_sibling", l.arpFrame(broadcast, arpPacket(2, a.hardware, b.ip4, bridgeA, gateway.ip4)), ""},
		{"arp_reply_for_gateway", l.arpFrame(b.hardware, arpPacket(2, a.hardware, gateway.ip4, b.hardware, b.ip4)), ""},
		{"arp_probe", l.arpFrame(broadcast, arpPacket(1, a.hardware, netip.IPv4Unspecified(), nobody, unused4)), ""},
		{"arp_request_with_target_hardware", l.arpFrame(broadcast, arpPacket(1, a.hardware, a.ip4, nonce, b.ip4)), ""},
		{"arp_request_off_link", l.arpFrame(broadcast, request(other4)), ""},
		{"arp_reply_off_link", l.arpFrame(broadcast, reply(b.hardware, other4)), ""},
		{"arp_operation_3", l.arpFrame(broadcast, at(request(b.ip4), 7, 3)), ""},
		{"arp_operation_258", l.arpFrame(broadcast, at(request(b.ip4), 6, 1)), ""},
		{"arp_hardware_type", l.arpFrame(broadcast, at(request(b.ip4), 1, 6)), ""},
		{"arp_protocol_type", l.arpFrame(broadcast, at(request(b.ip4), 2, 0x86)), ""},
		{"arp_hardware_length", l.arpFrame(broadcast, at(request(b.ip4), 4, 8)), ""},
		{"arp_protocol_length", l.arpFrame(broadcast, at(request(b.ip4), 5, 16)), ""},

		{"solicit", l.ndFrame(to(solicitedNodeOf(b.ip6)), solicit, 0, seek(b.ip6)), "b c host"},
		{"solicit_from_link_local", l.ndFrame(from(a.linkLocal6, solicitedNodeOf(b.ip6)), solicit, 0, seek(b.ip6)), "b c host"},
		{"solicit_unicast", l.ndFrame(to(b.ip6), solicit, 0, neighbour(0, b.ip6, 0, nobody)), "b"},
		{"solicit_link_local", l.ndFrame(to(b.linkLocal6), solicit, 0, seek(b.linkLocal6)), "b"},
		{"solicit_gateway", l.ndFrame(to(solicitedNodeOf(gateway.ip6)), solicit, 0, seek(gateway.ip6)), "b c host"},
		{"solicit_own", l.ndFrame(from(netip.IPv6Unspecified(), solicitedNodeOf(a.ip6)), solicit, 0, neighbour(0, a.ip6, 0, nobody)), "b c host"},
		{"solicit_own_with_nonce", l.ndFrame(from(netip.IPv6Unspecified(), solicitedNodeOf(a.linkLocal6)), solicit, 0, neighbour(0, a.linkLocal6, nonceOption, nonce)), "b c host"},
		{"advert", l.ndFrame(to(b.ip6), advert, 0, tell(asked|replace, a.ip6)), "b"},
		{"advert_of_link_local", l.ndFrame(from(a.linkLocal6, b.linkLocal6), advert, 0, tell(asked, a.linkLocal6)), "b"},
		{"advert_to_all", l.ndFrame(to(allNodes), advert, 0, tell(replace, a.ip6)), "b c host"},
		{"advert_bare", l.ndFrame(to(b.ip6), advert, 0, neighbour(asked, a.ip6, 0, nobody)), "b"},

		{"solicit_with_payload", l.ndFrame(to(b.ip6), solicit, 0, more(seek(b.ip6), 1, 2, 3, 4, 5, 6, 7, 8)), ""},
		{"solicit_with_a_little_payload", l.ndFrame(to(b.ip6), solicit, 0, more(neighbour(0, b.ip6, 0, nobody), 1)), ""},
		{"solicit_two_options", l.ndFrame(to(b.ip6), solicit, 0, more(seek(b.ip6), seek(b.ip6)[20:]...)), ""},
		{"solicit_other_option", l.ndFrame(to(b.ip6), solicit, 0, neighbour(0, b.ip6, 5, a.hardware)), ""},
		{"solicit_hardware_of_sibling", l.ndFrame(to(b.ip6), solicit, 0, neighbour(0, b.ip6, sourceOption, b.hardware)), ""},
		{"solicit_hops_254", l.ndFrame(hops(to(b.ip6), 254), solicit, 0, seek(b.ip6)), ""},
		{"solicit_hops_64", l.ndFrame(hops(to(b.ip6), 64), solicit, 0, seek(b.ip6)), ""},
		{"solicit_code", l.ndFrame(to(b.ip6), solicit, 1, seek(b.ip6)), ""},
		{"solicit_reserved", l.ndFrame(to(b.ip6), solicit, 0, neighbour(1, b.ip6, sourceOption, a.hardware)), ""},
		{"solicit_off_link_target", l.ndFrame(to(b.ip6), solicit, 0, seek(other6)), ""},
		{"solicit_off_link", l.ndFrame(to(other6), solicit, 0, seek(b.ip6)), ""},
		{"solicit_off_link_both", l.ndFrame(to(other6), solicit, 0, seek(other6)), ""},
		{"solicit_to_other_group", l.ndFrame(to(netip.MustParseAddr("ff02::fb")), solicit, 0, seek(b.ip6)), ""},
		{"solicit_to_wide_group", l.ndFrame(to(netip.MustParseAddr("ff05::1")), solicit, 0, seek(b.ip6)), ""},
		{"solicit_from_sibling", l.ndFrame(from(b.ip6, solicitedNodeOf(gateway.ip6)), solicit, 0, seek(gateway.ip6)), ""},
		{"solicit_from_nobody_for_sibling", l.ndFrame(from(netip.IPv6Unspecified(), solicitedNodeOf(b.ip6)), solicit, 0, neighbour(0, b.ip6, 0, nobody)), ""},
		{"solicit_from_nobody_for_unused", l.ndFrame(from(netip.IPv6Unspecified(), solicitedNodeOf(unused6)), solicit, 0, neighbour(0, unused6, 0, nobody)), ""},
		{"solicit_from_nobody_other_option", l.ndFrame(from(netip.IPv6Unspecified(), solicitedNodeOf(a.ip6)), solicit, 0, neighbour(0, a.ip6, 20, nonce)), ""},
		{"advert_for_sibling", l.ndFrame(to(gateway.ip6), advert, 0, tell(asked|replace, b.ip6)), ""},
		{"advert_for_gateway", l.ndFrame(to(allNodes), advert, 0, tell(replace, gateway.ip6)), ""},
		{"advert_from_sibling", l.ndFrame(from(b.ip6, gateway.ip6), advert, 0, tell(asked, a.ip6)), ""},
		{"advert_as_router", l.ndFrame(to(b.ip6), advert, 0, tell(router|asked, a.ip6)), ""},
		{"advert_reserved", l.ndFrame(to(b.ip6), advert, 0, tell(asked|1, a.ip6)), ""},
		{"advert_hardware_of_sibling", l.ndFrame(to(b.ip6), advert, 0, neighbour(asked, a.ip6, targetOption, b.hardware)), ""},
		{"advert_source_option", l.ndFrame(to(b.ip6), advert, 0, neighbour(asked, a.ip6, sourceOption, a.hardware)), ""},
		{"advert_with_payload", l.ndFrame(to(b.ip6), advert, 0, more(tell(asked, a.ip6), 1, 2, 3, 4, 5, 6, 7, 8)), ""},
		{"advert_off_link", l.ndFrame(to(other6), advert, 0, tell(asked, a.ip6)), ""},
		{"advert_hops_64", l.ndFrame(hops(to(b.ip6), 64), advert, 0, tell(asked, a.ip6)), ""},
		{"advert_code", l.ndFrame(to(b.ip6), advert, 7, tell(asked, a.ip6)), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := l.dropped(t, "a")
			if got := l.where(t, "a", tt.key, tt.frame); got != tt.want {
				t.Errorf("reaches %q, want %q", got, tt.want)
			}
			dropped, want := since(before, l.dropped(t, "a")), uint64(1)
			if tt.want != "" {
				want = 0
			}
			if sum := dropped[neighbourCount] + dropped[malformedCount] + dropped[sourceCount]; sum != want || uint64(len(dropped)) != want {
				t.Errorf("counted as dropped: %v, want %d in all", dropped, want)
			}
		})
	}
}

// Where nothing may come in, a container has the gateway and those that it may dial for neighbours.
func TestNeighboursWhereNothingComesIn(t *testing.T) {
	l := newLab(t, "absc")
	a, b, c := l.containers["a"], l.containers["b"], l.containers["c"]
	var nobody nft.Hardware
	for mode, p := range map[string][]string{"allowlist": {"198.51.100.3:5432", "[2001:db8:1::3]:5432", "192.0.2.5"}, "no-network": nil} {
		l.install(t, "a", inbound(phaseOf(t, mode, p...), policy.InboundNone))
		for name, peer := range map[string]station{"gateway": gateway, "b": b.station, "c": c.station} {
			want := name == "gateway" || name == "b" && mode == "allowlist"
			to := func(to netip.Addr) ip { return ip{from: a.ip6, to: to, hops: 255} }
			for kind, k := range map[string]known{
				"arp_request": l.arpFrame(peer.hardware, arpPacket(1, a.hardware, a.ip4, nobody, peer.ip4)),
				"arp_reply":   l.arpFrame(peer.hardware, arpPacket(2, a.hardware, a.ip4, peer.hardware, peer.ip4)),
				"solicit":     l.ndFrame(to(solicitedNodeOf(peer.ip6)), solicit, 0, neighbour(0, peer.ip6, sourceOption, a.hardware)),
				"advert":      l.ndFrame(to(peer.ip6), advert, 0, neighbour(asked, a.ip6, targetOption, a.hardware)),
			} {
				if got := l.where(t, "a", k.key, k.frame); (got != "") != want {
					t.Errorf("%s: %s of %s reaches %q, want to pass: %v", mode, kind, name, got, want)
				}
			}
		}
		own := l.ndFrame(ip{from: netip.IPv6Unspecified(), to: solicitedNodeOf(a.ip6), hops: 255}, solicit, 0, neighbour(0, a.ip6, 0, nobody))
		if l.where(t, "a", own.key, own.frame) == "" {
			t.Errorf("%s: the container cannot look whether its own address is used", mode)
		}
	}
}

// A container cannot send many messages about neighbours, so that they are no way to send something else.
func TestNeighboursAreBounded(t *testing.T) {
	for _, tt := range []struct {
		name        string
		rate, burst int
		known       func(l *lab) known
	}{
		{"arp_request", searchRate, searchBurst, func(l *lab) known {
			return l.arpFrame(broadcast, arpPacket(1, l.containers["a"].hardware, l.containers["a"].ip4, nft.Hardware{}, l.containers["b"].ip4))
		}},
		{"arp_reply", answerRate, answerBurst, func(l *lab) known {
			return l.arpFrame(l.containers["b"].hardware, arpPacket(2, l.containers["a"].hardware, l.containers["a"].ip4, broadcast, l.containers["b"].ip4))
		}},
		{"solicit", searchRate, searchBurst, func(l *lab) known {
			a, b := l.containers["a"], l.containers["b"]
			return l.ndFrame(ip{from: a.ip6, to: b.ip6, hops: 255}, solicit, 0, neighbour(0, b.ip6, sourceOption, a.hardware))
		}},
		{"advert", answerRate, answerBurst, func(l *lab) known {
			a, b := l.containers["a"], l.containers["b"]
			return l.ndFrame(ip{from: a.ip6, to: b.ip6, hops: 255}, advert, 0, neighbour(asked, a.ip6, targetOption, a.hardware))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, "abs")
			l.silence(t, "a") // from before it has rules: its kernel searches neighbours too
			l.install(t, "a", phaseOf(t, "public"))
			k := tt.known(l)
			const sent = 1500
			frames := make([][]byte, sent)
			for i := range frames {
				frames[i] = k.frame
			}
			start := time.Now()
			l.where(t, "a", k.key, frames...)
			most := tt.burst + 1 + tt.rate*(1+int(time.Since(start)/time.Second))
			if got := l.watchers["b"].count(k.key); got < tt.burst || got > most {
				t.Errorf("%d of %d arrive, want %d to %d", got, sent, tt.burst, most)
			}
		})
	}
}

// Neighbours find each other by themselves.
func TestNeighboursFindEachOther(t *testing.T) {
	l := newLab(t, "abs")
	l.install(t, "a", phaseOf(t, "allowlist", "198.51.100.3", "2001:db8:1::3"))
	a, b := l.containers["a"], l.containers["b"]
	serve(t, b.Namespace)
	for _, to := range []netip.Addr{b.ip4, b.ip6} {
		c, err := dial(a.Namespace, "tcp", netip.AddrPortFrom(to, 80).String(), patience)
		err = errors.Join(err, ping(a.Namespace, to, patience))
		if err != nil {
			t.Errorf("%v: %v", to, err)
			continue
		}
		c.Close()
	}
}
