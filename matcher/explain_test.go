package matcher

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/policy"
)

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		policy, question, want string
	}{
		{"allowlist ok.test:443", "name evil.test:443", `evil.test:443 is not listed; add the target "evil.test:443"`},
		{"allowlist ok.test:443", "name EVIL.test.:443", `evil.test:443 is not listed; add the target "evil.test:443"`},
		{"allowlist ok.test:443", "query evil.test", `evil.test is not listed; add the target "evil.test"`},
		{"allowlist ok.test:443", "query _sip._tcp.evil.test", `_sip._tcp.evil.test is not listed; add the target "evil.test"`},
		{"allowlist ok.test:443", "query _dmarc.evil.test", `_dmarc.evil.test is not listed; add the target "*.evil.test"`},
		{"allowlist ok.test:443", "query a_b", `a_b is not listed`},
		{"allowlist ok.test:443", "name ok.test:80", `ok.test:80 is listed with other ports only; add the target "ok.test:80"`},
		{"allowlist ok.test:443", "addr 203.0.113.9:443", `203.0.113.9:443 is not listed; add the target "203.0.113.9:443"`},
		{"allowlist ok.test:443", "addr [2001:db8::9]:443", `[2001:db8::9]:443 is not listed; add the target "[2001:db8::9]:443"`},
		{"allowlist ok.test:443", "addr 2001:db8::9", `2001:db8::9 is not listed; add the target "2001:db8::9"`},
		{"allowlist ok.test:443", "name ok.test:443", `ok.test:443 is allowed by the target "ok.test:443"`},
		{"denylist evil.test *.evil.test 203.0.113.0/24", "name a.evil.test:443", `a.evil.test:443 is denied, itself or its address, by the target "*.evil.test"`},
		{"denylist evil.test 203.0.113.0/24", "addr 203.0.113.9:80", `203.0.113.9:80 is denied, itself or its address, by the target "203.0.113.0/24"`},
		{"denylist evil.test 203.0.113.0/24", "via ok.test:80 203.0.113.9", `ok.test:80 is denied, itself or its address, by the target "203.0.113.0/24"`},
		{"denylist evil.test", "name ok.test:80", `ok.test:80 is allowed: no denied target matches it`},
		{"public", "name ok.test:80", `ok.test:80 is allowed: the mode is public`},
		{"no-network", "name ok.test:80", `ok.test:80 is refused: the mode is no-network, which refuses everything`},
		{"allowlist *.ok.test:443", "via a.ok.test:443 10.0.0.1", `a.ok.test:443 has a private address, which the wildcard "*.ok.test:443" does not open; add the target "a.ok.test:443", or put its domain into private_zones`},
		{"allowlist ok.test", "addr 169.254.169.254:80", `169.254.169.254:80 is a link-local address; only a target that names this very address opens it: add the target "169.254.169.254:80"`},
		{"public", "addr 100.100.100.200:80", `100.100.100.200:80 is a cloud metadata address; only a target that names this very address opens it: add the target "100.100.100.200:80", in an allowlist`},
		{"allowlist ok.test", "addr [64:ff9b::7f00:1]:80", `[64:ff9b::7f00:1]:80 holds 127.0.0.1, a loopback address; only a target that names this very address opens it: add the target "[64:ff9b::7f00:1]:80"`},
		{"allowlist ok.test", "via ok.test:80 127.0.0.1", `ok.test:80 has an address that is loopback, link-local, multicast or cloud metadata; only a target that names that very address opens it`},
		{"allowlist ok.test", "name ok..test:80", `"ok..test" is not a host name; write a name of letters, digits and hyphens, or an address in its usual form`},
		{"allowlist ok.test", "name <é>:80", `"<\u00e9>" is not a host name; write a name of letters, digits and hyphens, or an address in its usual form`},
	} {
		r := compile(t, read(t, c.policy), Options{})
		d, host, port := decide(t, r, c.question)
		if got := r.Explain(d, host, port); got != c.want {
			t.Errorf("%s, %s:\n%s\nwant\n%s", c.policy, c.question, got, c.want)
		}
	}
	r := compile(t, read(t, "public"), Options{Never: []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32")}})
	if got := r.Explain(r.Addr(netip.MustParseAddr("203.0.113.9"), 80), "203.0.113.9", 80); !strings.HasSuffix(got, "connect directly") {
		t.Errorf("own address: %s", got)
	}
	if got := r.Explain(Decision{Reason: "quarantine", Rule: NoRule}, "ok.test", 80); got != "ok.test:80: refuse (quarantine)" {
		t.Errorf("a reason of others: %s", got)
	}
}

// What a refusal tells to add is a target that lets the destination through.
func TestExplainedTargetHelps(t *testing.T) {
	r := compile(t, read(t, "allowlist ok.test:443 *.w.test:443"), Options{})
	for _, question := range []string{
		"name evil.test:443", "name Evil.Test.:80", "name ok.test:80", "name db:5432", "query evil.test", "query _sip._tcp.evil.test", "query _x.y.evil.test", "name a_b.evil.test:80",
		"addr 203.0.113.9:443", "addr [2001:db8::9]:443", "addr 127.0.0.1:80", "addr [::1]:80", "addr [fe80::1]:80", "addr [64:ff9b::7f00:1]:80", "addr [2002:7f00:1::]:80", "via a.w.test:443 10.0.0.1",
	} {
		d, host, port := decide(t, r, question)
		if d.Verdict != Refuse {
			t.Fatalf("%s: %+v", question, d)
		}
		text := r.Explain(d, host, port)
		_, quoted, _ := strings.Cut(text, `add the target "`)
		target, _, found := strings.Cut(quoted, `"`)
		if !found {
			t.Errorf("%s: %s; want a target to add", question, text)
			continue
		}
		with := compile(t, read(t, "allowlist ok.test:443 *.w.test:443 "+target), Options{})
		if d, _, _ := decide(t, with, question); d.Verdict != Allow {
			t.Errorf("%s, after adding %s: %+v", question, target, d)
		}
	}
}

// Whatever was asked for, the text stays short and printable.
func FuzzExplain(f *testing.F) {
	f.Add("evil.test", uint16(443))
	f.Add("fe80::1%"+strings.Repeat("x", 300), uint16(0))
	f.Add("\x00\xff\r\nSet-Cookie: a\"", uint16(1))
	f.Add(strings.Repeat("é", 500), uint16(65535))
	r := compile(f, read(f, "allowlist ok.test"), Options{})
	f.Fuzz(func(t *testing.T, host string, port uint16) {
		for _, reason := range []Reason{PublicMode, NotDenied, NameRule, AddressRule, NoNetworkMode, NotListed, PortNotListed, Floor, PrivateWildcard, OwnAddress, BadName, "other"} {
			text := r.Explain(Decision{Reason: reason, Rule: NoRule}, host, port)
			if len(text) > 3000 || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Errorf("%s, %q: %d bytes, %q", reason, host, len(text), text)
			}
		}
	})
}

// decide asks what a test has in words, and returns the host and port that were asked for.
//
//	name HOST:PORT          Name
//	query NAME              Query
//	addr ADDRESS:PORT       Addr
//	via HOST:PORT ADDRESS   Name, then Resolved
func decide(tb testing.TB, r *Ruleset, question string) (d Decision, host string, port uint16) {
	tb.Helper()
	words := strings.Fields(question)
	host = words[1]
	if pair, err := netip.ParseAddrPort(host); err == nil {
		host, port = pair.Addr().String(), pair.Port()
	} else if before, after, found := strings.Cut(host, ":"); found && words[0] != "addr" {
		host, port = before, parsePort(tb, after)
	}
	switch words[0] {
	case "name":
		d = r.Name(host, port)
	case "query":
		d = r.Query(host)
	case "addr":
		d = r.Addr(netip.MustParseAddr(host), port)
	case "via":
		d = r.Resolved(r.Name(host, port), netip.MustParseAddr(words[2]), port)
	default:
		tb.Fatalf("%q asks nothing", question)
	}
	return d, host, port
}

// read makes a policy of its mode and targets, separated by spaces. A network's port stands behind "#", because an
// IPv6 network with a port has no short form.
func read(tb testing.TB, text string) policy.Policy {
	tb.Helper()
	words := strings.Fields(text)
	modes := map[string]policy.Mode{
		"public": policy.Public, "no-network": policy.NoNetwork, "allowlist": policy.Allowlist, "denylist": policy.Denylist,
	}
	mode, ok := modes[words[0]]
	if !ok {
		tb.Fatalf("%q begins with no mode", text)
	}
	p := policy.Policy{Mode: mode}
	for _, w := range words[1:] {
		host, port, _ := strings.Cut(w, "#")
		t, err := policy.ParseTarget(host)
		if err != nil {
			tb.Fatal(err)
		}
		if port != "" {
			t.Port = parsePort(tb, port)
		}
		p.Targets = append(p.Targets, t)
	}
	slices.SortFunc(p.Targets, policy.Target.Compare)
	return p
}

func parsePort(tb testing.TB, s string) uint16 {
	tb.Helper()
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		tb.Fatal(err)
	}
	return uint16(n)
}
