package matcher_test

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/idna"

	"sluice/matcher"
)

// meanings are what clients, resolvers and proxies could take a spelling for: hosts in lower case without a final dot,
// and addresses. It errs on the side of too many.
func meanings(s string) (hosts []string, addrs []netip.Addr) {
	seen := map[string]bool{}
	var read func(s string, depth int)
	read = func(s string, depth int) {
		if seen[s] || depth == 0 || len(seen) > 300 {
			return
		}
		seen[s] = true
		hosts = append(hosts, strings.ToLower(s))
		if a, ok := looseAddr(s); ok {
			addrs = append(addrs, a)
		}
		if u, err := url.PathUnescape(s); err == nil {
			read(u, depth-1)
		}
		if a, err := idna.Lookup.ToASCII(s); err == nil { // full-width letters and dots, soft hyphens
			read(a, depth-1)
		}
		if i := strings.IndexByte(s, 0); i >= 0 { // C ends there
			read(s[:i], depth-1)
		}
		if i := strings.LastIndexByte(s, '@'); i >= 0 {
			read(s[i+1:], depth-1)
		}
		if i := strings.IndexAny(s, "/?#\\:"); i >= 0 {
			read(s[:i], depth-1)
		}
		read(strings.TrimSpace(s), depth-1)
		read(strings.Trim(s, "."), depth-1)
		read(strings.Trim(s, "[]"), depth-1)
	}
	read(s, 6)
	return hosts, addrs
}

// looseAddr reads an address as inet_pton, inet_aton and URL parsers do.
func looseAddr(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(s); err == nil {
		return a, true
	}
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	value := uint64(0)
	for i, part := range parts {
		width := 8
		if i == len(parts)-1 {
			width = 8 * (5 - len(parts))
		}
		n, err := strconv.ParseUint(part, 0, width) // 0x: hexadecimal, 0: octal
		if err != nil || strings.ContainsAny(part, "_bBoO") && !strings.ContainsAny(part, "xX") {
			return netip.Addr{}, false
		}
		value = value<<width | n
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

const (
	deniedHost = "evil.example.test"
	deniedZone = "bad.test"
	deniedIPv4 = "203.0.113.9"
	deniedIPv6 = "2001:db8::bad:1"
)

// spellings of what is denied, true ones and some that are not.
var spellings = []string{
	"evil.example.test", "evil.example.test.", "evil.example.test..", "EVIL.EXAMPLE.TEST", "eViL.eXaMpLe.TeSt.", ".evil.example.test",
	"evil..example.test", "[evil.example.test]", "evil.example.test:443", "evil.example.test\x00", "evil.example.test\x00.ok.test",
	"evil%2eexample.test", "%65vil.example.test", "evil.example.test%00", "evil.example.test/", "evil.example.test?", "user@evil.example.test",
	" evil.example.test", "evil.example.test ", "evil.example.test\t", "evil.example.test\r\n", `evil.example.test\`, `evil\.example.test`,
	"evil\u3002example.test", "\uff45vil.example.test", "evil\u00ad.example.test", "evil.example.test\u200b", "ev\u0131l.example.test", "e\u1d20il.example.test",
	"_http._tcp.evil.example.test", "a.evil.example.test", "evil.example.test.ok.test", "notevil.example.test", "evil-example.test",
	"bad.test", "a.bad.test", "A.BAD.TEST.", "a.b.c.bad.test", "a..bad.test", ".bad.test", "*.bad.test", "_http._tcp.bad.test", "notbad.test",
	"203.0.113.9", "203.0.113.9.", "203.0.28937", "203.28937", "3405803785", "0xcb007109", "0xCB.0x0.0x71.0x9", "0313.0.0161.011", "203.0.113.9\x00", "[203.0.113.9]",
	"203.000.113.009", "::ffff:203.0.113.9", "::ffff:cb00:7109", "[::ffff:cb00:7109]", "64:ff9b::cb00:7109", "2002:cb00:7109::", "::cb00:7109",
	"64:ff9b:1::203.0.113.9", "2001:0:1:2:3:4:34ff:8ef6", "2001:db8::5efe:203.0.113.9", "::ffff:0:203.0.113.9",
	"2001:db8::bad:1", "2001:DB8::BAD:1", "2001:db8:0:0:0:0:bad:1", "2001:0db8::0bad:0001", "[2001:db8::bad:1]", "2001:db8::bad:1%eth0", "2001:db8::0.0.11.173",
}

// checkSpelling checks that what s may mean to somebody is not reached if it is denied, by name, by address and behind
// another name; and that an allowlist takes s only if it means just what it says. It reports whether s may mean
// something denied.
func checkSpelling(t *testing.T, deny, allow *matcher.Ruleset, s string) (mayBeDenied bool) {
	t.Helper()
	hosts, addrs := meanings(s)
	byName, byQuery := deny.Name(s, 443), deny.Query(s)
	for _, h := range hosts {
		if h != deniedHost && !strings.HasSuffix(h, "."+deniedZone) {
			continue
		}
		mayBeDenied = true
		if byName.Verdict != matcher.Refuse {
			t.Errorf("%q may mean %s and is %s", s, h, showDecision(deny, byName))
		}
		// In a question of DNS brackets, percent signs and the like mean nothing but themselves.
		if byQuery.Verdict != matcher.Refuse && !strings.ContainsAny(s, `%/?#@[]:`) {
			t.Errorf("DNS: %q may mean %s and is %s", s, h, showDecision(deny, byQuery))
		}
	}
	for _, a := range addrs {
		if byName.Verdict != matcher.Refuse {
			t.Errorf("%q may mean the address %v and is %s by name", s, a, showDecision(deny, byName))
		}
		outer, hidden, _ := reveal(a)
		for _, c := range append(hidden, outer) {
			if c.String() != deniedIPv4 && c.String() != deniedIPv6 {
				continue
			}
			mayBeDenied = true
			for how, d := range map[string]matcher.Decision{
				"by address":          deny.Addr(a, 443),
				"behind another name": deny.Resolved(deny.Name("ok.test", 443), a, 443),
				"in an answer":        deny.Answer(deny.Query("ok.test"), a),
			} {
				if d.Verdict != matcher.Refuse {
					t.Errorf("%q may mean %v, which is %v, and is %s %s", s, a, c, showDecision(deny, d), how)
				}
			}
		}
	}
	plain := strings.ToLower(strings.TrimSuffix(s, "."))
	if d := allow.Name(s, 443); d.Verdict == matcher.Allow && plain != deniedHost && !strings.HasSuffix(plain, "."+deniedZone) {
		t.Errorf("an allowlist takes %q: %s", s, showDecision(allow, d))
	}
	return mayBeDenied
}

func spellingRulesets(t testing.TB) (deny, allow *matcher.Ruleset) {
	targets := strings.Join([]string{deniedHost, "*." + deniedZone, deniedIPv4, deniedIPv6}, " ")
	return compile(t, mustPolicy(t, "deny "+targets), matcher.Options{NoFloor: true}), compile(t, mustPolicy(t, "allow "+targets), matcher.Options{})
}

func TestMeaningsOfSpellings(t *testing.T) { // [I-17] [I-18] [I-66]
	deny, allow := spellingRulesets(t)
	denied := 0
	for _, s := range spellings {
		if checkSpelling(t, deny, allow, s) {
			denied++
		}
	}
	if denied < 55 {
		t.Errorf("only %d of %d spellings mean what is denied", denied, len(spellings))
	}
}

// FuzzDeniedSpelling looks for a spelling of a denied name or address that gets through.
func FuzzDeniedSpelling(f *testing.F) {
	for _, s := range spellings {
		f.Add(s)
	}
	deny, allow := spellingRulesets(f)
	f.Fuzz(func(t *testing.T, s string) {
		checkSpelling(t, deny, allow, s)
		checkSpelling(t, deny, allow, strings.Replace(deniedHost, ".", s, 1))
		checkSpelling(t, deny, allow, deniedHost+s)
		checkSpelling(t, deny, allow, s+deniedHost)
		checkSpelling(t, deny, allow, s+"."+deniedZone)
		checkSpelling(t, deny, allow, s+deniedIPv4)
	})
}
