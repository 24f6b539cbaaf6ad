package rawip

import (
	"encoding/hex"
	"net/netip"
	"testing"
)

// The packets and their checksums were worked out apart from this code.
func TestPacket(t *testing.T) {
	for _, row := range []struct {
		name string
		h    Header
		want string
	}{
		{"v4", Header{From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("192.0.2.2"), Protocol: 17, ID: 0x1267}, "45000016126700004011" + "e46c" + "c0000201c0000202" + "6869"},
		{"v4-options", Header{From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("192.0.2.2"), Protocol: 17, Fragment: 0x2000, Options: []byte{1, 1, 1, 0}, Hops: 1},
			"4600001a000020000111" + "12cf" + "c0000201c0000202" + "01010100" + "6869"},
		{"v6", Header{From: netip.MustParseAddr("2001:db8::1"), To: netip.MustParseAddr("2001:db8::2"), Protocol: 58}, "6000000000023a40" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002" + "6869"},
	} {
		if got := hex.EncodeToString(row.h.Packet([]byte("hi"))); got != row.want {
			t.Errorf("%s:\n got %s\nwant %s", row.name, got, row.want)
		}
	}
}

// The first is the example of RFC 1071 §3.
func TestChecksum(t *testing.T) {
	if got := Checksum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}); got != 0x220d {
		t.Errorf("%#x", got)
	}
	// A datagram of the length 8 from port 1 to port 2: the sum of addresses, protocol, length and header.
	got := TransportChecksum(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 17, []byte{0, 1, 0, 2, 0, 8, 0, 0})
	if got != 0x7bd7 {
		t.Errorf("%#x", got)
	}
}

// A checksum over a segment with its own in it is 0.
func TestSegment(t *testing.T) {
	for _, own := range []string{"192.0.2.1", "2001:db8::1"} {
		from := netip.AddrPortFrom(netip.MustParseAddr(own), 80)
		b := Segment(from, from, 1, 2, 16, "odd")
		if len(b) != 23 || b[13] != 16 || string(b[20:]) != "odd" || TransportChecksum(from.Addr(), from.Addr(), 6, b) != 0 {
			t.Errorf("%x", b)
		}
	}
}
