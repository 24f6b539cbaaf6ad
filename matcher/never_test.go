package matcher

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"

	"sluice/policy"
)

// Rule sets that refuse the same networks share one set of them, whatever the order; others do not; and one that nobody
// has any more is forgotten.
func TestNeverShared(t *testing.T) {
	prefixes := func(all ...string) (list []netip.Prefix) {
		for _, p := range all {
			list = append(list, netip.MustParsePrefix(p))
		}
		return list
	}
	public := policy.Policy{Mode: policy.Public}
	a := compile(t, public, Options{Never: prefixes("198.51.100.0/24", "2001:db8:5::/48")})
	same := compile(t, allowNames([]string{"a.test"}), Options{
		Never: prefixes("::ffff:198.51.100.0/120", "2001:db8:5::1/48", "198.51.100.9/24"),
	})
	other := compile(t, public, Options{Never: prefixes("198.51.100.0/25", "2001:db8:5::/48")})
	if a.never != same.never {
		t.Error("equal networks have two sets")
	}
	for _, c := range []struct {
		r       *Ruleset
		address string
		want    bool
	}{{a, "198.51.100.200", true}, {other, "198.51.100.200", false}, {other, "198.51.100.100", true}, {a, "2001:db8:5:6::1", true}} {
		if d := c.r.Addr(netip.MustParseAddr(c.address), 80); (d.Reason == OwnAddress) != c.want {
			t.Errorf("%s: %+v; want own: %v", c.address, d, c.want)
		}
	}
	held := func() bool {
		never.Lock()
		defer never.Unlock()
		_, ok := never.sets["198.51.100.0/24 2001:db8:5::/48 "]
		return ok
	}
	runtime.GC()
	if !held() {
		t.Error("a set in use is forgotten")
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(same)
	for range 1000 { // cleanups run some time after a collection
		if !held() {
			return
		}
		runtime.GC()
	}
	t.Error("a set that nobody has is kept")
}

// Sets come and go in many goroutines at once; each rule set refuses its own networks.
func TestNeverConcurrent(t *testing.T) {
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for i := range 200 {
				a := netip.AddrFrom4([4]byte{198, 51, 100, byte(i % 7)})
				r, err := Compile(policy.Policy{Mode: policy.Public}, Options{Never: []netip.Prefix{netip.PrefixFrom(a, 32)}})
				if err != nil {
					t.Error(err)
					return
				}
				refused := slices.Collect(func(yield func(byte) bool) {
					for last := range byte(8) {
						b := netip.AddrFrom4([4]byte{198, 51, 100, last})
						if r.Addr(b, 80).Reason == OwnAddress && !yield(last) {
							return
						}
					}
				})
				if !slices.Equal(refused, []byte{byte(i % 7)}) {
					t.Errorf("refused are %v; want %d", refused, i%7)
				}
				if i%50 == 0 {
					runtime.GC()
				}
			}
		})
	}
	group.Wait()
}
