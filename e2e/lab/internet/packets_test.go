package internet

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// listing is what nft 1.0.6 prints for our table, without its chain.
const listing = `{"nftables": [
	{"metainfo": {"version": "1.0.6", "release_name": "Lester Gooch #5", "json_schema_version": 1}},
	{"table": {"family": "inet", "name": "lab", "handle": 1}},
	{"set": {"family": "inet", "name": "reached4", "table": "lab", "type": ["ipv4_addr", "inet_proto", "inet_service"],
		"handle": 1, "size": 65535, "flags": ["dynamic"], "elem": [
		{"elem": {"val": {"concat": ["203.0.113.10", "tcp", 443]}, "counter": {"packets": 10, "bytes": 1200}}},
		{"elem": {"val": {"concat": ["8.8.8.8", "udp", 53]}, "counter": {"packets": 2, "bytes": 120}}}]}},
	{"set": {"family": "inet", "name": "reached6", "table": "lab", "type": ["ipv6_addr", "inet_proto", "inet_service"],
		"handle": 2, "size": 65535, "flags": ["dynamic"], "elem": [
		{"elem": {"val": {"concat": ["2001:db8::10", "tcp", 80]}, "counter": {"packets": 6, "bytes": 500}}}]}},
	{"set": {"family": "inet", "name": "others4", "table": "lab", "type": ["ipv4_addr", "inet_proto"],
		"handle": 3, "size": 65535, "flags": ["dynamic"], "elem": [
		{"elem": {"val": {"concat": ["8.8.8.8", "icmp"]}, "counter": {"packets": 1, "bytes": 84}}}]}},
	{"set": {"family": "inet", "name": "others6", "table": "lab", "type": ["ipv6_addr", "inet_proto"],
		"handle": 4, "size": 65535, "flags": ["dynamic"]}}
]}`

func TestPackets(t *testing.T) {
	packets, err := parsePackets([]byte(listing))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"tcp 203.0.113.10:443":  10,
		"udp 8.8.8.8:53":        2,
		"icmp 8.8.8.8":          1,
		"tcp [2001:db8::10]:80": 6,
	}
	if diff := cmp.Diff(want, packets); diff != "" {
		t.Errorf("packets (-want +got):\n%s", diff)
	}
	counts := Counts{Packets: packets}
	for addr, want := range map[string]int{"8.8.8.8": 3, "2001:db8::10": 6, "203.0.113.10": 10, "1.1.1.1": 0, "2001:db8::1": 0} {
		if got := counts.PacketsTo(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %d packets, want %d", addr, got, want)
		}
	}
}

func TestPacketsRefusesWhatItCannotRead(t *testing.T) {
	if _, err := parsePackets([]byte("table inet lab {}")); err == nil {
		t.Error("a listing that is no JSON was read")
	}
}
