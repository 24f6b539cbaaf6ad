package nft

import (
	"net/netip"
	"testing"
)

func TestElementText(t *testing.T) {
	at := netip.MustParseAddr
	for _, tt := range []struct {
		element Element
		kind    Type
		want    string
	}{
		{Element{First: at("192.0.2.1"), Last: at("192.0.2.1")}, Address4, "192.0.2.1"},
		{Element{First: at("192.0.2.0"), Last: at("192.0.2.255")}, Address4, "192.0.2.0/24"},
		{Element{First: at("192.0.2.0"), Last: at("192.0.2.254")}, Address4, "192.0.2.0-192.0.2.254"},
		{Element{First: at("192.0.2.1"), Last: at("192.0.2.2")}, Address4, "192.0.2.1-192.0.2.2"},
		{Element{First: at("0.0.0.0"), Last: at("255.255.255.255")}, Address4, "0.0.0.0/0"},
		{Element{First: at("2001:db8::"), Last: at("2001:db8::ffff"), Port: 443}, Address6Port, "2001:db8::/112 . 443"},
		{Element{Name: "br-0"}, InterfaceName, `"br-0"`},
	} {
		if got := tt.element.text(tt.kind); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

func TestSetMarkText(t *testing.T) {
	for mark, want := range map[SetMark]string{
		{Clear: 0x3000}:              "meta mark set meta mark & 0xffffcfff",
		{Set: 0x1000}:                "meta mark set meta mark | 0x1000",
		{Clear: 0x1000, Set: 0x2000}: "meta mark set meta mark & 0xffffefff | 0x2000",
	} {
		if got := mark.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
