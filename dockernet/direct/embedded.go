package direct

import (
	"encoding/binary"
	"net/netip"

	"sluice/dockernet/nft"
)

// form is a kind of IPv6 address that hides an IPv4 one, which is judged too. These are the forms of package matcher,
// but for one difference, see unreadable.
type form struct {
	prefix netip.Prefix
	// mask and value tell addresses of the form from others of the prefix, by their bytes from 8 to 11.
	mask, value uint32
	inner       *nft.Field
	// translated: packets to the address end at that IPv4 host, so that a target on that allows it.
	translated bool
}

// Where the IPv4 address is.
var (
	atEnd   = nft.EmbeddedIPv4("last 4 bytes", 12, false)
	of6to4  = nft.EmbeddedIPv4("6to4", 2, false)
	flipped = nft.EmbeddedIPv4("Teredo", 12, true)
)

var forms = []form{
	{prefix: netip.MustParsePrefix("64:ff9b::/96"), inner: atEnd, translated: true},             // NAT64, RFC 6052 §2.1
	{prefix: unreadable, mask: 0xffffffff, inner: atEnd, translated: true},                      // RFC 8215, a /96 of it
	{prefix: netip.MustParsePrefix("::ffff:0:0:0/96"), inner: atEnd, translated: true},          // SIIT, RFC 2765 §2.1
	{prefix: netip.MustParsePrefix("2002::/16"), inner: of6to4},                                 // RFC 3056 §2
	{prefix: netip.MustParsePrefix("2001::/32"), inner: flipped},                                // Teredo, RFC 4380 §4
	{prefix: netip.MustParsePrefix("::/96"), inner: atEnd},                                      // IPv4-compatible, RFC 4291 §2.5.5.1
	{prefix: netip.MustParsePrefix("::/0"), mask: isatap.Mask, value: isatapMark, inner: atEnd}, // ISATAP, RFC 5214 §6.1
}

// The form "local NAT64" and the addresses that are unreadable begin alike. These a translator with a prefix shorter
// than /96 may read in several ways (RFC 8215). The matcher judges every reading; rules cannot take those addresses
// apart, so the direct plane refuses them.
var unreadable = netip.MustParsePrefix("64:ff9b:1::/48")

// isUnreadable are the tests for them.
var isUnreadable = []nft.Part{nft.Is(nft.IP6Destination, nft.Network(unreadable)), nft.Not(middle, nft.Bytes{0, 0, 0, 0})}

// middle are the bytes from 8 to 11 of the destination.
var middle = nft.InNetwork(24+8, 4)

// In an ISATAP interface identifier the bit 0x02 of the first byte may be set or not.
const isatapMark = 0x5efe

var isatap = nft.Masked{Field: middle, Mask: 0xfdffffff, Value: nft.Hex(isatapMark)}

// shape tests whether an address is of the form.
func (f *form) shape() (tests []nft.Part) {
	if f.prefix.Bits() > 0 {
		tests = append(tests, nft.Is(nft.IP6Destination, nft.Network(f.prefix)))
	}
	switch f.mask {
	case 0:
	case isatap.Mask:
		tests = append(tests, isatap)
	default:
		tests = append(tests, nft.Is(middle, nft.Bytes(binary.BigEndian.AppendUint32(nil, f.value))))
	}
	return tests
}

// wrappers are networks with all addresses that hide an IPv4 one, but those of ISATAP, whose mark is not in front, and
// with few others.
var wrappers = []netip.Prefix{netip.MustParsePrefix("::/8"), netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("2002::/16")}

// places is how many places there are in which the forms hide an address.
const places = 3

// matches reports whether the address is of the form.
func (f *form) matches(a netip.Addr) bool {
	b := a.As16()
	return f.prefix.Contains(a) && binary.BigEndian.Uint32(b[8:])&f.mask == f.value
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
