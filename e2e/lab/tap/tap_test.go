package tap

import (
	"slices"
	"testing"
)

func TestTokens(t *testing.T) {
	token := Token(7)
	if len(token) != tokenSize {
		t.Fatalf("%q has %d bytes, want %d", token, len(token), tokenSize)
	}
	for _, test := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"leak", nil},
		{"leak0000000", nil},
		{"a" + token + "b" + Token(8), []string{token, Token(8)}},
		{"LEAK00000007X", []string{token}},
		{"leakleak00000007x", []string{token}},
	} {
		if got := tokens([]byte(test.in)); !slices.Equal(got, test.want) {
			t.Errorf("%q: %q, want %q", test.in, got, test.want)
		}
	}
}

func TestFlow(t *testing.T) {
	v4 := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 1, 1, 1, 1, 203, 0, 113, 5, 0x12, 0x34, 0x01, 0xbb}
	fragment, icmp := slices.Clone(v4), slices.Clone(v4)
	fragment[7], icmp[9] = 1, 1
	v6 := append([]byte{0x60, 0, 0, 0, 0, 4, 17, 64}, make([]byte, 32)...)
	copy(v6[24:], []byte{0x20, 0x01, 0x0d, 0xb8})
	v6 = append(v6, 0, 1, 0, 53)
	for _, test := range []struct {
		in   []byte
		want string
	}{
		{nil, ""},
		{v4, "tcp 203.0.113.5:443"},
		{v4[:22], ""},
		{fragment, ""},
		{icmp, ""},
		{v6, "udp [2001:db8::]:53"},
		{[]byte{0x4f, 20: 0}, ""}, // a header longer than the packet
	} {
		if got := flow(test.in); got != test.want {
			t.Errorf("% x: %q, want %q", test.in, got, test.want)
		}
	}
}
