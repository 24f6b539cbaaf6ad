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
	// targets in the order of the policy.
	targets []policy.Target
	// runs and the table that leads to them: the longest prefix that covers an address gives the first run to look
	// at, and next leads on to all that cover it.
	runs  []run
	table bart.Table[int32]
	// every and ports tell whether any target covers a port.
	every bool
	ports *[1 << 16 / 64]uint64
}

// run is a range of targets that have one spelling of one prefix. Ports ascend in it.
type run struct {
	first, end int32
	next       int32 // a run with the same prefix or else with the next shorter one, or noRun
	single     bool  // the prefix is one address
}

const noRun = -1

// newAddresses takes the addresses and networks out of targets, which are sorted by host and port.
func newAddresses(all []policy.Target) (*addresses, error) {
	a := new(addresses)
	n := 0
	for i := range all {
		if !all[i].Kind.IsName() {
			n++
		}
	}
	if n == 0 {
		return a, nil
	}
	a.targets = make([]policy.Target, 0, n)
	for i := range all {
		if !all[i].Kind.IsName() {
			a.targets = append(a.targets, all[i])
		}
	}
	targets := a.targets
	for i := 0; i < len(targets); {
		t := &targets[i]
		if t.Prefix != t.Prefix.Masked() || !t.Prefix.IsValid() || t.Prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("target %q: the prefix %v is not in normal form", t.Host, t.Prefix)
		}
		n := sameHost(targets[i:])
		for _, u := range targets[i : i+n] {
			a.addPort(u.Port)
		}
		r := run{first: int32(i), end: int32(i + n), next: noRun, single: t.Prefix.IsSingleIP()}
		a.table.Modify(t.Prefix, func(same int32, exists bool) (int32, bool) {
			if exists { // another spelling
				r.next = same
			}
			return int32(len(a.runs)), false
		})
		a.runs = append(a.runs, r)
		i += n
	}
	for i := range a.runs {
		r := &a.runs[i]
		p := targets[r.first].Prefix
		if r.next != noRun || p.Bits() == 0 {
			continue
		}
		if wider, ok := a.table.LookupPrefix(netip.PrefixFrom(p.Addr(), p.Bits()-1)); ok {
			r.next = wider
		}
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
	i, listed := a.table.Lookup(addr)
	if !listed {
		return NoRule, false, false
	}
	for ; i != noRun; i = a.runs[i].next {
		if id, ok := a.inRun(&a.runs[i], port); ok {
			return id, true, true
		}
	}
	return NoRule, true, false
}

// names reports whether a target names this very address, with the port.
func (a *addresses) names(addr netip.Addr, port int) bool {
	i, ok := a.table.Lookup(addr)
	if !ok {
		return false
	}
	for ; i != noRun && a.runs[i].single; i = a.runs[i].next {
		if _, ok := a.inRun(&a.runs[i], port); ok {
			return true
		}
	}
	return false
}

func (a *addresses) inRun(r *run, port int) (RuleID, bool) {
	if port == anyPort || a.targets[r.first].Port == 0 {
		return addressRule(int(r.first)), true
	}
	i, ok := slices.BinarySearchFunc(a.targets[r.first:r.end], port, func(t policy.Target, port int) int {
		return int(t.Port) - port
	})
	return addressRule(int(r.first) + i), ok
}
