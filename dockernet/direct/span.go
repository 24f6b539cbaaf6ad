package direct

import (
	"cmp"
	"net/netip"
	"slices"

	"sluice/dockernet/nft"
)

// span is a range of addresses of one family, both ends inside.
type span struct{ first, last netip.Addr }

// spans are in ascending order, with at least one address between any two of them once they are merged.
type spans []span

func spanOf(p netip.Prefix) span { return span{p.Masked().Addr(), nft.LastOf(p)} }

func spansOf(prefixes ...netip.Prefix) spans {
	s := make(spans, 0, len(prefixes))
	for _, p := range prefixes {
		s = append(s, spanOf(p))
	}
	return s.merged()
}

// single reports whether it is one address.
func (s span) single() bool { return s.first == s.last }

// merged returns the same addresses in order, as few spans as possible.
func (s spans) merged() spans {
	s = slices.SortedFunc(slices.Values(s), func(a, b span) int {
		return cmp.Or(a.first.Compare(b.first), a.last.Compare(b.last))
	})
	m := s[:0]
	for _, next := range s {
		if n := len(m); n > 0 {
			end := m[n-1].last
			touches := next.first.Compare(end) <= 0 || next.first == end.Next()
			if touches && next.first.BitLen() == end.BitLen() {
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

// without returns the addresses of s that are not in other. Both are merged and of one family, and so is the result.
func (s spans) without(other spans) spans {
	var left spans
	for _, a := range s {
		from, all := a.first, true
		i, _ := slices.BinarySearchFunc(other, a.first, func(o span, at netip.Addr) int { return o.last.Compare(at) })
		for ; i < len(other) && other[i].first.Compare(a.last) <= 0; i++ {
			o := other[i]
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

// prefixes are the fewest networks that are the span together.
func (s span) prefixes() (list []netip.Prefix) {
	for a := s.first; ; {
		bits := a.BitLen()
		for bits > 0 {
			p := netip.PrefixFrom(a, bits-1)
			if p.Masked().Addr() != a || nft.LastOf(p).Compare(s.last) > 0 {
				break
			}
			bits--
		}
		p := netip.PrefixFrom(a, bits)
		list = append(list, p)
		if a = nft.LastOf(p).Next(); !a.IsValid() || a.Compare(s.last) > 0 {
			return list
		}
	}
}
