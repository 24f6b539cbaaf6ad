package nflog

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

func TestParsePacket(t *testing.T) {
	for _, row := range []struct {
		name, hex string
		want      packet
		ok        bool
	}{
		{"tcp", "45000028 00004000 40060000 0a000002 cb007109 c00001bb", packet{6, netip.MustParseAddrPort("203.0.113.9:443")}, true},
		{"udp-with-options", "46000028 00004000 40110000 0a000002 cb007109 01010101 c0000035", packet{17, netip.MustParseAddrPort("203.0.113.9:53")}, true},
		{"later-fragment", "45000028 00000010 40060000 0a000002 cb007109 c00001bb", packet{6, netip.MustParseAddrPort("203.0.113.9:0")}, true},
		{"cut-off", "45000028 00004000 40060000 0a000002 cb007109 c0", packet{6, netip.MustParseAddrPort("203.0.113.9:0")}, true},
		{"short-header", "41000028 00004000 40060000 0a000002 cb007109 c00001bb", packet{6, netip.MustParseAddrPort("203.0.113.9:0")}, true},
		{"icmp", "4500001c 00004000 40010000 0a000002 cb007109 08000000", packet{1, netip.MustParseAddrPort("203.0.113.9:0")}, true},
		{"tcp6", "60000000 0014 0640 20010db8000000000000000000000002 20010db8000000000000000000000009 c0000016", packet{6, netip.MustParseAddrPort("[2001:db8::9]:22")}, true},
		{"arp", "0001080006040001", packet{}, false},
		{"nothing", "", packet{}, false},
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(row.hex, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := parsePacket(b); ok != row.ok || ok && got != row.want {
			t.Errorf("%s: got %v %v, want %v", row.name, got, ok, row.want)
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	f.Add([]byte{0x45, 19: 1})
	f.Add([]byte{0x60, 43: 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parsePacket(b); ok && !p.destination.Addr().IsValid() {
			t.Errorf("%x: %v", b, p)
		}
	})
}
