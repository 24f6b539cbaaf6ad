package policy

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
)

// ipv6 reads text with a colon in it that should be an IPv6 address alone.
func (p parser) ipv6(s string) (Target, *Error) {
	if before, _, zone := strings.Cut(s, "%"); zone {
		return Target{}, p.zoneError(before)
	}
	addr, err := netip.ParseAddr(s)
	if err == nil {
		return addressTarget(addr), nil
	}
	e := &Error{Problem: "has several colons but is not an IPv6 address", Repair: `write an IPv6 address as in "2001:db8::1", with a port as in "[2001:db8::1]:443"`}
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		if offer := p.write("[" + s[:i] + "]:" + s[i+1:]); offer != "" {
			e = &Error{Problem: "has more parts than an IPv6 address", Repair: offer}
		}
	}
	return Target{}, e
}

func (p parser) zoneError(host string) *Error {
	return &Error{Problem: "has a zone id", Repair: orElse(p.write(host), "write the address without it")}
}

// network reads text with a slash in it, which is a network or a mistake. Only an IPv4 network in the short form
// may have a port behind it.
func (p parser) network(s string, short bool) (Target, *Error) {
	head, length, _ := strings.Cut(s, "/")
	if before, _, zone := strings.Cut(head, "%"); zone && strings.IndexByte(before, ':') >= 0 {
		return Target{}, p.zoneError(before + "/" + length)
	}
	addr, err := netip.ParseAddr(head)
	if err != nil {
		if strings.Count(head, ":") > 1 || endsInNumber(head) {
			return Target{}, &Error{Problem: "is not a network: its address is not valid", Repair: `write a network as in "10.0.0.0/8" or "2001:db8::/32"`}
		}
		return Target{}, &Error{Problem: "has a path", Repair: orElse(p.write(head), "write the host alone")}
	}
	length, port, hasPort := strings.Cut(length, ":")
	if hasPort && !short {
		return Target{}, &Error{Problem: "holds a port beside the host", Repair: p.writeNetwork(head+"/"+length, port)}
	}
	if hasPort && addr.Is6() {
		return Target{}, &Error{Problem: "has a port behind an IPv6 network", Repair: p.writeNetwork(head+"/"+length, port)}
	}
	var number uint16
	var portErr *Error
	rest := ""
	if hasPort {
		if number, portErr = p.port(head+"/"+length, port); portErr == nil {
			rest = ":" + port
		}
	}
	t, e := p.prefix(addr, length, rest)
	if e == nil {
		e = portErr
	}
	if e != nil {
		return Target{}, e
	}
	t.Port = number
	return t, nil
}

// prefix judges the length behind an address. rest is the port behind that, for repairs.
func (p parser) prefix(addr netip.Addr, length, rest string) (Target, *Error) {
	n, err := strconv.Atoi(length)
	e := &Error{Repair: fmt.Sprintf("write a prefix length from 0 to %d", addr.BitLen())}
	switch {
	case !isDigits(length):
		e.Problem = "has a prefix length that is not plain digits"
		if ones, ok := maskLength(length); ok && addr.Is4() {
			e.Repair = orElse(p.write(fmt.Sprintf("%s/%d%s", addr, ones, rest)), e.Repair)
		}
		return Target{}, e
	case err != nil || n > addr.BitLen():
		e.Problem = fmt.Sprintf("has a prefix length outside 0 to %d", addr.BitLen())
		return Target{}, e
	case length[0] == '0' && len(length) > 1:
		e.Problem = "has a prefix length with a leading zero"
		e.Repair = orElse(p.write(fmt.Sprintf("%s/%d%s", addr, n, rest)), e.Repair)
		return Target{}, e
	}
	prefix := netip.PrefixFrom(addr, n)
	if masked := prefix.Masked(); masked != prefix {
		return Target{}, &Error{Problem: "is not a network: its address has bits behind the prefix",
			Repair: fmt.Sprintf("write %q for the network or %q for the address",
				prefixText(masked)+rest, prefixText(netip.PrefixFrom(addr, addr.BitLen()))+rest)}
	}
	t := Target{Host: prefixText(prefix), Kind: IPv4CIDR, Prefix: prefix}
	if addr.Is6() {
		t.Kind = IPv6CIDR
	}
	if mapped := 96; addr.Is4In6() && n >= mapped {
		t.Prefix = netip.PrefixFrom(addr.Unmap(), n-mapped)
	}
	return t, nil
}

// writeNetwork is the repair that offers a network, with a port as an object.
func (p parser) writeNetwork(network, port string) string {
	fallback := `write the network as in "2001:db8::/32", with a port as in {"host": "2001:db8::/32", "port": 443}`
	if p.offersNothing {
		return fallback
	}
	t, err := parser{offersNothing: true}.host(network)
	if err == nil && port != "" {
		t.Port, err = parser{offersNothing: true}.port(network, port)
	}
	if err != nil {
		return fallback
	}
	return "write " + t.input()
}

// maskLength returns the prefix length of a netmask such as 255.0.0.0.
func maskLength(mask string) (int, bool) {
	addr, err := netip.ParseAddr(mask)
	if err != nil || !addr.Is4() {
		return 0, false
	}
	b := addr.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	ones := bits.LeadingZeros32(^v)
	return ones, bits.OnesCount32(v) == ones
}

// addressText returns the compressed form that Python's ipaddress prints up to 3.12, and AgentCompass with it: all
// in hexadecimal. netip shows IPv4-mapped addresses with dots.
func addressText(addr netip.Addr) string {
	if !addr.Is4In6() {
		return addr.String()
	}
	b := addr.As16()
	return fmt.Sprintf("::ffff:%x:%x", uint16(b[12])<<8|uint16(b[13]), uint16(b[14])<<8|uint16(b[15]))
}

func prefixText(p netip.Prefix) string {
	return addressText(p.Addr()) + "/" + strconv.Itoa(p.Bits())
}

// endsInNumber reports whether some resolver would take the host for an IPv4 address: its last label is a number,
// decimal or hexadecimal (WHATWG URL, "ends in a number checker").
func endsInNumber(host string) bool {
	label := host[strings.LastIndexByte(host, '.')+1:]
	if isDigits(label) {
		return true
	}
	hex, isHex := strings.CutPrefix(strings.ToLower(label), "0x")
	return isHex && strings.Trim(hex, "0123456789abcdef") == ""
}

// numberLike is the error for a host that ends in a number and is not an address. rest is the port behind it.
func numberLike(host, rest string) *Error {
	var offers []string
	for _, octal := range []bool{false, true} {
		addr, ok := looseIPv4(host, octal)
		if offer := strconv.Quote(addr.String() + rest); ok && (len(offers) == 0 || offers[0] != offer) {
			offers = append(offers, offer)
		}
	}
	e := &Error{Problem: "looks like an IPv4 address but is not one",
		Repair: "write four numbers from 0 to 255 without leading zeros, or a name that does not end in a number"}
	if len(offers) > 0 {
		e.Repair = "write " + strings.Join(offers, " or ") + " if that is what is meant"
	}
	return e
}

// looseIPv4 reads an address as inet_aton does: one to four parts, the last fills what is left, hexadecimal with 0x.
// Leading zeros mean octal to inet_aton and nothing to others, hence both readings.
func looseIPv4(host string, octal bool) (netip.Addr, bool) {
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var v uint64
	for i, part := range parts {
		base := 10
		if hex, isHex := strings.CutPrefix(part, "0x"); isHex {
			part, base = orElse(hex, "0"), 16
		} else if octal && len(part) > 1 && part[0] == '0' {
			base = 8
		}
		width := 8
		if i == len(parts)-1 {
			width = 8 * (5 - len(parts))
		}
		n, err := strconv.ParseUint(part, base, width)
		if err != nil {
			return netip.Addr{}, false
		}
		v = v<<width | n
	}
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}
