package gate

import (
	"bytes"
	"net/netip"
)

// form is a kind of IPv6 address that hides an IPv4 one, which is judged too. These are the forms of package matcher,
// but for one difference, see unreadable.
type form struct {
	name string
	// value and mask tell addresses of the form from others.
	value, mask [16]byte
	// offset is where in the address the IPv4 one is, and flipped is set if all its bits are inverted.
	offset  int
	flipped bool
	// translated: packets to the address end at that IPv4 host, so that a target on that allows it.
	translated bool
}

var forms = []form{
	{name: "NAT64", value: v6("64:ff9b::"), mask: ones(0, 12), offset: 12, translated: true},                           // RFC 6052 §2.1
	{name: "local NAT64", value: v6("64:ff9b:1::"), mask: both(ones(0, 6), ones(8, 12)), offset: 12, translated: true}, // RFC 8215, a /96 of it
	{name: "SIIT", value: v6("::ffff:0:0:0"), mask: ones(0, 12), offset: 12, translated: true},                         // RFC 2765 §2.1
	{name: "6to4", value: v6("2002::"), mask: ones(0, 2), offset: 2},                                                   // RFC 3056 §2
	{name: "Teredo", value: v6("2001::"), mask: ones(0, 4), offset: 12, flipped: true},                                 // RFC 4380 §4
	{name: "IPv4-compatible", value: v6("::"), mask: ones(0, 12), offset: 12},                                          // RFC 4291 §2.5.5.1
	{name: "ISATAP", value: v6("::5efe:0:0"), mask: isatapMask, offset: 12},                                            // RFC 5214 §6.1
}

// translators is how many of the forms are translated.
const translators = 3

// unreadable are addresses under 64:ff9b:1::/48 (RFC 8215) that a translator with a prefix shorter than /96 may read
// in several ways. The matcher judges every reading; rules cannot take those addresses apart, so the direct plane
// refuses them. They are what form has value and mask for, without being of the form "local NAT64".
var unreadable = netip.MustParsePrefix("64:ff9b:1::/48")

// In an ISATAP interface identifier the bit 0x02 of the first byte may be set or not.
var isatapMask = func() [16]byte { m := ones(8, 12); m[8] &^= 0x02; return m }()

func v6(s string) [16]byte { return netip.MustParseAddr(s).As16() }

func ones(from, to int) (m [16]byte) {
	copy(m[from:to], bytes.Repeat([]byte{0xff}, 16))
	return m
}

func both(a, b [16]byte) [16]byte {
	for i := range a {
		a[i] |= b[i]
	}
	return a
}

// wrappers are prefixes with all addresses that hide an IPv4 one, but those of ISATAP, whose mark is not in front, and
// with few others.
var wrappers = []netip.Prefix{netip.MustParsePrefix("::/8"), netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("2002::/16")}

// matches reports whether the address is of the form.
func (f *form) matches(a netip.Addr) bool {
	b := a.As16()
	for i := range b {
		if b[i]&f.mask[i] != f.value[i] {
			return false
		}
	}
	return true
}

// embeds reports whether the address hides an IPv4 one.
func embeds(a netip.Addr) bool {
	if a.Is4() {
		return false
	}
	for i := range forms {
		if forms[i].matches(a) {
			return true
		}
	}
	return unreadable.Contains(a)
}
