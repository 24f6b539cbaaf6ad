package direct

import (
	"net/netip"

	"sluice/dockernet/nft"
	"sluice/matcher"
)

func kindOf(a netip.Addr) nft.Kind {
	if a.Is4() {
		return nft.IPv4
	}
	return nft.IPv6
}

// targets are the addresses of one family that a phase names.
type targets struct {
	ports map[uint16]spans // by port; 0 is every port, and what is there is not at a single one
	dns   spans            // the very addresses that are named with port 53
	exact map[uint16]spans // the very addresses that hide an IPv4 one, see form, by port
}

func newTargets() *targets {
	return &targets{ports: make(map[uint16]spans), exact: make(map[uint16]spans)}
}

const dnsPort = 53

// add takes one target. floor is cut out of networks; a target that is one address names it, which lifts the floor.
func (t *targets) add(p netip.Prefix, port uint16, floor spans) {
	s := spans{spanOf(p)}
	switch {
	case !p.IsSingleIP():
		s = s.without(floor)
	case port == dnsPort:
		t.dns = append(t.dns, s...)
		return
	case embeds(p.Addr()):
		t.exact[port] = append(t.exact[port], s...)
		return
	}
	if port != dnsPort { // which goes to the DNS filter
		t.ports[port] = append(t.ports[port], s...)
	}
}

// finish brings all into order, without the addresses that are in never and, if within is not nil, those that are not
// in within.
func (t *targets) finish(never, within spans) {
	clean := func(s spans) spans {
		s = s.merged().without(never)
		if within != nil {
			s = s.within(within)
		}
		return s
	}
	t.dns = clean(t.dns)
	for _, ports := range []map[uint16]spans{t.ports, t.exact} {
		every := clean(ports[0])
		for port, s := range ports {
			ports[port] = clean(s)
			if port != 0 {
				ports[port] = ports[port].without(every)
			}
		}
	}
}

// on are the targets that are on the floor, by port.
func (t *targets) on(floor spans) map[uint16]spans {
	found := make(map[uint16]spans)
	for port, s := range t.ports {
		if s = s.within(floor); len(s) > 0 {
			found[port] = s
		}
	}
	return found
}

// each calls do with the phase's targets of the family.
func (p *Phase) each(f nft.Kind, do func(netip.Prefix, uint16)) {
	for prefix, port := range p.Rules.Prefixes() {
		if kindOf(prefix.Addr()) == f {
			do(prefix, port)
		}
	}
	for _, n := range p.Named {
		if kindOf(n.Addr()) == f {
			do(netip.PrefixFrom(n.Addr(), n.Addr().BitLen()), n.Port())
		}
	}
}

// allowed are the targets of an allowlist that are on the direct plane.
func (s *Spec) allowed(p *Phase, f nft.Kind) *targets {
	t := newTargets()
	floor := s.floor(f)
	p.each(f, func(prefix netip.Prefix, port uint16) { t.add(prefix, port, floor) })
	var within spans
	if s.Internal {
		if within = s.near(f); within == nil {
			within = spans{}
		}
	}
	t.finish(never(f), within)
	return t
}

// denied are the targets of a denylist.
func (s *Spec) denied(p *Phase, f nft.Kind) *targets {
	t := newTargets()
	p.each(f, func(prefix netip.Prefix, port uint16) {
		if port != dnsPort { // which goes to the DNS filter
			t.ports[port] = append(t.ports[port], spanOf(prefix))
		}
	})
	t.finish(nil, nil)
	return t
}

// never are addresses that nothing opens: as destinations on the wire they are none.
func never(f nft.Kind) spans {
	if f == nft.IPv4 {
		return spansOf(netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"))
	}
	// An IPv4-mapped address is an IPv4 one inside of sockets; packets do not have it (RFC 4291 §2.5.5.2).
	return spansOf(netip.MustParsePrefix("::/127"), netip.MustParsePrefix("::ffff:0:0/96"))
}

// floor are the addresses that are refused unless a target names them: those of the matcher and what only the Spec
// knows, the broadcast addresses of the container's networks.
func (s *Spec) floor(f nft.Kind) spans {
	all := never(f)
	if s.NoFloor {
		return all
	}
	for _, p := range matcher.FloorPrefixes() {
		if kindOf(p.Addr()) == f {
			all = append(all, spanOf(p))
		}
	}
	for _, n := range s.Networks {
		if f == nft.IPv4 && n.Addr().Is4() && n.Bits() < 31 { // RFC 3021: a /31 has none
			last := spanOf(n).last
			all = append(all, span{last, last})
		}
	}
	return all.merged()
}

// near are the destinations that a container reaches without a router: its networks, and the host.
func (s *Spec) near(f nft.Kind) spans {
	var all spans
	for _, n := range s.Networks {
		if kindOf(n.Addr()) == f {
			all = append(all, spanOf(n))
		}
	}
	for _, a := range s.Host {
		if kindOf(a) == f {
			all = append(all, span{a, a})
		}
	}
	return all.merged()
}

// local are the destinations that are on the direct plane whatever the mode.
func (s *Spec) local(f nft.Kind) spans {
	all := s.near(f)
	if !s.Internal {
		for _, p := range s.Direct {
			if kindOf(p.Addr()) == f {
				all = append(all, spanOf(p))
			}
		}
	}
	return all.merged()
}
