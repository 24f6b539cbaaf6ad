package matcher

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"sluice/policy"
)

// addresses are the address and network targets of a policy.
type addresses struct {
	targets []policy.Target
	spans   []span            // of targets
	table   bart.Table[int32] // leads from a prefix to its first span
	// every and ports tell whether any target covers a port; they are empty where nobody asks.
	every bool
	ports *[1 << 16 / 64]uint64
}

// span is a range of targets that have one spelling of one prefix. Ports ascend in it.
type span struct {
	first, end int32
	next       int32 // another spelling of the prefix, or noSpan
}

const noSpan = -1

// newAddresses takes those targets that are addresses and networks, by host. Without withPorts nobody may ask
// [addresses.hasPort]: the set of ports is larger than a small policy.
func newAddresses(targets []policy.Target, hosts []span, withPorts bool) (*addresses, error) {
	a := new(addresses)
	n := 0
	for _, h := range hosts {
		n += int(h.end - h.first)
	}
	a.targets = make([]policy.Target, 0, n)
	a.spans = make([]span, 0, len(hosts))
	for _, h := range hosts {
		prefix := targets[h.first].Prefix
		s := span{first: int32(len(a.targets)), next: noSpan}
		for i := h.first; i < h.end; i++ {
			t := &targets[i]
			if t.Prefix != prefix || !prefix.IsValid() || prefix != prefix.Masked() || prefix.Addr().Is4In6() {
				return nil, fmt.Errorf("target %q: prefix %v is not in normal form", t.Host, t.Prefix)
			}
			if withPorts {
				a.addPort(t.Port)
			}
			a.targets = append(a.targets, *t)
		}
		s.end = int32(len(a.targets))
		a.table.Modify(prefix, func(other int32, exists bool) (int32, bool) {
			if exists {
				s.next = other
			}
			return int32(len(a.spans)), false
		})
		a.spans = append(a.spans, s)
	}
	return a, nil
}

func (a *addresses) addPort(port uint16) {
	if port == 0 {
		a.every = true
		return
	}
	if a.ports == nil {
		a.ports = new([1 << 16 / 64]uint64)
	}
	a.ports[port>>6] |= 1 << (port & 63)
}

// hasPort reports whether there is a target for the port, whatever its address.
func (a *addresses) hasPort(port int) bool {
	switch {
	case a.every:
		return true
	case a.ports == nil:
		return false
	case port == anyPort:
		return true
	default:
		return a.ports[port>>6]&(1<<(port&63)) != 0
	}
}

// cover returns the target with the longest prefix that covers address and port. listed tells whether any target
// covers the address.
func (a *addresses) cover(addr netip.Addr, port int) (id RuleID, listed, ok bool) {
	i, found := a.table.Lookup(addr)
	for found {
		if id, ok := a.inSpans(i, port); ok {
			return id, true, true
		}
		listed = true
		bits := a.targets[a.spans[i].first].Prefix.Bits()
		if bits == 0 {
			break
		}
		i, found = a.table.LookupPrefix(netip.PrefixFrom(addr, bits-1))
	}
	return NoRule, listed, false
}

// names reports whether a target names this very address, with the port.
func (a *addresses) names(addr netip.Addr, port int) bool {
	i, ok := a.table.Lookup(addr)
	if !ok || !a.targets[a.spans[i].first].Prefix.IsSingleIP() {
		return false
	}
	_, ok = a.inSpans(i, port)
	return ok
}

// inSpans returns the target for a port among those of one prefix, which begin in span i.
func (a *addresses) inSpans(i int32, port int) (RuleID, bool) {
	for ; i != noSpan; i = a.spans[i].next {
		s := a.spans[i]
		if port == anyPort || a.targets[s.first].Port == 0 {
			return addressRule(int(s.first)), true
		}
		n, ok := slices.BinarySearchFunc(a.targets[s.first:s.end], port, func(t policy.Target, port int) int {
			return int(t.Port) - port
		})
		if ok {
			return addressRule(int(s.first) + n), true
		}
	}
	return NoRule, false
}
