package matcher

import (
	"net/netip"
	"testing"
)

// The prefix of a local translator can have any length that RFC 6052 §2.2 knows.
func TestLocalNAT64(t *testing.T) {
	r := compile(t, read(t, "allowlist 203.0.113.9 ::/0"), Options{})
	only4 := compile(t, read(t, "allowlist 203.0.113.9"), Options{})
	for _, layout := range []struct {
		name  string
		at    [4]int // where the bytes of the IPv4 address are
		alone bool   // 203.0.113.9 can be read in no other way
	}{{"96", [4]int{12, 13, 14, 15}, true}, {"64", [4]int{9, 10, 11, 12}, false}, {"56", [4]int{7, 9, 10, 11}, true}, {"48", [4]int{6, 7, 9, 10}, false}} {
		put := func(v4 string) netip.Addr {
			b := netip.MustParseAddr("64:ff9b:1::").As16()
			for i, x := range netip.MustParseAddr(v4).As4() {
				b[layout.at[i]] = x
			}
			return netip.AddrFrom16(b)
		}
		for _, bad := range []string{"127.0.0.1", "169.254.169.254"} {
			if d := r.Addr(put(bad), 80); d.Reason != Floor {
				t.Errorf("/%s, %v: %+v; want floor", layout.name, put(bad), d)
			}
		}
		if d := r.Addr(put("8.8.8.8"), 80); d.Verdict != Allow {
			t.Errorf("/%s, %v: %+v; want it allowed", layout.name, put("8.8.8.8"), d)
		}
		// Where another reading fits too, all of them must be covered.
		if d := only4.Addr(put("203.0.113.9"), 80); (d.Verdict == Allow) != layout.alone {
			t.Errorf("/%s, %v: %+v", layout.name, put("203.0.113.9"), d)
		}
	}
	if d := r.Addr(netip.MustParseAddr("64:ff9b:1::"), 80); d.Reason != Floor {
		t.Errorf("a translator's prefix with nothing in it: %+v; want floor", d)
	}
}

// What looks like a wrapping and is none.
func TestNotEmbedded(t *testing.T) {
	for _, s := range []string{
		"127.0.0.1", "::", "::1", "64:ff9a::7f00:1", "64:ff9b:2::7f00:1", "64:ff9b::1:0:7f00:1", "2003:7f00:1::", "2001:1::80ff:fffe",
		"2001:db8::5eff:7f00:1", "2001:db8::100:5efe:7f00:1", "::1:0:7f00:1", "::fffe:7f00:1", "fe80::1",
	} {
		if c := candidatesOf(netip.MustParseAddr(s)); c.n != 0 {
			t.Errorf("%s: %v; want nothing inside", s, c.inner[:c.n])
		}
	}
	if c := candidatesOf(netip.MustParseAddr("fe80::1%eth0")); c.addr.Zone() != "" {
		t.Errorf("the zone is still there: %v", c.addr)
	}
}
