package gate

import (
	"cmp"
	"net/netip"
	"slices"
)

// span is a range of addresses of one family, both ends inside.
type span struct{ first, last netip.Addr }

// spans are in ascending order, with at least one address between any two of them once they are merged.
type spans []span

func spanOf(p netip.Prefix) span {
	p = p.Masked()
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return span{p.Addr(), last}
}

func spansOf(prefixes []netip.Prefix) spans {
	s := make(spans, 0, len(prefixes))
	for _, p := range prefixes {
		s = append(s, spanOf(p))
	}
	return s.merged()
}

// single reports whether it is one address.
func (s span) single() bool { return s.first == s.last }

// String writes the span as nft does: an address, a prefix or a range.
func (s span) String() string {
	if s.single() {
		return s.first.String()
	}
	for bits := s.first.BitLen() - 1; bits >= 0; bits-- {
		p := netip.PrefixFrom(s.first, bits)
		if p.Masked() != p {
			break
		}
		if spanOf(p) == s {
			return p.String()
		}
	}
	return s.first.String() + "-" + s.last.String()
}

// prefixes returns the prefixes that make up the span, in order.
func (s span) prefixes() []netip.Prefix {
	var list []netip.Prefix
	for at := s.first; ; {
		bits := at.BitLen()
		for bits > 0 {
			p := netip.PrefixFrom(at, bits-1)
			if p.Masked() != p || spanOf(p).last.Compare(s.last) > 0 {
				break
			}
			bits--
		}
		p := netip.PrefixFrom(at, bits)
		list = append(list, p)
		if at = spanOf(p).last.Next(); !at.IsValid() || at.Compare(s.last) > 0 {
			return list
		}
	}
}

// merged returns the same addresses in order, as few spans as possible.
func (s spans) merged() spans {
	s = slices.SortedFunc(slices.Values(s), func(a, b span) int {
		return cmp.Or(a.first.Compare(b.first), a.last.Compare(b.last))
	})
	m := s[:0]
	for _, next := range s {
		if n := len(m); n > 0 {
			if end := m[n-1].last; next.first.BitLen() == end.BitLen() && (next.first.Compare(end) <= 0 || next.first == end.Next()) {
				if next.last.Compare(end) > 0 {
					m[n-1].last = next.last
				}
				continue
			}
		}
		m = append(m, next)
	}
	return m
}

// without returns the addresses of s that are not in other. Both are merged, and so is the result.
func (s spans) without(other spans) spans {
	var left spans
	for _, a := range s {
		from, all := a.first, true
		i, _ := slices.BinarySearchFunc(other, a.first, func(o span, at netip.Addr) int { return o.last.Compare(at) })
		for ; i < len(other) && other[i].first.Compare(a.last) <= 0; i++ {
			o := other[i]
			if o.first.BitLen() != a.first.BitLen() {
				continue
			}
			if from.Compare(o.first) < 0 {
				left = append(left, span{from, o.first.Prev()})
			}
			if o.last.Compare(a.last) >= 0 {
				all = false
				break
			}
			from = o.last.Next()
		}
		if all {
			left = append(left, span{from, a.last})
		}
	}
	return left
}

// within returns the addresses that are in both, merged.
func (s spans) within(other spans) spans { return s.without(s.without(other)) }

func (s spans) contains(a netip.Addr) bool {
	i, _ := slices.BinarySearchFunc(s, a, func(s span, a netip.Addr) int { return s.last.Compare(a) })
	return i < len(s) && s[i].first.Compare(a) <= 0
}
