package direct

import (
	"bytes"
	"net/netip"

	"sluice/dockernet/nft"
)

// form is a kind of IPv6 address that hides an IPv4 one, which is judged too. These are the forms of package matcher,
// but for one difference, see unreadable.
type form struct {
	shape nft.Shaped // tells addresses of the form from others
	inner *nft.Field
	// translated: packets to the address end at that IPv4 host, so that a target on that allows it.
	translated bool
}

func formOf(name, value string, mask [16]byte, at int) form {
	return form{shape: nft.Shaped{Value: netip.MustParseAddr(value).As16(), Mask: mask}, inner: nft.EmbeddedIPv4(name, at, name == "Teredo")}
}

func translator(f form) form { f.translated = true; return f }

var forms = []form{
	translator(formOf("NAT64", "64:ff9b::", ones(0, 12), 12)),                           // RFC 6052 §2.1
	translator(formOf("local NAT64", "64:ff9b:1::", both(ones(0, 6), ones(8, 12)), 12)), // RFC 8215, a /96 of it
	translator(formOf("SIIT", "::ffff:0:0:0", ones(0, 12), 12)),                         // RFC 2765 §2.1
	formOf("6to4", "2002::", ones(0, 2), 2),                                             // RFC 3056 §2
	formOf("Teredo", "2001::", ones(0, 4), 12),                                          // RFC 4380 §4, with its bits inverted
	formOf("IPv4-compatible", "::", ones(0, 12), 12),                                    // RFC 4291 §2.5.5.1
	formOf("ISATAP", "::5efe:0:0", isatapMask, 12),                                      // RFC 5214 §6.1
}

// unreadable are addresses under 64:ff9b:1::/48 (RFC 8215) that a translator with a prefix shorter than /96 may read
// in several ways. The matcher judges every reading; rules cannot take those addresses apart, so the direct plane
// refuses them. They begin like the form "local NAT64", without being of it.
var unreadable = netip.MustParsePrefix("64:ff9b:1::/48")

// isUnreadable are the tests for them.
var isUnreadable = []nft.Part{
	nft.Is(nft.IP6Destination, nft.Network(unreadable)),
	nft.Not(nft.InNetwork(24+8, 4), nft.Bytes{0, 0, 0, 0}),
}

// isISATAP is the shape of the last of the forms, without the bytes that it does not look at.
var isISATAP = nft.Masked{Field: nft.InNetwork(24+8, 4), Mask: 0xfdffffff, Value: nft.Hex(0x5efe)}

// In an ISATAP interface identifier the bit 0x02 of the first byte may be set or not.
var isatapMask = func() [16]byte { m := ones(8, 12); m[8] &^= 0x02; return m }()

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

// wrappers are networks with all addresses that hide an IPv4 one, but those of ISATAP, whose mark is not in front, and
// with few others.
var wrappers = []netip.Prefix{netip.MustParsePrefix("::/8"), netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("2002::/16")}

// translators is how many of the forms are translated.
const translators = 3

// matches reports whether the address is of the form.
func (f *form) matches(a netip.Addr) bool {
	b := a.As16()
	for i := range b {
		if b[i]&f.shape.Mask[i] != f.shape.Value[i] {
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
