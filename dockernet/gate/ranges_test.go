package gate

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// read takes spans as nft writes them.
func read(t *testing.T, text string) spans {
	t.Helper()
	var s spans
	for _, f := range strings.Fields(text) {
		if first, last, ok := strings.Cut(f, "-"); ok {
			s = append(s, span{netip.MustParseAddr(first), netip.MustParseAddr(last)})
		} else if strings.Contains(f, "/") {
			s = append(s, spanOf(netip.MustParsePrefix(f)))
		} else {
			s = append(s, span{netip.MustParseAddr(f), netip.MustParseAddr(f)})
		}
	}
	return s
}

func (s spans) text() string {
	var parts []string
	for _, a := range s {
		parts = append(parts, a.String())
	}
	return strings.Join(parts, " ")
}

func TestMerged(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"10.0.0.1", "10.0.0.1"},
		{"10.0.0.2 10.0.0.1", "10.0.0.1-10.0.0.2"},
		{"10.0.0.0 10.0.0.1", "10.0.0.0/31"},
		{"10.0.0.1 10.0.0.3", "10.0.0.1 10.0.0.3"},
		{"10.0.0.0/8 10.1.0.0/16 10.255.255.255", "10.0.0.0/8"},
		{"10.0.0.0/8 11.0.0.0/8", "10.0.0.0/7"},
		{"0.0.0.0/0 1.2.3.4", "0.0.0.0/0"},
		{"255.255.255.255 255.255.255.254", "255.255.255.254/31"},
		{"255.255.255.255 ::", "255.255.255.255 ::"},
		{"::/0 2001:db8::1", "::/0"},
		{"2001:db8::/33 2001:db8:8000::/33", "2001:db8::/32"},
	} {
		if got := read(t, tt.in).merged().text(); got != tt.want {
			t.Errorf("merged %q: got %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestWithout(t *testing.T) {
	for _, tt := range []struct{ in, out, want string }{
		{"10.0.0.0/30", "", "10.0.0.0/30"},
		{"10.0.0.0/30", "10.0.0.1", "10.0.0.0 10.0.0.2/31"},
		{"10.0.0.0/30", "10.0.0.0", "10.0.0.1-10.0.0.3"},
		{"10.0.0.0/30", "10.0.0.3", "10.0.0.0-10.0.0.2"},
		{"10.0.0.0/30", "10.0.0.0/8", ""},
		{"10.0.0.0/30 10.0.1.0/30", "10.0.0.2-10.0.1.1", "10.0.0.0/31 10.0.1.2/31"},
		{"0.0.0.0/0", "127.0.0.0/8 224.0.0.0/3", "0.0.0.0-126.255.255.255 128.0.0.0-223.255.255.255"},
		{"0.0.0.0/0", "0.0.0.0/0", ""},
		{"255.255.255.254/31", "255.255.255.255", "255.255.255.254"},
		{"10.0.0.1 2001:db8::1", "::/0", "10.0.0.1"},
		{"::/0", "::/1", "8000::/1"},
	} {
		if got := read(t, tt.in).without(read(t, tt.out)).text(); got != tt.want {
			t.Errorf("%q without %q: got %q, want %q", tt.in, tt.out, got, tt.want)
		}
	}
}

// Set arithmetic agrees with membership of every address, in a range small enough to ask for all.
func TestSpansAgreeWithMembership(t *testing.T) {
	base := netip.MustParseAddr("10.0.0.0").As4()
	address := func(n int) netip.Addr { b := base; b[3] = byte(n); return netip.AddrFrom4(b) }
	random := rand.New(rand.NewPCG(1, 2))
	some := func() (s spans, has [256]bool) {
		for range random.IntN(12) {
			first := random.IntN(256)
			last := min(255, first+random.IntN(40))
			s = append(s, span{address(first), address(last)})
			for n := first; n <= last; n++ {
				has[n] = true
			}
		}
		return s.merged(), has
	}
	for range 2000 {
		a, hasA := some()
		b, hasB := some()
		minus, both := a.without(b), a.within(b)
		for n := range 256 {
			at := address(n)
			if a.contains(at) != hasA[n] || minus.contains(at) != (hasA[n] && !hasB[n]) || both.contains(at) != (hasA[n] && hasB[n]) {
				t.Fatalf("address %v: %v and %v give %v and %v", at, a, b, minus, both)
			}
		}
		if !slices.Equal(minus, minus.merged()) || !slices.Equal(both, both.merged()) {
			t.Fatalf("%v and %v give what is not merged: %v, %v", a, b, minus, both)
		}
	}
}
