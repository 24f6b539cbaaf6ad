package agentcompass

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"sluice/matcher"
	"sluice/policy"
)

// short shows a payload as "mode target target | denied-instead …; rejected count".
func short(p Payload) string {
	parts := []string{p.Policy.Mode.String()}
	for _, t := range p.Policy.Targets {
		parts = append(parts, t.String())
	}
	if len(p.Rejected) > 0 {
		parts = append(parts, fmt.Sprintf("rejected:%d", len(p.Rejected)))
	}
	return strings.Join(parts, " ")
}

func TestDecode(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		// What AgentCompass writes.
		{"public", `{"network_mode":"public","allowed_hosts":[],"denied_hosts":[]}`, "public"},
		{"no-network", `{"network_mode":"no-network","allowed_hosts":[],"denied_hosts":[]}`, "no-network"},
		{"allowlist", `{"network_mode":"allowlist","allowed_hosts":["*.a.test","10.0.0.0/8",{"host":"b.test","port":443}],"denied_hosts":[]}`,
			"allowlist *.a.test 10.0.0.0/8 b.test:443"},
		{"denylist", `{"network_mode":"denylist","allowed_hosts":[],"denied_hosts":["2001:db8::1",{"host":"2001:db8::/32","port":53}]}`,
			"denylist [2001:db8::/32]:53 2001:db8::1"},
		// What it wrote before it had modes.
		{"old-open", `{"allow_all":true,"allowed_hosts":[]}`, "public"},
		{"old-list", `{"allow_all":false,"allowed_hosts":["a.test"]}`, "allowlist a.test"},
		{"old-closed", `{"allow_all":false,"allowed_hosts":[]}`, "allowlist"},
		{"old-no-field", `{"allowed_hosts":["a.test"]}`, "allowlist a.test"},
		{"nothing", `{}`, "allowlist"},
		{"old-truthy", `{"allow_all":1}`, "public"},
		{"old-falsy", `{"allow_all":0.0}`, "allowlist"},
		{"old-text", `{"allow_all":"no"}`, "public"}, // any text is true, as in Python
		{"old-null", `{"allow_all":null}`, "allowlist"},
		{"null-mode", `{"network_mode":null,"allow_all":true}`, "public"},
		{"blank-mode", `{"network_mode":" ","allow_all":true}`, "public"},
		{"false-mode", `{"network_mode":false}`, "allowlist"},
		// What its proxy tolerates.
		{"mode-case", `{"network_mode":" Public\n"}`, "public"},
		{"extra-fields", `{"network_mode":"public","x":{"y":[1]}}`, "public"},
		{"last-of-repeated", `{"network_mode":"public","network_mode":"no-network"}`, "no-network"},
		{"other-key-case", `{"Network_Mode":"public"}`, "allowlist"},
		{"null-list", `{"network_mode":"allowlist","allowed_hosts":null}`, "allowlist"},
		{"empty-text-list", `{"network_mode":"denylist","denied_hosts":""}`, "denylist"},
		{"empty-object-list", `{"network_mode":"denylist","denied_hosts":{ }}`, "denylist"},
		{"zero-list", `{"network_mode":"denylist","denied_hosts":0}`, "denylist"},
		{"empty-entries", `{"network_mode":"allowlist","allowed_hosts":[""," ",".",{"host":"","port":1},{"port":1},{"host":null,"port":1}]}`, "allowlist"},
		{"normalised", `{"network_mode":"allowlist","allowed_hosts":[" A.Test. ","a.test","2001:DB8:0::1"]}`, "allowlist 2001:db8::1 a.test"},
		{"host-and-port", `{"network_mode":"allowlist","allowed_hosts":["a.test:443","[2001:db8::1]:443"]}`, "allowlist [2001:db8::1]:443 a.test:443"},
		{"object-extra", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test","port":1,"x":2}]}`, "allowlist a.test:1"},
		{"other-list-ignored", `{"network_mode":"allowlist","allowed_hosts":["a.test"],"denied_hosts":7}`, "allowlist a.test"},
		{"no-network-with-hosts", `{"network_mode":"no-network","allowed_hosts":["a.test"]}`, "no-network"},
		{"public-with-hosts", `{"network_mode":"public","allowed_hosts":["a.test"]}`, "public"},
		{"sorted", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test","port":90},{"host":"a.test","port":9},"a.test"]}`, "allowlist a.test a.test:9 a.test:90"},
		// Entries that are no targets here: in an allowlist they allow nothing.
		{"allow-localhost", `{"network_mode":"allowlist","allowed_hosts":["localhost","a.localhost","*.localhost"]}`, "allowlist rejected:3"},
		{"allow-number", `{"network_mode":"allowlist","allowed_hosts":["127.1","0x7f000001","1.2.3.4.5","2130706433"]}`, "allowlist rejected:4"},
		{"allow-brackets", `{"network_mode":"allowlist","allowed_hosts":["[a.test]","[a.test]:443","b.test"]}`, "allowlist b.test rejected:2"},
		{"allow-host-bits", `{"network_mode":"allowlist","allowed_hosts":["10.0.0.5/8"]}`, "allowlist rejected:1"},
		{"allow-zone", `{"network_mode":"allowlist","allowed_hosts":["fe80::1%eth0"]}`, "allowlist rejected:1"},
		{"allow-underscore", `{"network_mode":"allowlist","allowed_hosts":["a_b.test"]}`, "allowlist rejected:1"},
		{"allow-star", `{"network_mode":"allowlist","allowed_hosts":["*","*.","a*.test"]}`, "allowlist rejected:3"},
		{"allow-url", `{"network_mode":"allowlist","allowed_hosts":["https://a.test/"]}`, "allowlist rejected:1"},
		{"allow-port-twice", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test:80","port":443}]}`, "allowlist rejected:1"},
		{"allow-bad-port", `{"network_mode":"allowlist","allowed_hosts":["a.test:0","a.test:+80"]}`, "allowlist rejected:2"},
		{"allow-number-host", `{"network_mode":"allowlist","allowed_hosts":[{"host":7,"port":443},{"host":["a"],"port":443}]}`, "allowlist rejected:2"},
		// In a denylist they deny what they can stand for.
		{"deny-localhost", `{"network_mode":"denylist","denied_hosts":["localhost","*.localhost"]}`, "denylist *.localhost localhost rejected:2"},
		{"deny-number", `{"network_mode":"denylist","denied_hosts":["127.1",{"host":"0x7f000001","port":80}]}`, "denylist rejected:2"},
		{"deny-brackets", `{"network_mode":"denylist","denied_hosts":["[a.test]","[b.test]:443",{"host":"[c.test]","port":9}]}`, "denylist a.test b.test:443 c.test:9 rejected:3"},
		{"deny-host-bits", `{"network_mode":"denylist","denied_hosts":["10.0.0.5/8","2001:db8::1/32"]}`, "denylist 10.0.0.0/8 2001:db8::/32 rejected:2"},
		{"deny-zone", `{"network_mode":"denylist","denied_hosts":["2001:db8::1%eth0"]}`, "denylist 2001:db8::1 rejected:1"},
		{"deny-underscore", `{"network_mode":"denylist","denied_hosts":["a_b.test",{"host":"*._x.test","port":80},"a_b.test:443"]}`, "denylist *._x.test:80 a_b.test a_b.test:443 rejected:3"},
		{"deny-hyphen", `{"network_mode":"denylist","denied_hosts":["-a.test"]}`, "denylist -a.test rejected:1"},
		{"deny-a-label", `{"network_mode":"denylist","denied_hosts":["xn--zzzzzzz99.test"]}`, "denylist xn--zzzzzzz99.test rejected:1"},
		{"deny-bad-port", `{"network_mode":"denylist","denied_hosts":["a.test:0","b.test:99999"]}`, "denylist a.test b.test rejected:2"},
		{"deny-port-twice", `{"network_mode":"denylist","denied_hosts":[{"host":"a.test:80","port":443}]}`, "denylist a.test rejected:1"},
		{"deny-unmatchable", `{"network_mode":"denylist","denied_hosts":["a b.test","a..test","ä.test","*","https://a.test/","]"]}`, "denylist rejected:6"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := Decode([]byte(row.text))
			if err != nil {
				t.Fatal(err)
			}
			if got := short(p); got != row.want {
				t.Errorf("got %s, want %s (rejected: %v)", got, row.want, p.Rejected)
			}
			if _, err := matcher.Compile(p.Policy, matcher.Options{}); err != nil {
				t.Errorf("the policy does not compile: %v", err)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"text", `"public"`, "is not a JSON object"},
		{"list", `[]`, "is not a JSON object"},
		{"null", `null`, "is not a JSON object"},
		{"yaml", "network_mode: public", "is not JSON"},
		{"trailing", `{} x`, "behind the JSON object"},
		{"two", `{}{}`, "behind the JSON object"},
		{"byte-order-mark", "\xef\xbb\xbf{}", "is not JSON"},
		{"bad-utf8", "{\"network_mode\":\"public\xff\"}", "UTF-8"},
		{"unknown-mode", `{"network_mode":"allow-list"}`, "/network_mode: \"allow-list\": is not a mode"},
		{"true-mode", `{"network_mode":true}`, "/network_mode: true: is not a mode"},
		{"object-mode", `{"network_mode":{"a":1}}`, "/network_mode: an object: is not a mode"},
		{"text-entries", `{"network_mode":"allowlist","allowed_hosts":"a.test"}`, "/allowed_hosts: \"a.test\": is not a list"},
		{"object-entries", `{"network_mode":"denylist","denied_hosts":{"host":"a.test"}}`, "/denied_hosts: an object: is not a list"},
		{"true-entries", `{"network_mode":"public","allowed_hosts":true}`, "/allowed_hosts: true: is not a list"},
		{"number-entry", `{"network_mode":"allowlist","allowed_hosts":["a.test",7]}`, "/allowed_hosts/1: 7: is neither"},
		{"null-entry", `{"network_mode":"no-network","allowed_hosts":[null]}`, "/allowed_hosts/0: null: is neither"},
		{"no-port", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test"}]}`, "/allowed_hosts/0/port: nothing: is not an integer"},
		{"null-port", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test","port":null}]}`, "/port: null"},
		{"zero-port", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test","port":0}]}`, "/port: 0"},
		{"negative-port", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test","port":-1}]}`, "/port: -1"},
		{"large-port", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test","port":65536}]}`, "/port: 65536"},
		{"float-port", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test","port":443.0}]}`, "/port: 443.0"},
		{"text-port", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test","port":"443"}]}`, "/port: \"443\""},
		{"true-port", `{"network_mode":"allowlist","allowed_hosts":[{"host":"a.test","port":true}]}`, "/port: true"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := Decode([]byte(row.text))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v %v, want an error with %s", short(p), err, row.want)
			}
			if errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%v is taken for a text that is cut off", err)
			}
		})
	}
}

// What a writer has not finished yet is never a policy, and known as such.
func TestDecodeCutOff(t *testing.T) {
	whole := ` {"network_mode":"denylist","allowed_hosts":[],"denied_hosts":["b\u00fc.tést",{"host":"a.test","port":443},true,1.5e3]}`
	for n := range len(whole) {
		if _, err := Decode([]byte(whole[:n])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: got %v, want io.ErrUnexpectedEOF", whole[:n], err)
		}
	}
}

func TestRejectedSaysWhatHappens(t *testing.T) {
	p, err := Decode([]byte(`{"network_mode":"denylist","denied_hosts":["10.0.0.5/8","u:secret@127.1","127.1"]}`))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		`/denied_hosts/0: "10.0.0.5/8": is not a network: its address has bits behind the prefix; write "10.0.0.0/8" for the network or "10.0.0.5/32" for the address (denied meanwhile: 10.0.0.0/8)`,
		`/denied_hosts/1: "xxxxx@127.1"`,
		`/denied_hosts/2: "127.1"`,
	} {
		got := p.Rejected[i].String()
		if !strings.HasPrefix(got, want) || strings.Contains(got, "secret") {
			t.Errorf("got %s, want %s", got, want)
		}
		if i > 0 && !strings.HasSuffix(got, "(matches nothing)") {
			t.Errorf("got %s", got)
		}
	}
}

// peer is what AgentCompass's own proxy makes of an entry that is a string: does it match a host that a client named?
// Unlike that proxy it takes an IPv4-mapped address for the IPv4 one, as this project does everywhere.
func peer(entry, host string) bool {
	clean := func(s string) string {
		s = strings.TrimRight(strings.ToLower(strings.TrimSpace(s)), ".")
		if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") && len(s) > 1 {
			s = s[1 : len(s)-1]
		}
		return s
	}
	entry, host = clean(entry), clean(host)
	if entry == "" {
		return false
	}
	if suffix, ok := strings.CutPrefix(entry, "*."); ok {
		return strings.HasSuffix(host, "."+suffix)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if prefix, err := netip.ParsePrefix(entry); err == nil {
			mapped := netip.AddrFrom16(addr.As16())
			return prefix == prefix.Masked() && (prefix.Contains(addr) || prefix.Contains(addr.Unmap()) || prefix.Contains(mapped) && prefix.Bits() >= 96)
		}
		same, err := netip.ParseAddr(entry)
		return err == nil && same.Unmap() == addr.Unmap()
	}
	return entry == host
}

// judge asks the rule set as the proxy does.
func judge(t *testing.T, p policy.Policy, host string, port uint16) matcher.Verdict {
	t.Helper()
	set, err := matcher.Compile(p, matcher.Options{NoFloor: true})
	if err != nil {
		t.Fatal(err)
	}
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return set.Addr(addr.WithZone(""), port).Verdict
	}
	return set.Name(strings.TrimSuffix(host, "."), port).Verdict
}

// Whatever an entry looks like: a denylist denies what AgentCompass's proxy would deny, and an allowlist allows
// nothing that it would not.
func FuzzNeverWider(f *testing.F) {
	for _, entry := range []string{"a.test", "*.a.test", "[a.test]", "A.TEST.", " a.test ", "a.test..", "10.0.0.0/8", "10.0.0.5/8", "127.1",
		"localhost", "a_b.test", "[2001:db8::1]", "2001:db8::1", "2001:db8::/32", "::ffff:10.0.0.1", "fe80::1%eth0", "a.test:443", "[a.test]:443",
		"-", "*", "*.", "*.*.a", "xn--a", "a%b", "[", "]", "[]", "a]:1", "[a]b"} {
		for _, host := range []string{"a.test", "b.a.test", "10.0.0.1", "[2001:db8::1]", "a_b.test", "localhost", "127.1", "x.*.a", "xn--a", "a"} {
			f.Add(entry, host, uint16(443))
		}
	}
	f.Fuzz(func(t *testing.T, entry, host string, port uint16) {
		if port == 0 {
			return
		}
		text, err := json.Marshal(entry)
		if err != nil {
			t.Skip()
		}
		deny, err := Decode(fmt.Appendf(nil, `{"network_mode":"denylist","denied_hosts":[%s]}`, text))
		if err != nil {
			t.Fatal(err)
		}
		if peer(entry, host) && judge(t, deny.Policy, host, port) == matcher.Allow {
			t.Errorf("denylist %s lets %q through", short(deny), host)
		}
		allow, err := Decode(fmt.Appendf(nil, `{"network_mode":"allowlist","allowed_hosts":[%s]}`, text))
		if err != nil {
			t.Fatal(err)
		}
		if judge(t, allow.Policy, host, port) == matcher.Allow && !peer(entry, host) && allow.Policy.Targets[0].Port == 0 {
			t.Errorf("allowlist %s lets %q through", short(allow), host)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{"network_mode":"denylist","denied_hosts":["a_b.test",{"host":"a","port":1}]}`, `{"allow_all":1e400}`, `{"a":`, "\xff", `{}{}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Decode(data)
		if err != nil {
			if p.Policy.Mode != policy.NoNetwork || p.Policy.Targets != nil {
				t.Errorf("an error, and the policy %s", short(p))
			}
			return
		}
		if _, err := matcher.Compile(p.Policy, matcher.Options{}); err != nil {
			t.Errorf("the policy does not compile: %v", err)
		}
		p.Policy.Digest()
		// A prefix of it is a text that is cut off, but for the white space behind it.
		body := strings.TrimRight(string(data), " \t\r\n")
		if _, err := Decode([]byte(body[:len(body)-1])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut by one byte: %v", err)
		}
	})
}
