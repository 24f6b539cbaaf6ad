package wire

import (
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Element is an address, or a range of addresses with both ends inside, and its port in sets that have ports.
type Element struct {
	First, Last netip.Addr
	Port        uint16
}

// element adds what the kernel takes for it: one element, or for a range without a port two, the second of which is
// the first address behind it, if there is one.
func (s *Set) element(list attributes, e *Element) attributes {
	switch {
	case s.WithPort && s.Interval:
		return list.nest(unix.NFTA_LIST_ELEM, key(nil, unix.NFTA_SET_ELEM_KEY, e.key(e.First)).
			nest(nftables.NFTA_SET_ELEM_KEY_END, attributes(nil).add(unix.NFTA_DATA_VALUE, e.key(e.Last))))
	case s.WithPort:
		return list.nest(unix.NFTA_LIST_ELEM, key(nil, unix.NFTA_SET_ELEM_KEY, e.key(e.First)))
	}
	list = list.nest(unix.NFTA_LIST_ELEM, key(nil, unix.NFTA_SET_ELEM_KEY, e.First.AsSlice()))
	if behind := e.Last.Next(); s.Interval && behind.IsValid() {
		end := attributes(nil).number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		list = list.nest(unix.NFTA_LIST_ELEM, key(end, unix.NFTA_SET_ELEM_KEY, behind.AsSlice()))
	}
	return list
}

func key(a attributes, kind uint16, data []byte) attributes {
	return a.nest(kind, attributes(nil).add(unix.NFTA_DATA_VALUE, data))
}

// key is the address and the port, each filled up to units of 4 bytes.
func (e *Element) key(a netip.Addr) []byte {
	return append(a.AsSlice(), byte(e.Port>>8), byte(e.Port), 0, 0)
}
