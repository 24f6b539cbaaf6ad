package matcher

import "net/netip"

// candidates are an address and the IPv4 addresses hidden in it: all of them are judged.
//
// Every one must be free of the floor, of [Options.Never] and of denying targets. A target on the IPv4 address
// allows the IPv6 one only if packets to it end at that very IPv4 host, that is for translators (NAT64, SIIT). In the
// tunnel forms (6to4, Teredo, ISATAP, IPv4-compatible) the IPv4 address is only the tunnel's end and other hosts
// stand behind it: there a target must cover the IPv6 address itself.
//
// NAT64 prefixes that a network has chosen from its own addresses cannot be told from other addresses: what is sent
// there is judged as the IPv6 address it is.
type candidates struct {
	addr       netip.Addr    // without zone; never IPv4-mapped
	inner      [4]netip.Addr // n are in use
	n          int
	translated bool
}

func candidatesOf(a netip.Addr) candidates {
	a = a.Unmap().WithZone("")
	c := candidates{addr: a}
	if !a.Is6() {
		return c
	}
	b := a.As16()
	switch {
	case b[0] == 0x00 && b[1] == 0x64 && b[2] == 0xff && b[3] == 0x9b:
		if b[4] == 0 && b[5] == 1 {
			c.localNAT64(&b) // 64:ff9b:1::/48, RFC 8215
		} else if isZero(b[4:12]) {
			c.translator(b[12], b[13], b[14], b[15]) // 64:ff9b::/96, RFC 6052 §2.1
		}
	case b[0] == 0x20 && b[1] == 0x02:
		c.add(b[2], b[3], b[4], b[5]) // 6to4, 2002::/16, RFC 3056 §2
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0:
		c.add(^b[12], ^b[13], ^b[14], ^b[15]) // the client of Teredo, 2001::/32, RFC 4380 §4
	case isZero(b[:8]) && b[8] == 0xff && b[9] == 0xff && isZero(b[10:12]):
		c.translator(b[12], b[13], b[14], b[15]) // SIIT, ::ffff:0:0:0/96, RFC 2765 §2.1
	case isZero(b[:12]) && !a.IsUnspecified() && !a.IsLoopback():
		c.add(b[12], b[13], b[14], b[15]) // IPv4-compatible, ::/96, RFC 4291 §2.5.5.1
	case b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe:
		c.add(b[12], b[13], b[14], b[15]) // ISATAP, RFC 5214 §6.1
	}
	return c
}

func (c *candidates) add(b0, b1, b2, b3 byte) {
	c.inner[c.n] = netip.AddrFrom4([4]byte{b0, b1, b2, b3})
	c.n++
}

func (c *candidates) translator(b0, b1, b2, b3 byte) {
	c.add(b0, b1, b2, b3)
	c.translated = true
}

// localNAT64 reads an address under 64:ff9b:1::/48. How long the prefix of the translator is cannot be seen, so every
// layout of RFC 6052 §2.2 that fits is judged: bits 64 to 71 are zero, and so is what follows a shorter layout's
// IPv4 address. A reading in 0.0.0.0/8 counts only if there is no other: it is what the zeros of a longer or shorter
// prefix look like.
func (c *candidates) localNAT64(b *[16]byte) {
	c.translated = true
	readings := [4]struct {
		fits bool
		ip   [4]byte
	}{
		{true, [4]byte(b[12:16])},                                        // /96
		{b[8] == 0 && isZero(b[13:]), [4]byte(b[9:13])},                  // /64
		{b[8] == 0 && isZero(b[12:]), [4]byte{b[7], b[9], b[10], b[11]}}, // /56
		{b[8] == 0 && isZero(b[11:]), [4]byte{b[6], b[7], b[9], b[10]}},  // /48
	}
	for _, r := range readings {
		if r.fits && r.ip[0] != 0 {
			c.add(r.ip[0], r.ip[1], r.ip[2], r.ip[3])
		}
	}
	if c.n == 0 {
		c.add(b[12], b[13], b[14], b[15])
	}
}

// at returns the address for 0 and the IPv4 addresses in it for 1 to n.
func (c *candidates) at(i int) netip.Addr {
	if i == 0 {
		return c.addr
	}
	return c.inner[i-1]
}

// private reports whether any candidate is in a private range.
func (c *candidates) private() bool {
	for i := range c.n + 1 {
		if privateTable.Contains(c.at(i)) {
			return true
		}
	}
	return false
}

func isZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
