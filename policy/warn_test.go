package policy

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// floorForTest is part of what package matcher refuses.
var floorForTest = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("::1/128")}

func TestWarnings(t *testing.T) {
	const (
		contain = `/network_mode: "denylist": is not containment: relays, further names of a service, encrypted DNS and encrypted names reach what it denies; write an allowlist where the workload is not trusted`
		private = "remove it, unless its addresses are private: answers under a wildcard may not be"
		domains = "; name the domains that are meant"
	)
	a := func(i int) string { return "/allowed_hosts/" + string(rune('0'+i)) + ": " }
	for _, row := range []struct {
		name    string
		mode    Mode
		targets string // separated by spaces
		want    []string
	}{
		{"nothing", Allowlist, "ok.test *.a.test a.test 1.2.3.4 10.0.0.0/8 2001:db8::1 ok.internal *.local *.example.com:443 time.com", nil},
		{"P-07", Allowlist, "*.com *.co.uk *.github.io *.s3.amazonaws.com", []string{
			a(0) + `"*.co.uk": allows everybody who registers a name under "co.uk"` + domains,
			a(1) + `"*.com": allows everybody who registers a name under "com"` + domains,
			a(2) + `"*.github.io": allows everybody who registers a name under "github.io"` + domains,
			a(3) + `"*.s3.amazonaws.com": allows everybody who registers a name under "s3.amazonaws.com"` + domains,
			a(3) + `"*.s3.amazonaws.com": is covered by "*.com"; remove it`,
		}},
		{"P-07-denied", Denylist, "*.com", []string{contain, `/denied_hosts/0: "*.com": denies everybody who registers a name under "com"` + domains}},
		{"P-12", Allowlist, "2001:db8::1:443 ::1:80 2001:db8::1:f443", []string{
			a(0) + `"2001:db8::1:443": is one address, without a port: its last part is not port 443; write "[2001:db8::1]:443" if the port is meant`,
			a(2) + `"::1:80": is one address, without a port: its last part is not port 80; write "[::1]:80" if the port is meant`,
		}},
		{"P-26", Allowlist, "*.ok.test a.ok.test", []string{a(1) + `"a.ok.test": is covered by "*.ok.test"; ` + private}},
		{"P-26-denied", Denylist, "*.ok.test a.ok.test", []string{contain, `/denied_hosts/1: "a.ok.test": is covered by "*.ok.test"; remove it`}},
		{"shadowed-wildcard", Allowlist, "*.ok.test *.a.b.ok.test:443", []string{a(0) + `"*.a.b.ok.test:443": is covered by "*.ok.test"; remove it`}},
		{"shadowed-port", Allowlist, "*.ok.test:443 a.ok.test:443 b.ok.test b.ok.test:80", []string{
			a(1) + `"a.ok.test:443": is covered by "*.ok.test:443"; ` + private,
			a(3) + `"b.ok.test:80": is covered by "b.ok.test"; remove it, or the target without a port`,
		}},
		{"not-shadowed", Allowlist, "*.ok.test:443 a.ok.test a.ok.test.b *.test.ok.test.c", nil},
		{"shadowed-address", Allowlist, "10.0.0.0/8 10.0.0.1 10.1.0.0/16:443 10.0.0.2:443 2001:db8::/32 2001:db8::1", []string{
			a(1) + `"10.0.0.1": is covered by "10.0.0.0/8"; remove it, or what covers it`,
			a(2) + `"10.0.0.2:443": is covered by "10.0.0.0/8"; remove it, or what covers it`,
			a(3) + `"10.1.0.0/16:443": is covered by "10.0.0.0/8"; remove it, or what covers it`,
			a(5) + `"2001:db8::1": is covered by "2001:db8::/32"; remove it, or what covers it`,
		}},
		{"not-shadowed-address", Allowlist, "10.0.0.0/8:443 10.0.0.1 10.0.0.2:80 169.254.0.0/17:80 11.0.0.0/9", []string{
			a(4) + `"169.254.0.0/17:80": opens nothing: the floor refuses all of it; name the very addresses that are meant`,
		}},
		{"same-address", Allowlist, "1.2.3.4 1.2.3.4/32", []string{a(1) + `"1.2.3.4/32": means the same as "1.2.3.4"; keep one of them`}},
		{"mapped", Allowlist, "::ffff:1.2.3.4 [::ffff:1.2.3.4]:443 ::ffff:10.0.0.0/104", []string{
			a(0) + `"::ffff:102:304": is judged as IPv4; write "1.2.3.4"`,
			a(1) + `"[::ffff:102:304]:443": is judged as IPv4; write "1.2.3.4:443"`,
			a(1) + `"[::ffff:102:304]:443": is covered by "::ffff:102:304"; remove it, or what covers it`,
			a(2) + `"::ffff:a00:0/104": is judged as IPv4; write "10.0.0.0/8"`,
		}},
		{"floor", Allowlist, "169.254.169.254 169.254.0.0/16 127.0.0.0/8", []string{
			a(0) + `"127.0.0.0/8": opens nothing: the floor refuses all of it; name the very addresses that are meant`,
			a(1) + `"169.254.0.0/16": opens nothing: the floor refuses all of it; name the very addresses that are meant`,
			a(2) + `"169.254.169.254": opens an address that the floor keeps closed otherwise; remove it unless the workload needs that very address`,
		}},
		{"P-24", Allowlist, "0.0.0.0/0 ::/0", []string{
			a(0) + `"0.0.0.0/0": allows every IPv4 address but the floor; write the mode public if that is meant`,
			a(1) + `"::/0": allows every IPv6 address but the floor; write the mode public if that is meant`,
		}},
		{"one-family", Denylist, "0.0.0.0/0", []string{contain, `/denied_hosts/0: "0.0.0.0/0": leaves the other address family open; write an allowlist or the mode no-network`}},
		{"udp-name", Allowlist, "pool.ntp.org *.ntp.org:123 time.google.com ntp1.ok.test stun.ok.test:3478 vpn.ok.test:51820 ntp.ok.test:443", []string{
			a(0) + `"*.ntp.org:123": suggests NTP over UDP, which a name never opens; name the addresses too, as in "192.0.2.1:123"`,
			a(2) + `"ntp1.ok.test": suggests NTP over UDP, which a name never opens; name the addresses too, as in "192.0.2.1:123"`,
			a(3) + `"pool.ntp.org": suggests NTP over UDP, which a name never opens; name the addresses too, as in "192.0.2.1:123"`,
			a(4) + `"stun.ok.test:3478": suggests STUN over UDP, which a name never opens; name the addresses too, as in "192.0.2.1:123"`,
			a(5) + `"time.google.com": suggests NTP over UDP, which a name never opens; name the addresses too, as in "192.0.2.1:123"`,
			a(6) + `"vpn.ok.test:51820": suggests WireGuard over UDP, which a name never opens; name the addresses too, as in "192.0.2.1:123"`,
		}},
		{"dns", Allowlist, "dns.test:53 192.0.2.53:53 192.0.2.53", []string{
			a(1) + `"192.0.2.53:53": lets DNS go straight to that server, past the filter; remove it unless the workload must ask that very server`,
			a(2) + `"dns.test:53": does not open that DNS server: queries go to the filter, which has its own; remove it, names that the policy allows resolve without it`,
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var targets []placed
			for i, s := range strings.Fields(row.targets) {
				targets = append(targets, placed{mustTarget(t, s), i})
			}
			p := Policy{Mode: row.mode}
			p.Targets, _ = normalForm(targets)
			var got []string
			for _, w := range Warnings(p, floorForTest) {
				got = append(got, w.String())
			}
			if !reflect.DeepEqual(got, row.want) {
				t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(row.want, "\n     "))
			}
		})
	}
}

func TestWarnsOfIdleOption(t *testing.T) {
	idleBytes := []Warning{{"/dns_question_bytes", "900", "limits names under wildcards of an allowlist, and there are none", "remove it"}}
	idle := []Warning{{"/dns_unique_names", "5", "limits names under wildcards of an allowlist, and there are none", "remove it"}}
	for text, want := range map[string][]Warning{
		`{"network_mode":"public","dns_unique_names":5}`:                                    idle,
		`{"network_mode":"allowlist","allowed_hosts":["ok.test"],"dns_unique_names":5}`:     idle,
		`{"network_mode":"allowlist","allowed_hosts":["ok.test"],"dns_question_bytes":900}`: idleBytes,
		`{"network_mode":"allowlist","allowed_hosts":["*.ok.test"],"dns_unique_names":5}`:   nil,
	} {
		if got := Warnings(mustPolicy(t, text), nil); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v", text, got)
		}
	}
}

// TestDocumentWarnings checks that pointers lead into the file as it was written, not into its normal form.
func TestDocumentWarnings(t *testing.T) {
	for _, row := range []struct {
		name, in string
		want     []string
	}{
		{"one-policy", `{"network_mode":"denylist","denied_hosts":["z.test","*.com","a.test","*.com"]}`, []string{"/network_mode", "/denied_hosts/1"}},
		{"phases", `{"baseline_network_policy":"public","run_network_policy":{"network_mode":"allowlist","allowed_hosts":["z.test","*.com"]},
			"evaluation_network_policy":{"network_mode":"allowlist","allowed_hosts":["*.com"]}}`,
			[]string{"/run_network_policy/allowed_hosts/1", "/evaluation_network_policy/allowed_hosts/0"}},
		{"inherited-once", `{"network_policy":{"network_mode":"allowlist","allowed_hosts":["z.test","*.com"]}}`, []string{"/network_policy/allowed_hosts/1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			doc, err := Parse([]byte(row.in))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, w := range doc.Warnings(nil) {
				got = append(got, w.Pointer)
			}
			if !reflect.DeepEqual(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
