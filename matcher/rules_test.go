package matcher_test

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/matcher"
	"sluice/policy"
)

// Rows are read as
//
//	policy | question | verdict reason rule
//
// and a row without a policy has the one above it. A policy is "public", "no-network", or "allow" or "deny" and
// targets, a network's port behind "@"; behind ";" stand options. Questions are
//
//	name HOST PORT          Name
//	query NAME              Query
//	addr ADDR PORT          Addr
//	resolved HOST ADDR PORT Name, then Resolved
//	answer NAME ADDR        Query, then Answer
//
// The rule is the target that decided, or "-".
func checkRows(t *testing.T, rows string) {
	t.Helper()
	var p policy.Policy
	var r *matcher.Ruleset
	n := 0
	for row := range strings.Lines(rows) {
		if row = strings.TrimSpace(row); row == "" {
			continue
		}
		cells := strings.Split(row, "|")
		if len(cells) != 3 {
			t.Fatalf("%q has %d cells", row, len(cells))
		}
		if text := strings.TrimSpace(cells[0]); text != "" {
			var o matcher.Options
			p, o = readPolicy(t, text)
			r = compile(t, p, o)
		}
		d := ask(t, r, strings.Fields(cells[1]))
		if got, want := showDecision(r, d), strings.Join(strings.Fields(cells[2]), " "); got != want {
			t.Errorf("%s\n got %s", row, got)
		}
		if d.Rule != matcher.NoRule && !slices.Contains(p.Targets, r.Target(d.Rule)) {
			t.Errorf("%s\n the rule %+v is no target of the policy", row, r.Target(d.Rule))
		}
		n++
	}
	if n == 0 {
		t.Fatal("no rows")
	}
}

func showDecision(r *matcher.Ruleset, d matcher.Decision) string {
	rule := "-"
	if d.Rule != matcher.NoRule {
		rule = r.Target(d.Rule).String()
	}
	return d.Verdict.String() + " " + string(d.Reason) + " " + rule
}

func ask(t testing.TB, r *matcher.Ruleset, q []string) matcher.Decision {
	t.Helper()
	addr := func(i int) netip.Addr {
		a, err := netip.ParseAddr(q[i])
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	port := func(i int) uint16 {
		n, err := strconv.ParseUint(q[i], 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		return uint16(n)
	}
	switch q[0] {
	case "name":
		return r.Name(q[1], port(2))
	case "query":
		return r.Query(q[1])
	case "addr":
		return r.Addr(addr(1), port(2))
	case "resolved":
		return r.Resolved(r.Name(q[1], port(3)), addr(2), port(3))
	case "answer":
		return r.Answer(r.Query(q[1]), addr(2))
	}
	t.Fatalf("what is %q?", q)
	return matcher.Decision{}
}

// readPolicy reads the first cell of a row.
func readPolicy(t testing.TB, text string) (p policy.Policy, o matcher.Options) {
	t.Helper()
	text, options, _ := strings.Cut(text, ";")
	words := strings.Fields(text)
	switch words[0] {
	case "allow":
		p.Mode = policy.Allowlist
	case "deny":
		p.Mode = policy.Denylist
	case "public":
		p.Mode = policy.Public
	case "no-network":
		p.Mode = policy.NoNetwork
	default:
		t.Fatalf("what is %q?", words[0])
	}
	for _, w := range words[1:] {
		p.Targets = append(p.Targets, readTarget(t, w))
	}
	slices.SortFunc(p.Targets, policy.Target.Compare)
	for _, w := range strings.Fields(options) {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "zone":
			o.PrivateZones = append(o.PrivateZones, value)
		case "never":
			o.Never = append(o.Never, netip.MustParsePrefix(value))
		case "wildcard-private":
			o.WildcardPrivate = true
		case "resolve":
			o.ResolveForAddressRules = true
		case "no-floor":
			o.NoFloor = true
		default:
			t.Fatalf("what is %q?", w)
		}
	}
	return p, o
}

func compile(t testing.TB, p policy.Policy, o matcher.Options) *matcher.Ruleset {
	t.Helper()
	r, err := matcher.Compile(p, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func readTarget(t testing.TB, text string) policy.Target {
	t.Helper()
	text, port, _ := strings.Cut(text, "@")
	target, err := policy.ParseTarget(text)
	if err != nil {
		t.Fatal(err)
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		target.Port = uint16(n)
	}
	return target
}

func TestModes(t *testing.T) {
	checkRows(t, `
	public          | name any.test 443           | allow public -
	                | name any.test 0             | allow public -
	                | query any.test              | allow public -
	                | query a/b                   | allow public -
	                | addr 192.0.2.1 443          | allow public -
	                | addr 2001:db8::1 443        | allow public -
	                | addr 10.0.0.1 443           | allow public -
	                | addr fd12::1 443            | allow public -
	                | resolved any.test 10.0.0.1 1 | allow public -
	                | answer any.test fd12::1     | allow public -
	no-network      | name any.test 443           | refuse no-network -
	                | name any.test 0             | refuse no-network -
	                | query any.test              | refuse no-network -
	                | query a/b                   | refuse no-network -
	                | addr 192.0.2.1 443          | refuse no-network -
	                | addr 2001:db8::1 443        | refuse no-network -
	                | addr 127.0.0.1 443          | refuse no-network -
	                | resolved any.test 192.0.2.1 1 | refuse no-network -
	                | answer any.test 2001:db8::1 | refuse no-network -
	allow           | name any.test 443           | refuse not-listed -
	                | query any.test              | refuse not-listed -
	                | addr 192.0.2.1 443          | refuse not-listed -
	                | addr 2001:db8::1 443        | refuse not-listed -
	deny            | name any.test 443           | allow not-denied -
	                | query any.test              | allow not-denied -
	                | addr 192.0.2.1 443          | allow not-denied -
	                | addr 2001:db8::1 443        | allow not-denied -
	                | addr 127.0.0.1 443          | refuse floor -
	                | addr ::1 443                | refuse floor -
	`)
}

func TestExactNames(t *testing.T) { // [I-18] [I-64] [I-70] [P-19]
	checkRows(t, `
	allow ok.test            | name ok.test 443          | allow name-rule ok.test
	                         | name ok.test 0            | allow name-rule ok.test
	                         | name ok.test. 443         | allow name-rule ok.test
	                         | name OK.Test 443          | allow name-rule ok.test
	                         | name OK.TEST. 443         | allow name-rule ok.test
	                         | name ok.test.. 443        | refuse bad-name -
	                         | name .ok.test 443         | refuse bad-name -
	                         | name a.ok.test 443        | refuse not-listed -
	                         | name test 443             | refuse not-listed -
	                         | name evilok.test 443      | refuse not-listed -
	                         | name ok.test.evil.test 443 | refuse not-listed -
	                         | name ok.tes 443           | refuse not-listed -
	                         | name ok.tests 443         | refuse not-listed -
	                         | name k.test 443           | refuse not-listed -
	                         | addr 192.0.2.1 443        | refuse not-listed -
	deny ok.test             | name ok.test 443          | refuse name-rule ok.test
	                         | name ok.test 0            | refuse name-rule ok.test
	                         | name ok.test. 443         | refuse name-rule ok.test
	                         | name OK.Test 443          | refuse name-rule ok.test
	                         | name OK.TEST. 443         | refuse name-rule ok.test
	                         | name ok.test.. 443        | refuse bad-name -
	                         | name .ok.test 443         | refuse bad-name -
	                         | name a.ok.test 443        | allow not-denied -
	                         | name test 443             | allow not-denied -
	                         | name evilok.test 443      | allow not-denied -
	                         | addr 192.0.2.1 443        | allow not-denied -
	allow ok.test:443        | name ok.test 443          | allow name-rule ok.test:443
	                         | name ok.test 22           | refuse port-not-listed -
	                         | name ok.test 80           | refuse port-not-listed -
	                         | name ok.test 9999         | refuse port-not-listed -
	                         | name ok.test 0            | refuse port-not-listed -
	                         | name OK.test. 80          | refuse port-not-listed -
	                         | name no.test 443          | refuse not-listed -
	deny ok.test:443         | name ok.test 443          | refuse name-rule ok.test:443
	                         | name ok.test 442          | allow not-denied -
	                         | name ok.test 444          | allow not-denied -
	                         | name ok.test 0            | allow not-denied -
	allow a.test:1 a.test:65535 a.test:443 | name a.test 1 | allow name-rule a.test:1
	                         | name a.test 443           | allow name-rule a.test:443
	                         | name a.test 65535         | allow name-rule a.test:65535
	                         | name a.test 2             | refuse port-not-listed -
	                         | name a.test 65534         | refuse port-not-listed -
	                         | name a.test 0             | refuse port-not-listed -
	allow a.test a.test:80   | name a.test 80            | allow name-rule a.test
	                         | name a.test 81            | allow name-rule a.test
	deny a.test:80 a.test    | name a.test 80            | refuse name-rule a.test
	                         | name a.test 81            | refuse name-rule a.test
	allow xn--bcher-kva.test | name XN--BCHER-KVA.test 1 | allow name-rule xn--bcher-kva.test
	                         | name bcher-kva.test 1     | refuse not-listed -
	allow intranet           | name intranet 80          | allow name-rule intranet
	                         | name a.intranet 80        | refuse not-listed -
	`)
}

func TestWildcards(t *testing.T) { // [P-04] [P-05]
	checkRows(t, `
	allow *.example.com      | name example.com 443              | refuse not-listed -
	                         | name a.example.com 443            | allow name-rule *.example.com
	                         | name a.b.example.com 443          | allow name-rule *.example.com
	                         | name a.b.c.d.e.f.example.com 443  | allow name-rule *.example.com
	                         | name A.Example.COM. 443           | allow name-rule *.example.com
	                         | name a_b.example.com 443          | allow name-rule *.example.com
	                         | name example.com. 443             | refuse not-listed -
	                         | name evil-example.com 443         | refuse not-listed -
	                         | name notexample.com 443           | refuse not-listed -
	                         | name example.com.evil.test 443    | refuse not-listed -
	                         | name a.example.com.evil.test 443  | refuse not-listed -
	                         | name .example.com 443             | refuse bad-name -
	                         | name a..example.com 443           | refuse bad-name -
	                         | name *.example.com 443            | refuse bad-name -
	                         | query *.example.com               | allow name-rule *.example.com
	                         | name com 443                      | refuse not-listed -
	                         | name a.example.org 443            | refuse not-listed -
	deny *.example.com       | name example.com 443              | allow not-denied -
	                         | name a.example.com 443            | refuse name-rule *.example.com
	                         | name a.b.example.com 443          | refuse name-rule *.example.com
	                         | name A.Example.COM. 443           | refuse name-rule *.example.com
	                         | name evil-example.com 443         | allow not-denied -
	                         | name notexample.com 443           | allow not-denied -
	                         | name example.com.evil.test 443    | allow not-denied -
	allow *.a.test:443 *.b.a.test:80 | name x.a.test 443         | allow name-rule *.a.test:443
	                         | name x.a.test 80                  | refuse port-not-listed -
	                         | name x.b.a.test 80                | allow name-rule *.b.a.test:80
	                         | name x.b.a.test 443               | allow name-rule *.a.test:443
	                         | name b.a.test 80                  | refuse port-not-listed -
	                         | name b.a.test 443                 | allow name-rule *.a.test:443
	                         | name a.test 443                   | refuse not-listed -
	allow *.a.test *.b.a.test | name x.b.a.test 1                | allow name-rule *.b.a.test
	                         | name b.a.test 1                   | allow name-rule *.a.test
	deny *.a.test:443        | name x.a.test 443                 | refuse name-rule *.a.test:443
	                         | name x.a.test 80                  | allow not-denied -
	allow a.test *.a.test    | name a.test 1                     | allow name-rule a.test
	                         | name x.a.test 1                   | allow name-rule *.a.test
	allow x.a.test:443 *.a.test | name x.a.test 443              | allow name-rule x.a.test:443
	                         | name x.a.test 80                  | allow name-rule *.a.test
	deny x.a.test:443 *.a.test | name x.a.test 443               | refuse name-rule x.a.test:443
	                         | name x.a.test 80                  | refuse name-rule *.a.test
	allow *.test             | name test 1                       | refuse not-listed -
	                         | name a.test 1                     | allow name-rule *.test
	                         | name a.b.test 1                   | allow name-rule *.test
	allow *.a.test:80 *.a.test:443 | name x.a.test 80            | allow name-rule *.a.test:80
	                         | name x.a.test 443                 | allow name-rule *.a.test:443
	                         | name x.a.test 81                  | refuse port-not-listed -
	`)
}

func TestQueries(t *testing.T) {
	checkRows(t, `
	allow ok.test:443        | query ok.test                 | allow name-rule ok.test:443
	                         | query OK.TEST.                | allow name-rule ok.test:443
	                         | query no.test                 | refuse not-listed -
	                         | query a.ok.test               | refuse not-listed -
	                         | query _https._tcp.ok.test     | allow name-rule ok.test:443
	                         | query _HTTPS._TCP.OK.test.    | allow name-rule ok.test:443
	                         | query _https._tcp.no.test     | refuse not-listed -
	                         | query _https._tcp.a.ok.test   | refuse not-listed -
	                         | query _https.ok.test          | refuse not-listed -
	                         | query https.tcp.ok.test       | refuse not-listed -
	                         | query _https.tcp.ok.test      | refuse not-listed -
	                         | query https._tcp.ok.test      | refuse not-listed -
	                         | query _a._b._c.ok.test        | refuse not-listed -
	                         | query _a._b._c._d.ok.test     | refuse not-listed -
	                         | query _https._tcp             | refuse not-listed -
	                         | query _https._tcp.            | refuse not-listed -
	                         | query _https._tcp..ok.test    | refuse bad-name -
	                         | query a..ok.test              | refuse bad-name -
	                         | name _https._tcp.ok.test 443  | refuse not-listed -
	allow *.ok.test          | query a.ok.test               | allow name-rule *.ok.test
	                         | query _https._tcp.a.ok.test   | allow name-rule *.ok.test
	                         | query _https._tcp.ok.test     | allow name-rule *.ok.test
	                         | query _x.ok.test              | allow name-rule *.ok.test
	                         | query _x.a.ok.test            | allow name-rule *.ok.test
	                         | query _x.no.test              | refuse not-listed -
	                         | query ok.test                 | refuse not-listed -
	deny ok.test             | query ok.test                 | refuse name-rule ok.test
	                         | query OK.test.                | refuse name-rule ok.test
	                         | query _https._tcp.ok.test     | refuse name-rule ok.test
	                         | query _https._tcp.no.test     | allow not-denied -
	                         | query a.ok.test               | allow not-denied -
	deny ok.test:443         | query ok.test                 | allow not-denied -
	                         | query _https._tcp.ok.test     | allow not-denied -
	                         | name ok.test 443              | refuse name-rule ok.test:443
	deny ok.test:443 ok.test | query ok.test                 | refuse name-rule ok.test
	deny *.ok.test:80        | query a.ok.test               | allow not-denied -
	                         | name a.ok.test 80             | refuse name-rule *.ok.test:80
	deny *.ok.test           | query a.ok.test               | refuse name-rule *.ok.test
	                         | query _x.ok.test              | refuse name-rule *.ok.test
	                         | query _https._tcp.ok.test     | refuse name-rule *.ok.test
	                         | query ok.test                 | allow not-denied -
	allow 1.2.0.192.in-addr.arpa | query 1.2.0.192.in-addr.arpa | allow name-rule 1.2.0.192.in-addr.arpa
	                         | query 192.0.2.1               | refuse bad-name -
	                         | query 0x7f.1                  | refuse bad-name -
	`)
}

// What a port that is not known yet means in DNS: an allowlist lets through what any port may reach, a denylist
// refuses what no port may.
func TestAnswers(t *testing.T) {
	checkRows(t, `
	allow ok.test:443 *.w.test | answer ok.test 192.0.2.1          | allow name-rule ok.test:443
	                           | answer ok.test 10.0.0.1           | allow name-rule ok.test:443
	                           | answer ok.test 127.0.0.1          | refuse floor -
	                           | answer no.test 192.0.2.1          | refuse not-listed -
	                           | answer a.w.test 2001:db8::1       | allow name-rule *.w.test
	                           | answer a.w.test fd12::1           | refuse private-wildcard *.w.test
	allow *.w.test 10.0.0.0/8:80 fd12::/16@80 | answer a.w.test 10.0.0.1 | allow address-rule 10.0.0.0/8:80
	                           | answer a.w.test fd12::1           | allow address-rule [fd12::/16]:80
	                           | answer a.w.test fd13::1           | refuse private-wildcard *.w.test
	allow ok.test 127.0.0.1:80 [::1]:80 | answer ok.test 127.0.0.1 | allow name-rule ok.test
	                           | answer ok.test ::1                | allow name-rule ok.test
	                           | answer ok.test 127.0.0.2          | refuse floor -
	deny 192.0.2.0/24 198.51.100.1:80 2001:db8::/32 | answer ok.test 192.0.2.1 | refuse address-rule 192.0.2.0/24
	                           | answer ok.test 198.51.100.1       | allow not-denied -
	                           | answer ok.test 2001:db8::1        | refuse address-rule 2001:db8::/32
	                           | answer ok.test 2001:db9::1        | allow not-denied -
	                           | answer ok.test ::ffff:192.0.2.1   | refuse address-rule 192.0.2.0/24
	allow 192.0.2.1:80 ; resolve | answer ok.test 192.0.2.1        | allow address-rule 192.0.2.1:80
	                           | answer ok.test 192.0.2.2          | refuse not-listed -
	`)
}

func TestAddressTargets(t *testing.T) { // [I-17] [P-27]
	checkRows(t, `
	allow 192.0.2.1 2001:db8::1 | addr 192.0.2.1 443          | allow address-rule 192.0.2.1
	                         | addr 192.0.2.1 0              | allow address-rule 192.0.2.1
	                         | addr 192.0.2.0 443            | refuse not-listed -
	                         | addr 192.0.2.2 443            | refuse not-listed -
	                         | addr ::ffff:192.0.2.1 443     | allow address-rule 192.0.2.1
	                         | addr ::ffff:192.0.2.2 443     | refuse not-listed -
	                         | addr 2001:db8::1 443          | allow address-rule 2001:db8::1
	                         | addr 2001:db8::1%eth0 443     | allow address-rule 2001:db8::1
	                         | addr 2001:db8::2 443          | refuse not-listed -
	                         | addr 2001:db8:: 443           | refuse not-listed -
	deny 192.0.2.1 2001:db8::1 | addr 192.0.2.1 443           | refuse address-rule 192.0.2.1
	                         | addr 192.0.2.1 0              | refuse address-rule 192.0.2.1
	                         | addr 192.0.2.2 443            | allow not-denied -
	                         | addr ::ffff:192.0.2.1 443     | refuse address-rule 192.0.2.1
	                         | addr ::ffff:c000:201%1 443    | refuse address-rule 192.0.2.1
	                         | addr 2001:db8::1 443          | refuse address-rule 2001:db8::1
	                         | addr 2001:db8::1%eth0 443     | refuse address-rule 2001:db8::1
	                         | addr 2001:db8::2 443          | allow not-denied -
	allow 192.0.2.1:443 [2001:db8::1]:443 | addr 192.0.2.1 443 | allow address-rule 192.0.2.1:443
	                         | addr 192.0.2.1 80             | refuse port-not-listed -
	                         | addr 192.0.2.1 0              | refuse port-not-listed -
	                         | addr 2001:db8::1 443          | allow address-rule [2001:db8::1]:443
	                         | addr 2001:db8::1 80           | refuse port-not-listed -
	deny 192.0.2.1:443 [2001:db8::1]:443 | addr 192.0.2.1 443 | refuse address-rule 192.0.2.1:443
	                         | addr 192.0.2.1 80             | allow not-denied -
	                         | addr 192.0.2.1 0              | allow not-denied -
	                         | addr 2001:db8::1 443          | refuse address-rule [2001:db8::1]:443
	                         | addr 2001:db8::1 80           | allow not-denied -
	allow ::ffff:192.0.2.1   | addr 192.0.2.1 443            | allow address-rule ::ffff:c000:201
	                         | addr ::ffff:192.0.2.1 443     | allow address-rule ::ffff:c000:201
	deny ::ffff:192.0.2.0/120 | addr 192.0.2.255 443         | refuse address-rule ::ffff:c000:200/120
	                         | addr 192.0.3.0 443            | allow not-denied -
	deny 192.0.2.1/32 2001:db8::1/128 | addr 192.0.2.1 1     | refuse address-rule 192.0.2.1/32
	                         | addr 2001:db8::1 1            | refuse address-rule 2001:db8::1/128
	                         | addr 192.0.2.0 1              | allow not-denied -
	                         | addr 2001:db8:: 1             | allow not-denied -
	allow 192.0.2.1/32@80 192.0.2.1:443 | addr 192.0.2.1 80  | allow address-rule 192.0.2.1/32:80
	                         | addr 192.0.2.1 443            | allow address-rule 192.0.2.1:443
	                         | addr 192.0.2.1 81             | refuse port-not-listed -
	allow 0.0.0.0/0          | addr 192.0.2.1 1              | allow address-rule 0.0.0.0/0
	                         | addr ::ffff:192.0.2.1 1       | allow address-rule 0.0.0.0/0
	                         | addr 2001:db8::1 1            | refuse not-listed -
	allow ::/0               | addr 2001:db8::1 1            | allow address-rule ::/0
	                         | addr 192.0.2.1 1              | refuse not-listed -
	                         | addr ::ffff:192.0.2.1 1       | refuse not-listed -
	deny ::/0                | addr 2001:db8::1 1            | refuse address-rule ::/0
	                         | addr 192.0.2.1 1              | allow not-denied -
	allow 10.0.0.0/8 10.1.0.0/16@443 10.1.2.0/24@80 | addr 10.1.2.3 80 | allow address-rule 10.1.2.0/24:80
	                         | addr 10.1.2.3 443             | allow address-rule 10.1.0.0/16:443
	                         | addr 10.1.2.3 22              | allow address-rule 10.0.0.0/8
	                         | addr 10.2.0.0 80              | allow address-rule 10.0.0.0/8
	`)
}

// Every prefix length, at both its ends and one beyond each.
func TestPrefixEdges(t *testing.T) {
	asked := 0
	for _, base := range []string{"172.21.170.85", "2001:db8:aaaa:5555:aaaa:5555:aaaa:5555"} {
		a := netip.MustParseAddr(base)
		for bits := range a.BitLen() + 1 {
			prefix := netip.PrefixFrom(a, bits).Masked()
			target := policy.Target{Host: prefix.String(), Kind: policy.IPv4CIDR, Prefix: prefix}
			if a.Is6() {
				target.Kind = policy.IPv6CIDR
			}
			first, last := prefix.Addr(), lastOf(prefix)
			for mode, inside := range map[policy.Mode]matcher.Verdict{policy.Allowlist: matcher.Allow, policy.Denylist: matcher.Refuse} {
				outside := matcher.Allow + matcher.Refuse - inside
				r := compile(t, policy.Policy{Mode: mode, Targets: []policy.Target{target}}, matcher.Options{NoFloor: true})
				for addr, want := range map[netip.Addr]matcher.Verdict{first: inside, a: inside, last: inside, first.Prev(): outside, last.Next(): outside} {
					if !addr.IsValid() {
						continue // there is nothing beyond the first and the last of all
					}
					if d := r.Addr(addr, 443); d.Verdict != want || want == inside && r.Target(d.Rule) != target {
						t.Errorf("%v %v: %v is %v, rule %v", mode, prefix, addr, d.Verdict, r.Target(d.Rule))
					}
					asked++
				}
			}
		}
	}
	if asked < 1500 {
		t.Errorf("only %d questions", asked)
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func TestAddressesBehindNames(t *testing.T) { // [I-11] [I-12] [I-13] [I-66]
	checkRows(t, `
	allow ok.test *.w.test   | resolved ok.test 192.0.2.1 443    | allow name-rule ok.test
	                         | resolved ok.test 10.0.0.1 443     | allow name-rule ok.test
	                         | resolved ok.test fd00::1 443      | allow name-rule ok.test
	                         | resolved ok.test 127.0.0.1 443    | refuse floor -
	                         | resolved ok.test ::1 443          | refuse floor -
	                         | resolved ok.test 169.254.169.254 80 | refuse floor -
	                         | resolved no.test 192.0.2.1 443    | refuse not-listed -
	                         | resolved a.w.test 192.0.2.1 443   | allow name-rule *.w.test
	                         | resolved a.w.test 2001:db8::1 443 | allow name-rule *.w.test
	                         | resolved a.w.test 10.0.0.1 443    | refuse private-wildcard *.w.test
	                         | resolved a.w.test fd00::1 443     | refuse private-wildcard *.w.test
	                         | resolved a.w.test ::ffff:10.0.0.1 443 | refuse private-wildcard *.w.test
	                         | resolved a.w.test 64:ff9b::a00:1 443  | refuse private-wildcard *.w.test
	                         | resolved a.w.test 2002:a00:1:: 443    | refuse private-wildcard *.w.test
	                         | resolved a.w.test 127.0.0.1 443   | refuse floor -
	allow a.w.test:443 *.w.test | resolved a.w.test 10.0.0.1 443 | allow name-rule a.w.test:443
	                         | resolved a.w.test 10.0.0.1 80     | refuse private-wildcard *.w.test
	                         | resolved b.w.test 10.0.0.1 443    | refuse private-wildcard *.w.test
	allow *.w.test 10.0.0.0/8:443 | resolved a.w.test 10.0.0.1 443 | allow address-rule 10.0.0.0/8:443
	                         | resolved a.w.test 10.0.0.1 80     | refuse private-wildcard *.w.test
	                         | resolved a.w.test 192.168.0.1 443 | refuse private-wildcard *.w.test
	allow ok.test 192.0.2.1  | resolved no.test 192.0.2.1 443    | refuse not-listed -
	deny no.test 192.0.2.1 2001:db8::/32@443 | resolved ok.test 192.0.2.1 443 | refuse address-rule 192.0.2.1
	                         | resolved ok.test 192.0.2.2 443    | allow not-denied -
	                         | resolved ok.test 2001:db8::1 443  | refuse address-rule [2001:db8::/32]:443
	                         | resolved ok.test 2001:db8::1 80   | allow not-denied -
	                         | resolved ok.test 10.0.0.1 80      | allow not-denied -
	                         | resolved ok.test 127.0.0.1 80     | refuse floor -
	                         | resolved no.test 198.51.100.1 443 | refuse name-rule no.test
	public                   | resolved ok.test 169.254.169.254 80 | refuse floor -
	`)
}

func TestPrivateZones(t *testing.T) {
	checkRows(t, `
	allow *.corp.test *.test ; zone=corp.test | resolved a.corp.test 10.0.0.1 443 | allow name-rule *.corp.test
	                         | resolved a.b.corp.test fd12::1 443   | allow name-rule *.corp.test
	                         | resolved A.CORP.test. 10.0.0.1 443   | allow name-rule *.corp.test
	                         | resolved corp.test 10.0.0.1 443      | allow name-rule *.test
	                         | resolved acorp.test 10.0.0.1 443     | refuse private-wildcard *.test
	                         | resolved a.other.test fd12::1 443    | refuse private-wildcard *.test
	                         | resolved a.corp.test 127.0.0.1 443   | refuse floor -
	                         | resolved a.corp.test ::1 443         | refuse floor -
	                         | resolved corp.example 10.0.0.1 443   | refuse not-listed -
	                         | answer a.corp.test 10.0.0.1          | allow name-rule *.corp.test
	allow *.w.test ; zone=Corp.Test. zone=w.test | resolved a.w.test 10.0.0.1 443 | allow name-rule *.w.test
	allow *.corp.test ; zone=Corp.Test. | resolved a.corp.test 10.0.0.1 443 | allow name-rule *.corp.test
	allow *.corp.test ; zone=a.corp.test | resolved a.corp.test 10.0.0.1 443 | allow name-rule *.corp.test
	                         | resolved b.a.corp.test 10.0.0.1 443  | allow name-rule *.corp.test
	                         | resolved b.corp.test 10.0.0.1 443    | refuse private-wildcard *.corp.test
	allow *.w.test ; wildcard-private | resolved a.w.test 10.0.0.1 443 | allow name-rule *.w.test
	                         | resolved a.w.test fd12::1 443        | allow name-rule *.w.test
	                         | resolved a.w.test 169.254.169.254 80 | refuse floor -
	                         | resolved w.test 10.0.0.1 443         | refuse not-listed -
	`)
	for _, zone := range []string{"", ".", "..", "10.0.0.0/8", "*.corp.test", "a b", "1.2.3.4", strings.Repeat("a", 64)} {
		p, _ := readPolicy(t, "allow *.corp.test")
		if r, err := matcher.Compile(p, matcher.Options{PrivateZones: []string{zone}}); err == nil || r != nil {
			t.Errorf("the zone %q is taken", zone)
		}
	}
}

// Each range that is private for a wildcard, at its ends, and what lies beyond.
func TestPrivateRanges(t *testing.T) {
	p, o := readPolicy(t, "allow *.w.test ; no-floor")
	r := compile(t, p, o)
	name := r.Name("a.w.test", 443)
	for _, c := range []struct{ prefix, before, after string }{
		{"10.0.0.0/8", "9.255.255.255", "11.0.0.0"},
		{"172.16.0.0/12", "172.15.255.255", "172.32.0.0"},
		{"192.168.0.0/16", "192.167.255.255", "192.169.0.0"},
		{"100.64.0.0/10", "100.63.255.255", "100.128.0.0"},
		{"192.0.0.0/24", "191.255.255.255", "192.0.1.0"},
		{"198.18.0.0/15", "198.17.255.255", "198.20.0.0"},
		{"240.0.0.0/4", "239.255.255.255", ""},
		{"fc00::/7", "fbff:ffff::", "fe00::"},
		{"fec0::/10", "febf:ffff::", "ff00::"},
	} {
		prefix := netip.MustParsePrefix(c.prefix)
		for _, a := range []netip.Addr{prefix.Addr(), lastOf(prefix)} {
			if d := r.Resolved(name, a, 443); d.Verdict != matcher.Refuse || d.Reason != matcher.PrivateWildcard {
				t.Errorf("%v of %v: %s", a, prefix, showDecision(r, d))
			}
		}
		for _, s := range []string{c.before, c.after} {
			if s == "" {
				continue
			}
			if d := r.Resolved(name, netip.MustParseAddr(s), 443); d.Verdict != matcher.Allow {
				t.Errorf("%v beside %v: %s", s, prefix, showDecision(r, d))
			}
		}
	}
}

func TestResolveForAddressRules(t *testing.T) {
	checkRows(t, `
	allow 192.0.2.0/24 2001:db8::/32 ; resolve | name any.test 443 | by-address not-listed -
	                         | query any.test                        | by-address not-listed -
	                         | resolved any.test 192.0.2.1 443       | allow address-rule 192.0.2.0/24
	                         | resolved any.test 2001:db8::1 443     | allow address-rule 2001:db8::/32
	                         | resolved any.test 198.51.100.1 443    | refuse not-listed -
	                         | resolved any.test 2001:db9::1 443     | refuse not-listed -
	                         | resolved any.test 127.0.0.1 443       | refuse floor -
	                         | name a..test 443                      | refuse bad-name -
	                         | name 192.0.2.1 443                    | refuse bad-name -
	allow 192.0.2.0/24       | name any.test 443                     | refuse not-listed -
	                         | resolved any.test 192.0.2.1 443       | refuse not-listed -
	allow ok.test:443 ; resolve | name any.test 443                  | refuse not-listed -
	                         | name ok.test 443                      | allow name-rule ok.test:443
	                         | name ok.test 80                       | refuse port-not-listed -
	allow ok.test:443 192.0.2.1:80 ; resolve | name ok.test 80       | by-address port-not-listed -
	                         | name ok.test 81                       | refuse port-not-listed -
	                         | name any.test 80                      | by-address not-listed -
	                         | name any.test 81                      | refuse not-listed -
	                         | name any.test 0                       | refuse not-listed -
	                         | query any.test                        | by-address not-listed -
	                         | resolved ok.test 192.0.2.1 80         | allow address-rule 192.0.2.1:80
	                         | resolved ok.test 192.0.2.2 80         | refuse port-not-listed -
	                         | resolved ok.test 192.0.2.2 443        | allow name-rule ok.test:443
	deny 192.0.2.0/24 ; resolve | name any.test 443                  | allow not-denied -
	                         | resolved any.test 192.0.2.1 443       | refuse address-rule 192.0.2.0/24
	public ; resolve         | name any.test 443                     | allow public -
	no-network ; resolve     | name any.test 443                     | refuse no-network -
	`)
}

func TestNever(t *testing.T) {
	checkRows(t, `
	public ; never=192.0.2.0/24 never=2001:db8::1/128 | addr 192.0.2.0 80 | refuse own-address -
	                         | addr 192.0.2.255 80           | refuse own-address -
	                         | addr 192.0.1.255 80           | allow public -
	                         | addr 192.0.3.0 80             | allow public -
	                         | addr ::ffff:192.0.2.1 80      | refuse own-address -
	                         | addr 64:ff9b::c000:201 80     | refuse own-address -
	                         | addr 2001:db8::1 80           | refuse own-address -
	                         | addr 2001:db8::1%eth0 80      | refuse own-address -
	                         | addr 2001:db8::2 80           | allow public -
	                         | resolved ok.test 192.0.2.1 80 | refuse own-address -
	                         | answer ok.test 192.0.2.1      | refuse own-address -
	allow 192.0.2.1 ok.test 127.0.0.1 ; never=192.0.2.1/32 never=127.0.0.0/8 | addr 192.0.2.1 80 | refuse own-address -
	                         | resolved ok.test 192.0.2.1 80 | refuse own-address -
	                         | addr 127.0.0.1 80             | refuse own-address -
	                         | answer ok.test 192.0.2.1      | refuse own-address -
	deny 192.0.2.1 ; never=192.0.2.2/31 no-floor | addr 192.0.2.2 80 | refuse own-address -
	                         | addr 192.0.2.3 80             | refuse own-address -
	                         | addr 192.0.2.1 80             | refuse address-rule 192.0.2.1
	                         | addr 192.0.2.4 80             | allow not-denied -
	allow *.w.test 192.0.2.9:443 ; never=192.0.2.0/24 never=10.0.0.0/8 | addr 192.0.2.1 80 | refuse not-listed -
	                         | addr 192.0.2.9 80             | refuse port-not-listed -
	                         | addr 192.0.2.9 443            | refuse own-address -
	                         | resolved a.w.test 192.0.2.1 80 | refuse own-address -
	                         | resolved a.w.test 10.0.0.1 80 | refuse private-wildcard *.w.test
	deny 192.0.2.1 ; never=192.0.2.0/24 never=127.0.0.0/8 | addr 192.0.2.1 80 | refuse address-rule 192.0.2.1
	                         | addr 192.0.2.2 80             | refuse own-address -
	                         | addr 127.0.0.1 80             | refuse floor -
	public ; never=::ffff:192.0.2.0/120 | addr 192.0.2.7 80  | refuse own-address -
	                         | addr 192.0.3.0 80             | allow public -
	no-network ; never=192.0.2.0/24 | addr 192.0.2.1 80      | refuse no-network -
	`)
	if r, err := matcher.Compile(policy.Policy{Mode: policy.Public}, matcher.Options{Never: []netip.Prefix{{}}}); err == nil || r != nil {
		t.Error("an invalid prefix is taken")
	}
}

// What is not a host name is refused in every mode, whatever the targets.
func TestBadNames(t *testing.T) {
	bad := []string{
		"", ".", "..", "a..b", ".a.test", "a.test..", "*", "*.test", "a.*.test",
		"127.0.0.1", "127.0.0.1.", "127.1", "2130706433", "0x7f000001", "0X7F.1", "0177.0.0.1", "1.2.3", "a.test.1", "a.0x", "a.0xfF", "0",
		"::1", "[::1]", "[ok.test]", "ok.test:443", "[ok.test", "ok.test]", "fe80::1%eth0",
		"ok.test/", "/ok.test", "ok.test/..", `ok\.test`, "ok.test?", "ok.test#", "user@ok.test", "ok.test,no.test", "ok.test;", "http://ok.test",
		" ok.test", "ok.test ", "ok. test", "ok.test\t", "ok.test\n", "ok.test\r\n", "ok.test\x00", "\x00ok.test", "ok\x7f.test", "ok%2etest", "ok%00.test",
		"ök.test", "ok.tést", "ok\u3002test", "\uff4f\uff4b.test", "ok\uff0etest", "ok\u200b.test", "ok\u00ad.test", "\xff.test", "ok\xe3\x80\x82test",
		strings.Repeat("a", 64) + ".test",
		strings.Repeat("a.", 127) + "a",                         // 255 bytes
		strings.Repeat("a.", 126) + "ab",                        // 254 bytes
		strings.Repeat("a", 60) + "." + strings.Repeat("b", 64), // a label too long behind a long one
		strings.Repeat("x", 100_000),
	}
	for _, text := range []string{"public", "no-network", "allow ok.test *.test 127.0.0.1", "deny no.test", "allow 0.0.0.0/0 ; resolve"} {
		p, o := readPolicy(t, text)
		r := compile(t, p, o)
		for _, name := range bad {
			for _, port := range []uint16{0, 443} {
				if d := r.Name(name, port); d != (matcher.Decision{Reason: matcher.BadName, Rule: matcher.NoRule}) {
					t.Errorf("%s: %.100q is %s", text, name, showDecision(r, d))
				}
			}
			if d := r.NameBytes([]byte(name), 443); d.Verdict != matcher.Refuse || d.Reason != matcher.BadName {
				t.Errorf("%s: bytes %.100q are %s", text, name, showDecision(r, d))
			}
		}
		if d := r.Addr(netip.Addr{}, 443); d.Verdict != matcher.Refuse {
			t.Errorf("%s: no address is %s", text, showDecision(r, d))
		}
	}
}

func TestOddNamesThatExist(t *testing.T) {
	label := strings.Repeat("l", 63)
	longest := label + "." + label + "." + label + "." + label[:61]
	for _, name := range []string{
		"a", "a.b", "1a", "a1", "1.a", "0x7f.test", "1.2.3.4.test", "127.0.0.1.nip.test", "_dmarc.test", "a_b.test", "-a.test", "a-.test",
		"0x7g", "08x", "xn--a.test", label, label + ".test", longest, "a.1a", strings.Repeat("a.", 126) + "a",
	} {
		for _, spelled := range []string{name, name + ".", strings.ToUpper(name)} {
			r := compile(t, policy.Policy{Mode: policy.Public}, matcher.Options{})
			if d := r.Name(spelled, 1); d.Verdict != matcher.Allow {
				t.Errorf("public: %.80q is %s", spelled, showDecision(r, d))
			}
			for mode, want := range map[policy.Mode]matcher.Verdict{policy.Allowlist: matcher.Allow, policy.Denylist: matcher.Refuse} {
				r := compile(t, policy.Policy{Mode: mode, Targets: []policy.Target{{Host: name, Kind: policy.Hostname}}}, matcher.Options{})
				if d := r.Name(spelled, 1); d.Verdict != want || d.Reason != matcher.NameRule || r.Target(d.Rule).Host != name {
					t.Errorf("%v: %.80q is %s", mode, spelled, showDecision(r, d))
				}
				if d := r.Name("q"+spelled[1:], 1); d.Verdict == want {
					t.Errorf("%v: a name like %.80q is %s", mode, spelled, showDecision(r, d))
				}
			}
		}
	}
}

// Which entry comes first makes no difference, nor does an entry that stands twice.
func TestOrder(t *testing.T) { // [I-65] [P-26]
	words := strings.Fields(`evil.test *.evil.test a.evil.test:443 *.b.evil.test:80 10.0.0.0/8 10.1.0.0/16@443 10.1.2.3
		10.1.2.3/32@80 2001:db8::/32 2001:db8::1 [2001:db8::1]:53 evil.test:80 evil.test`)
	questions := strings.Fields(`name/evil.test/80 name/x.evil.test/443 name/a.evil.test/443 name/a.evil.test/80 name/x.b.evil.test/80
		addr/10.1.2.3/80 addr/10.1.2.3/443 addr/10.1.9.9/443 addr/10.9.9.9/1 addr/2001:db8::1/53 addr/2001:db8::2/1 addr/192.0.2.1/1
		query/evil.test query/b.evil.test name/ok.test/1 resolved/ok.test/10.1.2.3/80`)
	for _, mode := range []policy.Mode{policy.Allowlist, policy.Denylist} {
		var first []string
		for turn := range 2 * len(words) {
			p := policy.Policy{Mode: mode}
			for i := range words {
				p.Targets = append(p.Targets, readTarget(t, words[(i+turn)%len(words)]))
			}
			if turn >= len(words) {
				slices.Reverse(p.Targets)
			}
			before := slices.Clone(p.Targets)
			r := compile(t, p, matcher.Options{})
			if !slices.Equal(p.Targets, before) {
				t.Fatal("Compile has changed the policy")
			}
			var got []string
			for _, q := range questions {
				got = append(got, q+" "+showDecision(r, ask(t, r, strings.Split(q, "/"))))
			}
			if first == nil {
				first = got
			}
			if !slices.Equal(got, first) {
				t.Fatalf("%v: turn %d gives\n%s\nand turn 0\n%s", mode, turn, strings.Join(got, "\n"), strings.Join(first, "\n"))
			}
		}
	}
	checkRows(t, `
	deny 10.0.0.0/8 10.1.2.3@80 | addr 10.1.2.3 80   | refuse address-rule 10.1.2.3:80
	                            | addr 10.1.2.3 81   | refuse address-rule 10.0.0.0/8
	deny *.evil.test a.evil.test:80 | name a.evil.test 81 | refuse name-rule *.evil.test
	`)
}

// Target leads from every decision back to the very target, spelled as it was.
func TestTargetOfRule(t *testing.T) {
	p, o := readPolicy(t, `allow a.test a.test:80 b.test:1 b.test:2 b.test:65535 *.w.test *.w.test:443 *.x.test:80
		192.0.2.1 192.0.2.1:80 192.0.2.2/32 192.0.2.0/24@443 2001:db8::1 [2001:db8::2]:53 2001:db8::/32@443 ::ffff:198.51.100.1`)
	r := compile(t, p, o)
	found := map[policy.Target]bool{}
	note := func(d matcher.Decision) {
		if d.Verdict == matcher.Allow {
			found[r.Target(d.Rule)] = true
		}
	}
	for _, port := range []uint16{0, 1, 2, 53, 80, 443, 65535} {
		for _, n := range []string{"a.test", "b.test", "x.w.test", "x.x.test"} {
			note(r.Name(n, port))
		}
		for _, a := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1", "2001:db8::2", "2001:db8::3", "198.51.100.1"} {
			note(r.Addr(netip.MustParseAddr(a), port))
		}
	}
	for _, target := range p.Targets {
		shadowed := target.Port != 0 && slices.ContainsFunc(p.Targets, func(o policy.Target) bool { return o.Host == target.Host && o.Port == 0 })
		if found[target] == shadowed {
			t.Errorf("%v is named: %v", target, found[target])
		}
		delete(found, target)
	}
	for target := range found {
		t.Errorf("%+v is no target of the policy", target)
	}
	for _, id := range []matcher.RuleID{matcher.NoRule, 0, 1, -2, 1 << 40, 1<<63 - 1, -1 << 63} {
		if target := r.Target(id); target != (policy.Target{}) {
			t.Errorf("the rule %d is %+v", id, target)
		}
	}
}

func TestHasNameRules(t *testing.T) {
	for text, want := range map[string]bool{
		"public": false, "no-network": false, "allow": false, "deny": false,
		"allow a.test": true, "deny a.test:80": true, "allow *.a.test": true, "deny *.a.test": true,
		"allow 192.0.2.1 2001:db8::/32": false, "deny 192.0.2.1 a.test": true,
	} {
		p, o := readPolicy(t, text+" ; zone=z.test")
		if r := compile(t, p, o); r.HasNameRules() != want || r.Mode() != p.Mode {
			t.Errorf("%s: %v, mode %v", text, r.HasNameRules(), r.Mode())
		}
	}
}

func TestPrefixes(t *testing.T) {
	p, o := readPolicy(t, "allow a.test 192.0.2.1 192.0.2.1:80 10.0.0.0/8:443 2001:db8::/32@53 ::ffff:198.51.100.1 *.b.test ::1/128 ::ffff:10.0.0.0/104")
	var got []string
	r := compile(t, p, o)
	for prefix, port := range r.Prefixes() {
		got = append(got, prefix.String()+"@"+strconv.Itoa(int(port)))
	}
	slices.Sort(got)
	want := []string{"10.0.0.0/8@0", "10.0.0.0/8@443", "192.0.2.1/32@0", "192.0.2.1/32@80", "198.51.100.1/32@0", "2001:db8::/32@53", "::1/128@0"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	n := 0
	for range r.Prefixes() {
		n++
		break
	}
	if n != 1 {
		t.Errorf("the loop was not left at once")
	}
}

func TestCompileErrors(t *testing.T) {
	host := policy.Target{Host: "ok.test", Kind: policy.Hostname}
	net4 := netip.MustParsePrefix("10.0.0.0/8")
	for name, p := range map[string]policy.Policy{
		"targets-in-public":     {Mode: policy.Public, Targets: []policy.Target{host}},
		"targets-in-no-network": {Mode: policy.NoNetwork, Targets: []policy.Target{host}},
		"unknown-mode":          {Mode: 99},
		"unknown-kind":          {Mode: policy.Allowlist, Targets: []policy.Target{{Host: "ok.test"}}},
		"kind-too-high":         {Mode: policy.Allowlist, Targets: []policy.Target{{Host: "ok.test", Kind: 99}}},
		"upper-case":            {Mode: policy.Denylist, Targets: []policy.Target{{Host: "OK.test", Kind: policy.Hostname}}},
		"final-dot":             {Mode: policy.Denylist, Targets: []policy.Target{{Host: "ok.test.", Kind: policy.Hostname}}},
		"empty-host":            {Mode: policy.Denylist, Targets: []policy.Target{{Kind: policy.Hostname}}},
		"number":                {Mode: policy.Denylist, Targets: []policy.Target{{Host: "127.1", Kind: policy.Hostname}}},
		"star-as-host":          {Mode: policy.Denylist, Targets: []policy.Target{{Host: "*.ok.test", Kind: policy.Hostname}}},
		"host-as-wildcard":      {Mode: policy.Denylist, Targets: []policy.Target{{Host: "ok.test", Kind: policy.Wildcard}}},
		"bare-star":             {Mode: policy.Denylist, Targets: []policy.Target{{Host: "*.", Kind: policy.Wildcard}}},
		"too-long":              {Mode: policy.Denylist, Targets: []policy.Target{{Host: strings.Repeat("a.", 127) + "a", Kind: policy.Hostname}}},
		"no-prefix":             {Mode: policy.Denylist, Targets: []policy.Target{{Host: "10.0.0.0/8", Kind: policy.IPv4CIDR}}},
		"host-bits":             {Mode: policy.Denylist, Targets: []policy.Target{{Host: "10.0.0.1/8", Kind: policy.IPv4CIDR, Prefix: netip.MustParsePrefix("10.0.0.1/8")}}},
		"mapped-prefix":         {Mode: policy.Denylist, Targets: []policy.Target{{Host: "::ffff:10.0.0.0/104", Kind: policy.IPv6CIDR, Prefix: netip.MustParsePrefix("::ffff:10.0.0.0/104")}}},
		"two-prefixes":          {Mode: policy.Denylist, Targets: []policy.Target{{Host: "x", Kind: policy.IPv4CIDR, Prefix: net4}, {Host: "x", Kind: policy.IPv4CIDR, Port: 1, Prefix: netip.MustParsePrefix("11.0.0.0/8")}}},
		"two-kinds":             {Mode: policy.Denylist, Targets: []policy.Target{host, {Host: "ok.test", Kind: policy.IPv4CIDR, Port: 1, Prefix: net4}}},
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := matcher.Compile(p, matcher.Options{}); err == nil || r != nil {
				t.Errorf("%+v compiles: %v, %v", p, r, err)
			} else if len(err.Error()) < 15 {
				t.Errorf("the error says too little: %v", err)
			}
		})
	}
}

// The zero values are the safe ones, and what was refused by name stays refused by address.
func TestZeroValues(t *testing.T) {
	if new(matcher.Decision).Verdict != matcher.Refuse || policy.Mode(0) != policy.NoNetwork || matcher.Verdict(99).String() != "refuse" {
		t.Error("a zero value allows")
	}
	for _, text := range []string{"public", "allow 192.0.2.1 ok.test", "deny no.test"} {
		p, o := readPolicy(t, text)
		r := compile(t, p, o)
		for _, d := range []matcher.Decision{{}, {Verdict: 99, Reason: matcher.PublicMode}, {Reason: matcher.NotListed, Rule: matcher.NoRule}} {
			if got := r.Resolved(d, netip.MustParseAddr("192.0.2.1"), 443); got.Verdict != matcher.Refuse {
				t.Errorf("%s: %+v becomes %s", text, d, showDecision(r, got))
			}
			if got := r.Answer(d, netip.MustParseAddr("192.0.2.1")); got.Verdict != matcher.Refuse {
				t.Errorf("%s: the answer %+v becomes %s", text, d, showDecision(r, got))
			}
		}
		if got := r.Resolved(r.Name("ok.test", 443), netip.Addr{}, 443); got.Verdict != matcher.Refuse || got.Reason != matcher.BadName {
			t.Errorf("%s: no address is %s", text, showDecision(r, got))
		}
	}
}

// A rule set does not change with what it was made from.
func TestRulesetKeepsNothingOfOthers(t *testing.T) {
	p, _ := readPolicy(t, "allow ok.test 192.0.2.1 *.w.test:80")
	o := matcher.Options{Never: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, PrivateZones: []string{"w.test"}}
	r := compile(t, p, o)
	for i := range p.Targets {
		p.Targets[i] = policy.Target{Host: "evil.test", Kind: policy.Hostname}
	}
	o.Never[0], o.PrivateZones[0] = netip.MustParsePrefix("203.0.113.0/24"), "evil.test"
	host := []byte("ok.test")
	d := r.NameBytes(host, 443)
	copy(host, "no.test")
	for got, want := range map[string]string{
		showDecision(r, d):                                             "allow name-rule ok.test",
		showDecision(r, r.Name("evil.test", 443)):                      "refuse not-listed -",
		showDecision(r, r.Addr(netip.MustParseAddr("192.0.2.1"), 443)): "allow address-rule 192.0.2.1",
		showDecision(r, r.Resolved(r.Name("ok.test", 80), netip.MustParseAddr("198.51.100.1"), 80)): "refuse own-address -",
		showDecision(r, r.Resolved(r.Name("a.w.test", 80), netip.MustParseAddr("10.0.0.1"), 80)):    "allow name-rule *.w.test:80",
		showDecision(r, r.Resolved(r.Name("a.w.test", 80), netip.MustParseAddr("203.0.113.1"), 80)): "allow name-rule *.w.test:80",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
