package matcher

import (
	"encoding/binary"
	"math/bits"
)

// Limits of DNS names, RFC 1035 §2.3.4, in text form without the final dot.
const (
	maxNameBytes  = 253
	maxLabelBytes = 63
)

// alphabet says which bytes a name may have.
type alphabet uint8

const (
	hostNames alphabet = iota // letters, digits, "-" and "_"
	dnsNames                  // also any other visible ASCII but the backslash, which starts an escape
)

// dots tells where the dots of a name are: bit n is set if there is one in front of the last n bytes.
type dots [4]uint64

// scan finds the dots of a name, and reports whether it has upper case letters and whether it is valid.
//
// It is not if it or a label is empty or too long, if there are bytes outside the alphabet, or if an address parser could
// take it for an IPv4 address because the last label is a number (WHATWG URL §3.5, "ends in a number checker").
// Hyphens at the ends of a label are let through: such names exist.
func (d *dots) scan(name []byte, a alphabet) (upper, ok bool) {
	*d = dots{}
	if len(name) == 0 || len(name) > maxNameBytes {
		return false, false
	}
	label := 0 // its first byte
	for i, c := range name {
		switch {
		case c == '.':
			if i == label {
				return false, false
			}
			label = i + 1
			behind := len(name) - label
			d[behind>>6] |= 1 << (behind & 63)
		case i-label == maxLabelBytes:
			return false, false
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
		case c >= 'A' && c <= 'Z':
			upper = true
		case a == dnsNames && c > ' ' && c < 0x7f && c != '\\':
		default:
			return false, false
		}
	}
	return upper, label < len(name) && !isNumber(name[label:])
}

// isNumber reports whether inet_aton could read the label: decimal or octal digits, or 0x and hexadecimal digits.
func isNumber(label []byte) bool {
	hex := len(label) >= 2 && label[0] == '0' && label[1]|0x20 == 'x'
	if hex {
		label = label[2:]
	}
	for _, c := range label {
		if (c < '0' || c > '9') && !(hex && c|0x20 >= 'a' && c|0x20 <= 'f') {
			return false
		}
	}
	return true
}

// scanUsual is scan for usual names, eight bytes at a time: of 8 to 63 bytes, all of them a to z, 0 to 9, "-" or ".",
// with a letter behind the last dot. ok is false for others and for what is no name.
func scanUsual(name []byte) (dots uint64, ok bool) {
	n := len(name)
	if n < 8 || n > maxLabelBytes {
		return 0, false
	}
	odd := uint64(0)
	for end := n; end > 8; end -= 8 {
		d, o := scan8(word(name, end))
		dots |= d << (n - end)
		odd |= o
	}
	d, o := scan8(word(name, 8)) // some of it again
	dots |= d << (n - 8)
	return dots, labelled(name, dots, odd|o)
}

// isUsual is scanUsual for a name of 8 to usualBytes bytes whose words are at hand, see fourWords.
func isUsual(name []byte, b, c int, w0, w1, w2, w3 uint64) bool {
	n := len(name)
	d0, o0 := scan8(w0)
	d1, o1 := scan8(w1)
	d2, o2 := scan8(w2)
	d3, o3 := scan8(w3)
	return labelled(name, d0|d1<<(n-b)|d2<<(n-c)|d3<<(n-8), o0|o1|o2|o3)
}

// labelled reports whether a name of 8 to 63 bytes has no odd bytes, no empty label, and a letter behind its last dot.
func labelled(name []byte, dots, odd uint64) bool {
	n := len(name)
	// Odd bytes; an empty label inside or at the end; or in front.
	return odd|dots&(dots<<1|1)|dots>>(n-1) == 0 && name[n-min(n, bits.TrailingZeros64(dots))] >= 'a'
}

// scan8 marks the dots in a word with one bit each, the lowest for the last byte. odd is not 0 if there are other bytes
// than a to z, 0 to 9, "-" and ".". What is computed here is true for a byte of w if the byte's highest bit is 1.
func scan8(w uint64) (dots, odd uint64) {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	t := w | high // what is taken off t does not borrow from the next byte
	letters := (t - ones*'a') &^ (t - ones*('z'+1))
	others := (t - ones*'-') &^ (t - ones*('9'+1)) // "-", ".", "/" and digits
	pair := (t - ones*'.') &^ (t - ones*'0')       // "." and "/", which is the odd one of them
	dots = pair &^ (w << 7) & high
	// The product moves bit 8i to bit 7-i of the highest byte.
	return dots >> 7 * 0x8040201008040201 >> 56, (^(letters | others) | pair&(w<<7) | w) & high
}

// within returns the i-th word of the dots that are in the last n bytes.
func (d *dots) within(i, n int) uint64 {
	switch {
	case n>>6 > i:
		return d[i]
	case n>>6 == i:
		return d[i] & (1<<(n&63) - 1)
	default:
		return 0
	}
}

// word returns the eight bytes of b in front of index end, the last one in the highest byte.
func word(b []byte, end int) uint64 { return binary.LittleEndian.Uint64(b[end-8 : end]) }
