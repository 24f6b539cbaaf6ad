package policy

import (
	"net/netip"
	"strings"
	"testing"
)

var (
	name253 = strings.Repeat(strings.Repeat("a", 49)+".", 5) + "abc"
	name254 = strings.Repeat(strings.Repeat("a", 49)+".", 5) + "abcd"
)

func TestParseTarget(t *testing.T) {
	for _, row := range []struct {
		id, in, host string
		port         uint16
		kind         Kind
		prefix       string
	}{
		{"", "api.example.com", "api.example.com", 0, Hostname, ""},
		{"", "api.example.com:443", "api.example.com", 443, Hostname, ""},
		{"P-05", "*.example.com", "*.example.com", 0, Wildcard, ""},
		{"", "*.example.com:8443", "*.example.com", 8443, Wildcard, ""},
		{"P-16", "OK.test.", "ok.test", 0, Hostname, ""},
		{"P-16", "*.OK.test.:80", "*.ok.test", 80, Wildcard, ""},
		{"P-15", "xn--bcher-kva.test", "xn--bcher-kva.test", 0, Hostname, ""},
		{"P-15", "XN--BCHER-KVA.test", "xn--bcher-kva.test", 0, Hostname, ""},
		{"P-17", strings.Repeat("a", 63) + ".test", strings.Repeat("a", 63) + ".test", 0, Hostname, ""},
		{"P-17", name253, name253, 0, Hostname, ""},
		{"P-17", "*." + name253 + ".:65535", "*." + name253, 65535, Wildcard, ""},
		{"P-19", "db", "db", 0, Hostname, ""},
		{"P-19", "x.internal", "x.internal", 0, Hostname, ""},
		{"P-19", "*.local", "*.local", 0, Wildcard, ""},
		{"P-07", "*.com", "*.com", 0, Wildcard, ""},
		{"", "1e100.net", "1e100.net", 0, Hostname, ""},
		{"", "r3---sn-x.test", "r3---sn-x.test", 0, Hostname, ""},
		{"", "localhost.test", "localhost.test", 0, Hostname, ""},
		{"", "203.0.113.10", "203.0.113.10", 0, IPv4Address, "203.0.113.10/32"},
		{"", "203.0.113.10:1", "203.0.113.10", 1, IPv4Address, "203.0.113.10/32"},
		{"P-27", "203.0.113.10/32", "203.0.113.10/32", 0, IPv4CIDR, "203.0.113.10/32"},
		{"", "10.0.0.0/8", "10.0.0.0/8", 0, IPv4CIDR, "10.0.0.0/8"},
		{"P-22", "10.0.0.0/8:443", "10.0.0.0/8", 443, IPv4CIDR, "10.0.0.0/8"},
		{"P-24", "0.0.0.0/0", "0.0.0.0/0", 0, IPv4CIDR, "0.0.0.0/0"},
		{"P-12", "2001:db8::1", "2001:db8::1", 0, IPv6Address, "2001:db8::1/128"},
		{"P-12", "::1:80", "::1:80", 0, IPv6Address, "::1:80/128"},
		{"P-12", "[::1]", "::1", 0, IPv6Address, "::1/128"},
		{"P-12", "[::1]:443", "::1", 443, IPv6Address, "::1/128"},
		{"P-12", "2001:db8::1:443", "2001:db8::1:443", 0, IPv6Address, "2001:db8::1:443/128"},
		{"P-27", "2001:DB8:0:0:0::1", "2001:db8::1", 0, IPv6Address, "2001:db8::1/128"},
		{"P-27", "2001:DB8::/32", "2001:db8::/32", 0, IPv6CIDR, "2001:db8::/32"},
		{"P-27", "2001:db8:0:0::/32", "2001:db8::/32", 0, IPv6CIDR, "2001:db8::/32"},
		{"P-24", "::/0", "::/0", 0, IPv6CIDR, "::/0"},
		{"I-17", "::ffff:1.2.3.4", "::ffff:102:304", 0, IPv6Address, "1.2.3.4/32"},
		{"I-17", "[::FFFF:102:304]:443", "::ffff:102:304", 443, IPv6Address, "1.2.3.4/32"},
		{"I-17", "::ffff:10.0.0.0/104", "::ffff:a00:0/104", 0, IPv6CIDR, "10.0.0.0/8"},
		{"I-17", "::ffff:0:0/96", "::ffff:0:0/96", 0, IPv6CIDR, "0.0.0.0/0"},
		{"", "64:ff9b::1.2.3.4", "64:ff9b::102:304", 0, IPv6Address, "64:ff9b::102:304/128"},
	} {
		t.Run(subtest(row.id, row.in), func(t *testing.T) {
			want := Target{Host: row.host, Port: row.port, Kind: row.kind}
			if row.prefix != "" {
				want.Prefix = netip.MustParsePrefix(row.prefix)
			}
			got, err := ParseTarget(row.in)
			if err != nil || got != want {
				t.Errorf("got %+v, %v; want %+v", got, err, want)
			}
		})
	}
}

// subtest names a row after its case, so that a run can pick it, and else after its input.
func subtest(id, in string) string {
	name := strings.ReplaceAll(in[:min(len(in), 40)], " ", "_")
	if id == "" {
		return name
	}
	return id + "/" + name
}

func TestParseTargetErrors(t *testing.T) {
	const ( // problems and repairs that several rows share
		forPublic   = "; for everything use the mode public"
		anyPort     = `; write "ok.test" for every port, or a port from 1 to 65535 behind the colon`
		somePort    = "; write a port from 1 to 65535, or none for every port"
		exampleStar = `; write each name, or "*.example.com" for all names under one`
		plainIPv4   = "; write four numbers from 0 to 255 without leading zeros, or a name that does not end in a number"
		exampleIPv6 = `; write an IPv6 address as in "2001:db8::1", with a port as in "[2001:db8::1]:443"`
		writeOK     = `; write "ok.test"`
		remove      = "; remove it"

		host      = ": is not a network: its address has bits behind the prefix"
		star      = `: has a "*" that is not a leading "*."`
		noHost    = ": names no host"
		blank     = ": has white space or an invisible character"
		notDigits = ": has a port that is not plain digits"
		outside   = ": has a port outside 1 to 65535"
		brackets  = ": has brackets round something that is not an IPv6 address"
		bracketed = ": has brackets, which a network may not have"
		loopback  = ": is the container's own loopback, which is not outbound"
		number    = ": looks like an IPv4 address but is not one"
		notASCII  = ": is not ASCII"
		hyphen    = ": has a label that begins or ends with a hyphen; write the name without that hyphen"
		object    = `; write {"host": "2001:db8::/32", "port": 443}`
	)
	for _, row := range []struct{ id, in, want string }{
		{"", "", `"": is empty; write a host, an address or a network, or remove the entry`},
		{"P-09", ",", `",": has the character ','; write each target as an entry of its own`},
		{"P-09", "a.test,b.test", `"a.test,b.test": has the character ','; write each target as an entry of its own`},

		{"P-01", "10.0.0.5/8", `"10.0.0.5/8"` + host + `; write "10.0.0.0/8" for the network or "10.0.0.5/32" for the address`},
		{"P-01", "10.0.0.5/8:443", `"10.0.0.5/8:443"` + host + `; write "10.0.0.0/8:443" for the network or "10.0.0.5/32:443" for the address`},
		{"P-01", "10.0.0.5/8:0", `"10.0.0.5/8:0"` + host + `; write "10.0.0.0/8" for the network or "10.0.0.5/32" for the address`},
		{"P-01", "2001:db8::1/32", `"2001:db8::1/32"` + host + `; write "2001:db8::/32" for the network or "2001:db8::1/128" for the address`},

		{"P-02", "10.0.0.0/08", `"10.0.0.0/08": has a prefix length with a leading zero; write "10.0.0.0/8"`},
		{"P-02", "10.0.0.0/255.0.0.0", `"10.0.0.0/255.0.0.0": has a prefix length that is not plain digits; write "10.0.0.0/8"`},
		{"P-02", "10.0.0.0/255.0.255.0", `"10.0.0.0/255.0.255.0": has a prefix length that is not plain digits; write a prefix length from 0 to 32`},
		{"P-02", "10.0.0.0/33", `"10.0.0.0/33": has a prefix length outside 0 to 32; write a prefix length from 0 to 32`},
		{"P-02", "10.0.0.0/99999999999999999999", `"10.0.0.0/99999999999999999999": has a prefix length outside 0 to 32; write a prefix length from 0 to 32`},
		{"P-02", "10.0.0.0/-1", `"10.0.0.0/-1": has a prefix length that is not plain digits; write a prefix length from 0 to 32`},
		{"P-02", "10.0.0.0/", `"10.0.0.0/": has a prefix length that is not plain digits; write a prefix length from 0 to 32`},
		{"P-02", "::/129", `"::/129": has a prefix length outside 0 to 128; write a prefix length from 0 to 128`},
		{"P-02", "10.0/8", `"10.0/8": is not a network: its address is not valid; write a network as in "10.0.0.0/8" or "2001:db8::/32"`},

		{"P-03", "www*.com", `"www*.com"` + star + exampleStar},
		{"P-03", "a.*.b.test", `"a.*.b.test"` + star + `; write "*.b.test", or each name by itself`},
		{"P-03", "*a.test", `"*a.test"` + star + exampleStar},
		{"P-03", "a.test*", `"a.test*"` + star + exampleStar},
		{"P-03", "**.a.test", `"**.a.test"` + star + `; write "*.a.test", or each name by itself`},
		{"P-03", "*.*.test", `"*.*.test"` + star + exampleStar},
		{"P-03", "10.0.0.*", `"10.0.0.*"` + star + `; for addresses write a network as in "10.0.0.0/8"`},

		{"P-06", "*", `"*"` + noHost + forPublic},
		{"P-06", "*.", `"*."` + noHost + forPublic},
		{"P-06", ".", `"."` + noHost + forPublic},
		{"P-06", "*:443", `"*:443"` + noHost + forPublic},
		{"P-06", "*.*", `"*.*"` + noHost + forPublic},
		{"P-06", ":443", `":443": has no host before the port; write the host as well` + forPublic},

		{"P-10", "https://ok.test", `"https://ok.test": is a URL; write "ok.test", or "ok.test:443" for that port only`},
		{"P-10", "HTTP://OK.test:8080/a?b", `"HTTP://OK.test:8080/a?xxxxx": is a URL; write "ok.test:8080"`},
		{"P-10", "x://", `"x://": is a URL; write the host alone, as in "api.example.com"`},
		{"P-10", "https://[2001:db8::1]/", `"https://[2001:db8::1]/": is a URL; write "2001:db8::1", or "[2001:db8::1]:443" for that port only`},
		{"P-10", "https://u:secret@ok.test/p?token=1", `"https://xxxxx@ok.test/p?xxxxx": is a URL; write "ok.test", or "ok.test:443" for that port only`},
		{"P-10", "https://u:1/secret@ok.test", `"https://xxxxx@ok.test": is a URL; write the host alone, as in "api.example.com"`},
		{"P-10", "ok.test/path", `"ok.test/path": has a path` + writeOK},
		{"P-10", "ok.test:443/path", `"ok.test:443/path": has a path; write "ok.test:443"`},
		{"P-10", "//ok.test", `"//ok.test": has a path; write the host alone`},
		{"P-10", "u@ok.test", `"xxxxx@ok.test": has user info` + writeOK},
		{"P-10", "u:secret@ok.test:443", `"xxxxx@ok.test:443": has user info; write "ok.test:443"`},
		{"P-10", "u:secret@more@ok.test", `"xxxxx@ok.test": has user info` + writeOK},
		{"P-10", "u:secret@", `"xxxxx@": has user info; write the host without it`},
		{"P-10", "ok.test?x", `"ok.test?xxxxx": has a '?', as in a URL` + writeOK},
		{"P-10", "ok.test#", `"ok.test#": has a '#', as in a URL` + writeOK},
		{"P-10", `ok.test\x`, `"ok.test\\x": has a '\\', as in a URL` + writeOK},

		{"P-11", "ok.test:0", `"ok.test:0"` + outside + anyPort},
		{"P-11", "ok.test:00", `"ok.test:00"` + outside + anyPort},
		{"P-11", "ok.test:65536", `"ok.test:65536"` + outside + somePort},
		{"P-11", "ok.test:99999999999", `"ok.test:99999999999"` + outside + somePort},
		{"P-11", "ok.test:-1", `"ok.test:-1"` + notDigits + anyPort},
		{"P-11", "ok.test:+443", `"ok.test:+443"` + notDigits + anyPort},
		{"P-11", "ok.test:0443", `"ok.test:0443": has a port with a leading zero; write "ok.test:443"`},
		{"P-11", "ok.test:443abc", `"ok.test:443abc"` + notDigits + anyPort},
		{"P-11", "ok.test: 443", `"ok.test: 443"` + blank + "; remove it, nothing is trimmed"},
		{"P-11", "ok.test:0x1bb", `"ok.test:0x1bb"` + notDigits + anyPort},
		{"P-11", "ok.test:4.43e2", `"ok.test:4.43e2"` + notDigits + anyPort},
		{"P-11", "ok.test:", `"ok.test:": has no port behind the colon` + anyPort},
		{"P-11", "10.0.0.0/8:0", `"10.0.0.0/8:0"` + outside + `; write "10.0.0.0/8" for every port, or a port from 1 to 65535 behind the colon`},
		{"P-11", "ok.test:443:80", `"ok.test:443:80": has several colons but is not an IPv6 address` + exampleIPv6},

		{"P-12", "2001:db8:0:0:0:0:0:1:443", `"2001:db8:0:0:0:0:0:1:443": has more parts than an IPv6 address; write "[2001:db8::1]:443"`},
		{"P-12", "1:2:3", `"1:2:3": has several colons but is not an IPv6 address` + exampleIPv6},

		{"P-13", "[::1]:65536", `"[::1]:65536"` + outside + somePort},
		{"P-13", "[::1]:0", `"[::1]:0"` + outside + `; write "::1" for every port, or a port from 1 to 65535 behind the colon`},
		{"P-13", "[::1]:", `"[::1]:": has no port behind the colon; write "::1" for every port, or a port from 1 to 65535 behind the colon`},
		{"P-13", "[::1]:0443", `"[::1]:0443": has a port with a leading zero; write "[::1]:443"`},
		{"P-13", "[::1]443", `"[::1]443": has text behind the closing bracket; write "[::1]:443"`},
		{"P-13", "[::1]x", `"[::1]x": has text behind the closing bracket; write "::1" or a port behind a colon`},
		{"P-13", "[::1", `"[::1": has no closing bracket; write "::1"`},
		{"P-13", "[", `"[": has no closing bracket; write an IPv6 address as in "[2001:db8::1]:443"`},
		{"P-13", "[example.com]:443", `"[example.com]:443"` + brackets + `; write "example.com:443"`},
		{"P-13", "[127.0.0.1]:80", `"[127.0.0.1]:80"` + brackets + `; write "127.0.0.1:80"`},
		{"P-13", "[]:443", `"[]:443"` + brackets + "; leave them out"},
		{"P-13", "[::g]:1", `"[::g]:1": has several colons but is not an IPv6 address` + exampleIPv6},
		{"P-13", "fe80::1%eth0", `"fe80::1%eth0": has a zone id; write "fe80::1"`},
		{"P-13", "[fe80::1%25eth0]:443", `"[fe80::1%25eth0]:443": has a zone id; write "[fe80::1]:443"`},
		{"P-13", "fe80::%eth0/64", `"fe80::%eth0/64": has a zone id; write "fe80::/64"`},
		{"P-13", "fe80::1%eth0/64", `"fe80::1%eth0/64": has a zone id; write the address without it`},

		{"P-14", " ok.test", `" ok.test"` + blank + writeOK},
		{"P-14", "ok.test ", `"ok.test "` + blank + writeOK},
		{"P-14", "ok\t.test", `"ok\t.test"` + blank + "; remove it, nothing is trimmed"},
		{"P-14", "ok.test\x00", `"ok.test\x00"` + blank + writeOK},
		{"P-14", "ok.test\r\n", `"ok.test\r\n"` + blank + writeOK},
		{"P-14", "\u200bok.test", `"\u200bok.test"` + blank + writeOK},
		{"P-14", "\ufeffok.test", `"\ufeffok.test"` + blank + writeOK},
		{"P-14", "ok.test\u00a0", `"ok.test\u00a0"` + blank + writeOK},
		{"P-14", "o\u00adk.test", `"o\u00adk.test"` + blank + "; remove it, nothing is trimmed"},
		{"P-14", " ", `" "` + blank + "; remove it, nothing is trimmed"},
		{"P-14", "\xff.test", `"\xff.test": is not valid UTF-8; write the name in ASCII`},
		{"P-14", "a%20b", `"a%20b": has the character '%'; use letters, digits, hyphens and dots only`},

		{"P-15", "\u0430pple.test", `"\u0430pple.test"` + notASCII + `; write "xn--pple-43d.test" if this very name is meant`},
		{"P-15", "\uff45xample.test", `"\uff45xample.test"` + notASCII + `; write "example.test" if this very name is meant`},
		{"P-15", "a\uff0etest", `"a\uff0etest"` + notASCII + `; write "a.test" if this very name is meant`},
		{"P-15", "\u212a.test", `"\u212a.test"` + notASCII + `; write "k.test" if this very name is meant`},
		{"P-15", "*.b\u00fccher.test:443", `"*.b\u00fccher.test:443"` + notASCII + `; write "*.xn--bcher-kva.test:443" if this very name is meant`},
		{"P-15", "b\u00fc_cher.test", `"b\u00fc_cher.test"` + notASCII + "; write the name's A-labels (xn--...)"},
		{"P-15", "xn--zz.test", `"xn--zz.test": has "xn--zz", which is not a valid A-label; write the A-label that the name's registry shows`},
		{"P-15", "xn--abc-.test", `"xn--abc-.test"` + hyphen},

		{"P-17", strings.Repeat("a", 64) + ".test", `"` + strings.Repeat("a", 64) + `.test": has a label of 64 bytes, more than 63; shorten it: no resolver accepts it`},
		{"P-17", name254, `"` + name254[:80] + `...": has a name of 254 bytes, more than 253; shorten it: no resolver accepts it`},
		{"P-17", strings.Repeat("a", 1025), `"` + strings.Repeat("a", 80) + `...": has 1025 bytes, more than any target; write each target as an entry of its own`},
		{"P-17", "a..b", `"a..b": has an empty label; write the name with one dot between labels`},
		{"P-17", "evil.test..", `"evil.test..": has an empty label; write the name with one dot between labels`},
		{"P-17", ".example.com", `".example.com": has an empty label; write "*.example.com" for the names under it`},
		{"P-17", "-a.test", `"-a.test"` + hyphen},
		{"P-17", "a-.test", `"a-.test"` + hyphen},
		{"P-17", "_x.test", `"_x.test": has an underscore, which host names do not have; write the host name: a service name such as _http._tcp.ok.test is judged as ok.test`},

		{"P-18", "1.2.3.4.5", `"1.2.3.4.5"` + number + plainIPv4},
		{"P-18", "256.1.1.1", `"256.1.1.1"` + number + plainIPv4},
		{"P-18", "a.1", `"a.1"` + number + plainIPv4},
		{"P-18", "127.1", `"127.1"` + number + `; write "127.0.0.1" if that is what is meant`},
		{"P-18", "127.1:443", `"127.1:443"` + number + `; write "127.0.0.1:443" if that is what is meant`},
		{"P-18", "127.1:0", `"127.1:0"` + number + `; write "127.0.0.1" if that is what is meant`},
		{"P-18", "0x7F.1", `"0x7F.1"` + number + `; write "127.0.0.1" if that is what is meant`},
		{"P-18", "2130706433", `"2130706433"` + number + `; write "127.0.0.1" if that is what is meant`},
		{"P-18", "010.0.0.1", `"010.0.0.1"` + number + `; write "10.0.0.1" or "8.0.0.1" if that is what is meant`},
		{"P-18", "1.2.3.4.", `"1.2.3.4."` + number + `; write "1.2.3.4" if that is what is meant`},
		{"P-18", "*.1.2.3.4", `"*.1.2.3.4": has a number behind the wildcard; for addresses write a network as in "10.0.0.0/8"`},

		{"P-19", "localhost", `"localhost"` + loopback + remove},
		{"P-19", "LOCALHOST.:80", `"LOCALHOST.:80"` + loopback + remove},
		{"P-19", "a.localhost", `"a.localhost"` + loopback + remove},
		{"P-19", "*.localhost", `"*.localhost"` + loopback + remove},

		{"P-22", "[2001:db8::/32]:443", `"[2001:db8::/32]:443"` + bracketed + object},
		{"P-22", "[2001:db8::]/32:443", `"[2001:db8::]/32:443"` + bracketed + object},
		{"P-22", "2001:db8::/32:443", `"2001:db8::/32:443": has a port behind an IPv6 network` + object},
		{"P-22", "[2001:db8::/32]", `"[2001:db8::/32]"` + bracketed + `; write "2001:db8::/32"`},
		{"P-22", "[10.0.0.0/8]:443", `"[10.0.0.0/8]:443"` + bracketed + `; write "10.0.0.0/8:443"`},
		{"P-22", "[2001:db8::/32]:0", `"[2001:db8::/32]:0"` + bracketed + `; write the network as in "2001:db8::/32", with a port as in {"host": "2001:db8::/32", "port": 443}`},
	} {
		t.Run(subtest(row.id, row.in), func(t *testing.T) {
			got, err := ParseTarget(row.in)
			if err == nil {
				t.Fatalf("got %+v; want %s", got, row.want)
			}
			if err.Error() != row.want || got != (Target{}) {
				t.Errorf("\n got %v\nwant %s", err, row.want)
			}
		})
	}
}

// TestOffers parses what errors offer: a repair that is refused in its turn helps nobody.
func TestOffers(t *testing.T) {
	for _, in := range []string{
		"10.0.0.5/8", "2001:db8::1/32", "10.0.0.0/255.0.0.0", "a.*.b.test", "https://ok.test", "ok.test:0443", "[::1", "[::1]443",
		"[example.com]:443", "\u0430pple.test", "127.1:443", "010.0.0.1", "2001:db8:0:0:0:0:0:1:443", ".example.com",
	} {
		_, err := ParseTarget(in)
		e, ok := err.(*Error)
		if !ok {
			t.Fatalf("%s: %v", in, err)
		}
		offers := strings.Split(e.Repair, `"`)
		if len(offers) < 3 {
			t.Errorf("%s: offers nothing: %s", in, e.Repair)
		}
		for i := 1; i < len(offers); i += 2 {
			if _, err := ParseTarget(offers[i]); err != nil {
				t.Errorf("%s: offers %v", in, err)
			}
		}
	}
}

func BenchmarkParseTarget(b *testing.B) {
	for _, in := range []string{"api.example.com:443", "203.0.113.0/24", "[2001:db8::1]:443"} {
		b.Run(in, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseTarget(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
