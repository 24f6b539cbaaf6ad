package direct

import (
	"net/netip"
	"strings"
	"testing"
)

// parse reads spans such as "192.0.2.1 192.0.2.4-192.0.2.9 10.0.0.0/8".
func parse(t *testing.T, text string) (s spans) {
	t.Helper()
	for _, word := range strings.Fields(text) {
		if from, to, ok := strings.Cut(word, "-"); ok {
			s = append(s, span{netip.MustParseAddr(from), netip.MustParseAddr(to)})
		} else if strings.Contains(word, "/") {
			s = append(s, spanOf(netip.MustParsePrefix(word)))
		} else {
			a := netip.MustParseAddr(word)
			s = append(s, span{a, a})
		}
	}
	return s
}

func (s spans) text() string {
	var words []string
	for _, x := range s {
		if x.single() {
			words = append(words, x.first.String())
		} else {
			words = append(words, x.first.String()+"-"+x.last.String())
		}
	}
	return strings.Join(words, " ")
}

func TestMerged(t *testing.T) {
	for from, want := range map[string]string{
		"":                                        "",
		"192.0.2.1":                               "192.0.2.1",
		"192.0.2.2 192.0.2.1":                     "192.0.2.1-192.0.2.2",
		"192.0.2.1 192.0.2.3":                     "192.0.2.1 192.0.2.3",
		"192.0.2.0/24 192.0.2.7":                  "192.0.2.0-192.0.2.255",
		"192.0.2.7 192.0.2.0/24 192.0.3.0/24":     "192.0.2.0-192.0.3.255",
		"0.0.0.0/0 255.255.255.255 0.0.0.0":       "0.0.0.0-255.255.255.255",
		"192.0.2.0/25 192.0.2.4-192.0.2.200":      "192.0.2.0-192.0.2.200",
		"::/0 ffff:ffff:ffff:ffff:ffff::/128":     "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"255.255.255.255 ::":                      "255.255.255.255 ::",
		"2001:db8::2 2001:db8::1 2001:db8::4/127": "2001:db8::1-2001:db8::2 2001:db8::4-2001:db8::5",
	} {
		if got := parse(t, from).merged().text(); got != want {
			t.Errorf("%q: got %q, want %q", from, got, want)
		}
	}
}

func TestWithoutAndWithin(t *testing.T) {
	for _, tt := range []struct{ a, b, without, within string }{
		{"192.0.2.0/24", "", "192.0.2.0-192.0.2.255", ""},
		{"", "192.0.2.0/24", "", ""},
		{"192.0.2.0/24", "192.0.2.0/24", "", "192.0.2.0-192.0.2.255"},
		{"192.0.2.0/24", "192.0.2.0", "192.0.2.1-192.0.2.255", "192.0.2.0"},
		{"192.0.2.0/24", "192.0.2.255", "192.0.2.0-192.0.2.254", "192.0.2.255"},
		{"192.0.2.0/24", "192.0.2.9 192.0.2.20-192.0.2.30", "192.0.2.0-192.0.2.8 192.0.2.10-192.0.2.19 192.0.2.31-192.0.2.255", "192.0.2.9 192.0.2.20-192.0.2.30"},
		{"192.0.2.5-192.0.2.9", "192.0.2.0/29", "192.0.2.8-192.0.2.9", "192.0.2.5-192.0.2.7"},
		{"192.0.2.5", "10.0.0.0/8 203.0.113.0/24", "192.0.2.5", ""},
		{"0.0.0.0/0", "255.255.255.255", "0.0.0.0-255.255.255.254", "255.255.255.255"},
		{"0.0.0.0/0", "0.0.0.0", "0.0.0.1-255.255.255.255", "0.0.0.0"},
		{"192.0.2.1 192.0.2.3 192.0.2.5", "192.0.2.3", "192.0.2.1 192.0.2.5", "192.0.2.3"},
		{"::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	} {
		a, b := parse(t, tt.a), parse(t, tt.b)
		if got := a.without(b).text(); got != tt.without {
			t.Errorf("%q without %q: got %q, want %q", tt.a, tt.b, got, tt.without)
		}
		if got := a.within(b).text(); got != tt.within {
			t.Errorf("%q within %q: got %q, want %q", tt.a, tt.b, got, tt.within)
		}
	}
}

func TestPrefixes(t *testing.T) {
	for from, want := range map[string]string{
		"192.0.2.1":                       "192.0.2.1/32",
		"192.0.2.0/24":                    "192.0.2.0/24",
		"192.0.2.1-192.0.2.2":             "192.0.2.1/32 192.0.2.2/32",
		"192.0.2.1-192.0.2.8":             "192.0.2.1/32 192.0.2.2/31 192.0.2.4/30 192.0.2.8/32",
		"0.0.0.0/0":                       "0.0.0.0/0",
		"255.255.255.254-255.255.255.255": "255.255.255.254/31",
		"::-::2":                          "::/127 ::2/128",
		"::/0":                            "::/0",
	} {
		var got []string
		for _, p := range parse(t, from)[0].prefixes() {
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", from, got, want)
		}
	}
}
