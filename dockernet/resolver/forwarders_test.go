package resolver

import (
	"net/netip"
	"slices"
	"testing"
)

func TestForwarders(t *testing.T) {
	outside, stub, six := netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("127.0.0.53"), netip.MustParseAddr("2001:db8::53")
	for _, tt := range []struct {
		name, text string
		want       []Forwarder
	}{
		{"older", "nameserver 127.0.0.11\noptions ndots:0\n", nil},
		{"inside", "nameserver 127.0.0.11\n# ExtServers: [192.0.2.53]\n", []Forwarder{{outside, false}}},
		{"host", "# ExtServers: [host(127.0.0.53)]", []Forwarder{{stub, true}}},
		{"many", " # ExtServers: [192.0.2.53 2001:db8::53 host(192.0.2.53)] \r\n", []Forwarder{{outside, false}, {six, false}, {outside, true}}},
		{"nonsense", "# ExtServers: [ns1 host( host() 192.0.2 192.0.2.53:53]\n", nil},
		{"empty", "# ExtServers: []\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Forwarders(tt.text); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
