package matcher

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/gaissmai/bart"
)

// never holds the sets of [Options.Never] that rule sets have, by what is in them. Nearly all rule sets of a process refuse
// the same networks, and beside a small policy the set is most of the memory. A set goes with the last rule set that
// has it.
var never = struct {
	sync.Mutex // guards sets
	sets       map[string]weak.Pointer[bart.Lite]
}{sets: make(map[string]weak.Pointer[bart.Lite])}

// neverSet returns the set of these prefixes, in whatever order they are. Others may have it: it must not be changed.
func neverSet(prefixes []netip.Prefix) (*bart.Lite, error) {
	list := make([]netip.Prefix, len(prefixes))
	for i, n := range prefixes {
		// An IPv4-mapped address is judged as the IPv4 one; a range of more than such addresses means nothing.
		if n.Addr().Is4In6() {
			n = netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-96)
		}
		if !n.IsValid() {
			return nil, fmt.Errorf("option Never[%d]: %v is no range of addresses", i, prefixes[i])
		}
		list[i] = n.Masked()
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	list = slices.Compact(list)
	var text []byte
	for _, n := range list {
		text = append(n.AppendTo(text), ' ')
	}
	key := string(text)
	never.Lock()
	defer never.Unlock()
	if known := never.sets[key].Value(); known != nil {
		return known, nil
	}
	set := new(bart.Lite)
	for _, n := range list {
		set.Insert(n)
	}
	never.sets[key] = weak.Make(set)
	runtime.AddCleanup(set, forgetNever, key)
	return set, nil
}

// forgetNever is called when a set has gone. Its successor may be there already.
func forgetNever(key string) {
	never.Lock()
	defer never.Unlock()
	if never.sets[key].Value() == nil {
		delete(never.sets, key)
	}
}
