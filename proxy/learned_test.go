package proxy

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestLearned(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	var l learned
	if got := l.of(a); got != nil {
		t.Errorf("empty: %v", got)
	}
	l.add("x.test", []netip.Addr{a, b})
	l.add("y.test", []netip.Addr{a})
	l.add("x.test", []netip.Addr{a})
	if got, want := l.of(a), []string{"y.test", "x.test"}; !slices.Equal(got, want) {
		t.Errorf("%v has names %v, want %v", a, got, want)
	}
	if got, want := l.of(b), []string{"x.test"}; !slices.Equal(got, want) {
		t.Errorf("%v has names %v, want %v", b, got, want)
	}
	for i := range 2 * maxLearnedNames {
		l.add(strconv.Itoa(i), []netip.Addr{a})
	}
	if got := l.of(a); len(got) != maxLearnedNames || got[len(got)-1] != strconv.Itoa(2*maxLearnedNames-1) {
		t.Errorf("%d names, the last %q", len(got), got[len(got)-1])
	}
}

// A workload that looks up more than is remembered loses the addresses that it uses least, not those in use.
func TestLearnedIsBounded(t *testing.T) {
	used := netip.MustParseAddr("192.0.2.1")
	var l learned
	l.add("used.test", []netip.Addr{used})
	for i := range uint32(3 * maxLearnedAddrs) {
		var other [4]byte
		binary.BigEndian.PutUint32(other[:], 10<<24|i)
		l.add("other.test", []netip.Addr{netip.AddrFrom4(other)})
		if i%1000 == 0 && l.of(used) == nil {
			t.Fatalf("an address in use was forgotten after %d others", i)
		}
	}
	if len(l.names) != maxLearnedAddrs {
		t.Errorf("%d addresses are remembered, want %d", len(l.names), maxLearnedAddrs)
	}
}

// Long names do not make more of the memory theirs: addresses are forgotten sooner.
func TestLearnedNamesAreBounded(t *testing.T) {
	used := netip.MustParseAddr("192.0.2.1")
	var l learned
	l.add("used.test", []netip.Addr{used})
	long := strings.Repeat("a", 240)
	for i := range uint32(3 * maxLearnedBytes / 240) {
		var other [4]byte
		binary.BigEndian.PutUint32(other[:], 10<<24|i%5000)
		l.add(long+strconv.Itoa(int(i)), []netip.Addr{netip.AddrFrom4(other)})
		if i%1000 == 0 && l.of(used) == nil {
			t.Fatalf("an address in use was forgotten after %d others", i)
		}
	}
	bytes := 0
	for _, e := range l.names {
		for _, name := range e.names {
			bytes += len(name)
		}
	}
	if bytes != l.bytes || bytes > maxLearnedBytes || bytes < maxLearnedBytes-10<<10 {
		t.Errorf("%d bytes of names, counted as %d, of %d", bytes, l.bytes, maxLearnedBytes)
	}
}
