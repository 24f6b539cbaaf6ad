package matcher_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice/matcher"
	"sluice/policy"
)

// floorRanges are what design and registries put on the floor, with the addresses next to them.
var floorRanges = []struct{ prefix, before, after string }{
	{"0.0.0.0/8", "", "1.0.0.0"},
	{"127.0.0.0/8", "126.255.255.255", "128.0.0.0"},
	{"169.254.0.0/16", "169.253.255.255", "169.255.0.0"},
	{"224.0.0.0/4", "223.255.255.255", "240.0.0.0"},
	{"255.255.255.255/32", "255.255.255.254", ""},
	{"::/128", "", ""},
	{"::1/128", "", ""},
	{"fe80::/10", "fe7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fec0::"},
	{"ff00::/8", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", ""},
	{"100.100.100.200/32", "100.100.100.199", "100.100.100.201"},
	{"168.63.129.16/32", "168.63.129.15", "168.63.129.17"},
	{"192.0.0.192/32", "192.0.0.191", "192.0.0.193"},
	{"fd00:ec2::254/128", "", ""},
	{"fd20:ce::254/128", "fd20:ce::253", "fd20:ce::255"},
	{"fd00:c1::a9fe:a9fe/128", "fd00:c1::a9fe:a9fd", "fd00:c1::a9fe:a9ff"},
	{"fd00:42::42/128", "fd00:42::41", "fd00:42::43"},
}

// In every mode, with every rule that is not for the very address, by address, behind a name and in DNS.
func TestFloorRanges(t *testing.T) { // [I-14] [I-15] [P-24]
	policies := []string{"public", "deny no.test", "deny", "allow 0.0.0.0/0 ::/0 ok.test *.test", "allow 0.0.0.0/1 128.0.0.0/1 ::/1 8000::/1 ok.test",
		"allow ok.test 0.0.0.0/0 ::/0 ; resolve wildcard-private zone=test"}
	for _, text := range policies {
		p, o := readPolicy(t, text)
		r := compile(t, p, o)
		o.NoFloor = true
		bare := compile(t, p, o)
		for _, c := range floorRanges {
			prefix := netip.MustParsePrefix(c.prefix)
			for _, a := range []netip.Addr{prefix.Addr(), lastOf(prefix)} {
				for how, ds := range judgedBy(r, bare, a) {
					if ds[0] != (matcher.Decision{Reason: matcher.Floor, Rule: matcher.NoRule}) {
						t.Errorf("%s: %v %s is %s", text, a, how, showDecision(r, ds[0]))
					}
					if ds[1].Verdict != matcher.Allow {
						t.Errorf("%s, no floor: %v %s is %s", text, a, how, showDecision(bare, ds[1]))
					}
				}
			}
			for _, beside := range []string{c.before, c.after} {
				if beside == "" {
					continue
				}
				for how, ds := range judgedBy(r, bare, netip.MustParseAddr(beside)) {
					if ds[0].Verdict != matcher.Allow {
						t.Errorf("%s: %v %s, beside %v, is %s", text, beside, how, prefix, showDecision(r, ds[0]))
					}
				}
			}
		}
	}
}

func judgedBy(r, bare *matcher.Ruleset, a netip.Addr) map[string][2]matcher.Decision {
	return map[string][2]matcher.Decision{
		"itself":       {r.Addr(a, 80), bare.Addr(a, 80)},
		"without-port": {r.Addr(a, 0), bare.Addr(a, 0)},
		"behind-name":  {r.Resolved(r.Name("ok.test", 80), a, 80), bare.Resolved(bare.Name("ok.test", 80), a, 80)},
		"in-answer":    {r.Answer(r.Query("ok.test"), a), bare.Answer(bare.Query("ok.test"), a)},
	}
}

// Only a target for the very address lifts the floor, there alone and on its port alone.
func TestFloorLifted(t *testing.T) { // [I-15] [P-24]
	for _, c := range floorRanges {
		a := lastOf(netip.MustParsePrefix(c.prefix))
		t.Run(strings.ReplaceAll(c.prefix, "/", "-"), func(t *testing.T) {
			for _, slash := range []string{"", fmt.Sprintf("/%d", a.BitLen())} {
				every := compile(t, mustPolicy(t, "allow ok.test *.w.test "+a.String()+slash), matcher.Options{})
				one := compile(t, mustPolicy(t, "allow ok.test "+a.String()+slash+"@80"), matcher.Options{})
				denied := compile(t, mustPolicy(t, "deny "+a.String()+slash+"@80"), matcher.Options{})
				for _, q := range []struct {
					what string
					r    *matcher.Ruleset
					d    matcher.Decision
					want string
				}{
					{"itself", every, every.Addr(a, 80), "allow address-rule"},
					{"without a port", every, every.Addr(a, 0), "allow address-rule"},
					{"behind a name", every, every.Resolved(every.Name("ok.test", 80), a, 80), "allow name-rule"},
					{"behind a name of DNS", every, every.Answer(every.Query("ok.test"), a), "allow name-rule"},
					{"its port", one, one.Addr(a, 80), "allow address-rule"},
					{"another port", one, one.Addr(a, 81), "refuse floor"},
					{"no port", one, one.Addr(a, 0), "refuse floor"},
					{"behind a name on its port", one, one.Resolved(one.Name("ok.test", 80), a, 80), "allow name-rule"},
					{"behind a name on another port", one, one.Resolved(one.Name("ok.test", 81), a, 81), "refuse floor"},
					{"in DNS, some port", one, one.Answer(one.Query("ok.test"), a), "allow name-rule"},
					{"denied", denied, denied.Addr(a, 80), "refuse address-rule"},
					{"denied on another port", denied, denied.Addr(a, 81), "refuse floor"},
				} {
					if got := q.d.Verdict.String() + " " + string(q.d.Reason); got != q.want {
						t.Errorf("%v%s, %s: %s, want %s", a, slash, q.what, got, q.want)
					}
				}
				if a.BitLen() == 32 {
					if d := every.Addr(netip.AddrFrom16(a.As16()), 80); d.Verdict != matcher.Allow {
						t.Errorf("the mapped %v is %s", a, showDecision(every, d))
					}
				}
				if next := a.Prev(); a.String() == "127.255.255.255" || a.String() == "169.254.255.255" {
					if d := every.Addr(next, 80); d.Reason != matcher.Floor {
						t.Errorf("%v beside the target is %s", next, showDecision(every, d))
					}
				}
			}
		})
	}
	checkRows(t, `
	allow 169.254.169.254/31 | addr 169.254.169.254 80   | refuse floor -
	                         | addr 169.254.169.255 80   | refuse floor -
	allow fe80::/10          | addr fe80::1%eth0 80      | refuse floor -
	allow fe80::1            | addr fe80::1%eth0 80      | allow address-rule fe80::1
	                         | addr fe80::2%eth0 80      | refuse floor -
	allow fd00:ec2::/32      | addr fd00:ec2::254 80     | refuse floor -
	allow 169.254.0.0/16 169.254.169.254:80 | addr 169.254.169.254 80 | allow address-rule 169.254.169.254:80
	                         | addr 169.254.169.254 443  | refuse floor -
	                         | addr 169.254.169.253 80   | refuse floor -
	allow *.w.test 169.254.1.1 | resolved a.w.test 169.254.1.1 80 | allow name-rule *.w.test
	allow 127.0.0.1 ; resolve | resolved any.test 127.0.0.1 80 | allow address-rule 127.0.0.1
	                         | resolved any.test 127.0.0.2 80 | refuse floor -
	deny 169.254.169.254     | addr 169.254.169.254 80   | refuse address-rule 169.254.169.254
	                         | addr 169.254.169.253 80   | refuse floor -
	public ; no-floor        | addr 169.254.169.254 80   | allow public -
	                         | addr ::1 80               | allow public -
	`)
}

func mustPolicy(t testing.TB, text string) policy.Policy {
	p, _ := readPolicy(t, text)
	return p
}

func TestFloorPrefixes(t *testing.T) {
	got := matcher.FloorPrefixes()
	for _, c := range floorRanges {
		prefix := netip.MustParsePrefix(c.prefix)
		if !slices.ContainsFunc(got, func(p netip.Prefix) bool { return p.Overlaps(prefix) && p.Bits() <= prefix.Bits() }) {
			t.Errorf("%v is missing in %v", prefix, got)
		}
	}
	r := compile(t, policy.Policy{Mode: policy.Public}, matcher.Options{})
	for _, p := range got {
		if p != p.Masked() {
			t.Errorf("%v has host bits", p)
		}
		if d := r.Addr(lastOf(p), 80); d.Reason != matcher.Floor {
			t.Errorf("%v of %v is not on the floor", lastOf(p), p)
		}
	}
	got[0] = netip.MustParsePrefix("192.0.2.0/24")
	if matcher.FloorPrefixes()[0] == got[0] || r.Addr(netip.MustParseAddr("192.0.2.1"), 80).Verdict != matcher.Allow {
		t.Error("a caller can change the floor")
	}
}

// hiding are the ways to write the IPv4 address 192.0.2.33 (c000:0221) into an IPv6 one, with the notation of
// RFC 6052 §2.4 for the lengths of NAT64 prefixes.
var hiding = []struct {
	name string
	hide func(a netip.Addr) netip.Addr
	// ends tells whether a packet ends at that IPv4 host, so that a target for it is enough.
	ends bool
}{
	{"mapped", hideIn("::ffff:%02x%02x:%02x%02x"), true},
	{"nat64", hideIn("64:ff9b::%02x%02x:%02x%02x"), true},
	{"nat64-local-96", hideIn("64:ff9b:1::%02x%02x:%02x%02x"), true},
	{"nat64-local-96-subnet", hideIn("64:ff9b:1:1234:0:5678:%02x%02x:%02x%02x"), true},
	{"nat64-local-64", hideIn("64:ff9b:1:1234:00%02x:%02x%02x:%02x00::"), false},
	{"nat64-local-56", hideIn("64:ff9b:1:12%02x:00%02x:%02x%02x::"), false},
	{"nat64-local-48", hideIn("64:ff9b:1:%02x%02x:00%02x:%02x00::"), false},
	{"siit", hideIn("::ffff:0:%02x%02x:%02x%02x"), true},
	{"compatible", hideIn("::%02x%02x:%02x%02x"), false},
	{"6to4", hideIn("2002:%02x%02x:%02x%02x::"), false},
	{"6to4-host", hideIn("2002:%02x%02x:%02x%02x:1:2:3:4:5"), false},
	{"isatap-private", hideIn("2001:db8::5efe:%02x%02x:%02x%02x"), false},
	{"isatap-global", hideIn("2001:db8:1:2:200:5efe:%02x%02x:%02x%02x"), false},
	{"teredo", func(a netip.Addr) netip.Addr {
		b := a.As4()
		for i := range b {
			b[i] = 255 - b[i]
		}
		return hideIn("2001:0:4136:e378:8000:63bf:%02x%02x:%02x%02x")(netip.AddrFrom4(b))
	}, false},
}

func hideIn(form string) func(netip.Addr) netip.Addr {
	return func(a netip.Addr) netip.Addr {
		b := a.As4()
		return netip.MustParseAddr(fmt.Sprintf(form, b[0], b[1], b[2], b[3]))
	}
}

// An IPv4 address in IPv6 clothes is refused where it is refused bare.
func TestHiddenIPv4(t *testing.T) { // [I-16] [I-17]
	public := compile(t, mustPolicy(t, "public"), matcher.Options{})
	wide := compile(t, mustPolicy(t, "allow ::/0 0.0.0.0/0 ok.test"), matcher.Options{})
	deny := compile(t, mustPolicy(t, "deny 203.0.113.0/24 198.51.100.7:443"), matcher.Options{})
	never := compile(t, mustPolicy(t, "public"), matcher.Options{Never: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, NoFloor: true})
	noFloor := compile(t, mustPolicy(t, "public"), matcher.Options{NoFloor: true})
	zoned := compile(t, mustPolicy(t, "allow *.w.test"), matcher.Options{})
	good := netip.MustParseAddr("192.0.2.33")
	for _, h := range hiding {
		t.Run(h.name, func(t *testing.T) {
			check := func(r *matcher.Ruleset, d matcher.Decision, a netip.Addr, verdict matcher.Verdict, reason matcher.Reason) {
				t.Helper()
				if d.Verdict != verdict || d.Reason != reason {
					t.Errorf("%v in %v: %v is %s, want %v %s", a, r.Mode(), h.hide(a), showDecision(r, d), verdict, reason)
				}
			}
			for _, s := range []string{"127.0.0.1", "127.255.255.255", "169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "239.255.255.255", "255.255.255.255"} {
				a := netip.MustParseAddr(s)
				check(public, public.Addr(h.hide(a), 443), a, matcher.Refuse, matcher.Floor)
				check(wide, wide.Addr(h.hide(a), 443), a, matcher.Refuse, matcher.Floor)
				check(wide, wide.Resolved(wide.Name("ok.test", 443), h.hide(a), 443), a, matcher.Refuse, matcher.Floor)
				check(deny, deny.Addr(h.hide(a), 443), a, matcher.Refuse, matcher.Floor)
				check(deny, deny.Answer(deny.Query("ok.test"), h.hide(a)), a, matcher.Refuse, matcher.Floor)
				check(noFloor, noFloor.Addr(h.hide(a), 443), a, matcher.Allow, matcher.PublicMode)
			}
			check(public, public.Addr(h.hide(good), 443), good, matcher.Allow, matcher.PublicMode)
			check(wide, wide.Addr(h.hide(good), 443), good, matcher.Allow, matcher.AddressRule)
			check(deny, deny.Addr(h.hide(good), 443), good, matcher.Allow, matcher.NotDenied)
			for _, s := range []string{"203.0.113.1", "203.0.113.254"} {
				a := netip.MustParseAddr(s)
				check(deny, deny.Addr(h.hide(a), 443), a, matcher.Refuse, matcher.AddressRule)
				check(deny, deny.Resolved(deny.Name("ok.test", 443), h.hide(a), 443), a, matcher.Refuse, matcher.AddressRule)
				check(never, never.Addr(h.hide(a), 443), a, matcher.Refuse, matcher.OwnAddress)
			}
			one := netip.MustParseAddr("198.51.100.7")
			check(deny, deny.Addr(h.hide(one), 443), one, matcher.Refuse, matcher.AddressRule)
			check(deny, deny.Addr(h.hide(one), 80), one, matcher.Allow, matcher.NotDenied)
			for _, s := range []string{"10.0.0.1", "172.16.5.4", "192.168.1.1", "100.64.0.9"} {
				a := netip.MustParseAddr(s)
				check(zoned, zoned.Resolved(zoned.Name("a.w.test", 443), h.hide(a), 443), a, matcher.Refuse, matcher.PrivateWildcard)
			}
			check(zoned, zoned.Resolved(zoned.Name("a.w.test", 443), h.hide(good), 443), good, matcher.Allow, matcher.NameRule)
		})
	}
}

// A target for an IPv4 address opens the IPv6 forms whose packets end there, and no tunnel, behind which others are.
func TestHiddenIPv4Allowed(t *testing.T) { // [I-16]
	good := netip.MustParseAddr("192.0.2.33")
	r := compile(t, mustPolicy(t, "allow 192.0.2.33:443"), matcher.Options{})
	for _, h := range hiding {
		if strings.HasPrefix(h.name, "nat64-local-") && !h.ends {
			continue // a shorter prefix has other readings too, which no target covers
		}
		if d := r.Addr(h.hide(good), 443); (d.Verdict == matcher.Allow) != h.ends {
			t.Errorf("%s: %v is %s", h.name, h.hide(good), showDecision(r, d))
		}
		if d := r.Addr(h.hide(good), 80); d.Verdict != matcher.Refuse {
			t.Errorf("%s: %v on another port is %s", h.name, h.hide(good), showDecision(r, d))
		}
		if d := r.Addr(h.hide(good.Next()), 443); d.Verdict != matcher.Refuse {
			t.Errorf("%s: %v beside it is %s", h.name, h.hide(good.Next()), showDecision(r, d))
		}
	}
	checkRows(t, `
	allow 127.0.0.1           | addr ::ffff:127.0.0.1 80      | allow address-rule 127.0.0.1
	                          | addr 64:ff9b::7f00:1 80       | allow address-rule 127.0.0.1
	                          | addr 2002:7f00:1:: 80         | refuse not-listed -
	                          | addr ::127.0.0.1 80           | refuse not-listed -
	allow 2002:7f00:1::       | addr 2002:7f00:1:: 80         | allow address-rule 2002:7f00:1::
	                          | addr 2002:7f00:1::1 80        | refuse floor -
	                          | addr 127.0.0.1 80             | refuse floor -
	allow 2002::/16           | addr 2002:7f00:1:: 80         | refuse floor -
	                          | addr 2002:c000:221:: 80       | allow address-rule 2002::/16
	allow ::/0                | addr 64:ff9b::7f00:1 80       | refuse floor -
	                          | addr ::7f00:1 80              | refuse floor -
	                          | addr 2001:0:4136:e378:8000:63bf:80ff:fffe 80 | refuse floor -
	                          | addr 64:ff9b:1::7f00:1 80     | refuse floor -
	                          | addr 64:ff9b:1:7f00:0:100:: 80 | refuse floor -
	public                    | addr 64:ff9b:2::7f00:1 80     | allow public -
	                          | addr 2003:7f00:1:: 80         | allow public -
	                          | addr 2001:1:4136:e378:8000:63bf:80ff:fffe 80 | allow public -
	                          | addr 2001:db8::100:5efe:7f00:1 80 | allow public -
	                          | addr 2001:db8::5eff:7f00:1 80 | allow public -
	                          | addr ::1:0:7f00:1 80          | allow public -
	                          | addr :: 80                    | refuse floor -
	                          | addr ::1 80                   | refuse floor -
	                          | addr ::2 80                   | refuse floor -
	`)
}
