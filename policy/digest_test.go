package policy

import (
	"crypto/sha256"
	"encoding/json"
	"testing"
)

func TestDigestEqualMeaning(t *testing.T) {
	allow := func(targets string) string { return `{"network_mode":"allowlist","allowed_hosts":[` + targets + "]}" }
	deny := func(targets string) string { return `{"network_mode":"denylist","denied_hosts":[` + targets + "]}" }
	for _, row := range []struct {
		name, a, b string
		equal      bool
	}{
		{"string-and-object", `"public"`, `{"network_mode":"public","inbound":"all"}`, true},
		{"order-case-dot", allow(`"a.test","B.test."`), allow(`"b.test","a.test","a.test"`), true},
		{"port-forms", allow(`"a.test:443"`), allow(`{"host":"a.test","port":443}`), true},
		{"P-27-ipv6", allow(`"2001:DB8::/32"`), allow(`"2001:db8:0:0::/32"`), true},
		{"P-27-32", allow(`"1.2.3.4"`), allow(`"1.2.3.4/32"`), true},
		{"P-27-both", allow(`"1.2.3.4"`), allow(`"1.2.3.4/32","1.2.3.4"`), true},
		{"128", allow(`"2001:db8::1"`), allow(`"2001:db8::1/128"`), true},
		{"mapped", allow(`"1.2.3.4:443"`), allow(`"[::ffff:1.2.3.4]:443"`), true},
		{"mapped-network", allow(`"10.0.0.0/8"`), allow(`"::ffff:10.0.0.0/104"`), true},
		{"swallowed-name", allow(`"a.test"`), allow(`"a.test","a.test:443"`), true},
		{"swallowed-address", allow(`"1.2.3.4"`), allow(`"::ffff:1.2.3.4","1.2.3.4/32","1.2.3.4:443"`), true},
		{"swallowed-denied-dns", deny(`"1.2.3.4"`), deny(`"1.2.3.4","1.2.3.4:53"`), true},

		{"dns-of-an-address", allow(`"1.2.3.4"`), allow(`"1.2.3.4","1.2.3.4:53"`), false},
		{"modes", `"public"`, `"no-network"`, false},
		{"allow-and-deny", allow(`"a.test"`), deny(`"a.test"`), false},
		{"ports", allow(`"a.test:443"`), allow(`"a.test:80"`), false},
		{"port-and-none", allow(`"a.test:443"`), allow(`"a.test"`), false},
		{"apex", allow(`"a.test"`), allow(`"*.a.test"`), false},
		{"lengths", allow(`"10.0.0.0/8"`), allow(`"10.0.0.0/9"`), false},
		{"families", allow(`"0.0.0.0/0"`), allow(`"::/0"`), false},
		{"covered", allow(`"10.0.0.0/8"`), allow(`"10.0.0.0/8","10.0.0.1"`), false},
		{"inbound", `"public"`, `{"network_mode":"public","inbound":"host"}`, false},
		{"observe", `"no-network"`, `{"network_mode":"no-network","observe":true}`, false},
		{"ech", `"public"`, `{"network_mode":"public","ech":"keep"}`, false},
		{"question-bytes", `"public"`, `{"network_mode":"public","dns_question_bytes":1}`, false},
		{"names", `"public"`, `{"network_mode":"public","dns_unique_names":1}`, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			a, b := mustPolicy(t, row.a), mustPolicy(t, row.b)
			if got := a.Digest() == b.Digest(); got != row.equal {
				t.Errorf("%s\n%s: equal is %v", a.appendMeaning(nil), b.appendMeaning(nil), got)
			}
		})
	}
}

// TestDigestText pins the canonical text: records hold digests, so it may not change.
func TestDigestText(t *testing.T) {
	p := mustPolicy(t, `{"network_mode":"allowlist","allowed_hosts":["b.test:80","a.test","::ffff:1.2.3.4",{"host":"2001:db8::/32","port":443}],
		"dns_unique_names":5,"ech":"keep","inbound":"none"}`)
	meaning := `{"dns_unique_names":5,"ech":"keep","inbound":"none","network_mode":"allowlist",` +
		`"targets":["1.2.3.4/32",{"host":"2001:db8::/32","port":443},"a.test",{"host":"b.test","port":80}]}`
	if got := string(p.appendMeaning(nil)); got != meaning {
		t.Errorf("got %s, want %s", got, meaning)
	}
	if p.Digest() != sha256.Sum256([]byte(meaning)) {
		t.Error("the digest is not that of the canonical text")
	}
	phases := Phases{{Mode: Public}, p, {}}
	if want := `{"baseline":{"network_mode":"public"},"run":` + meaning + `,"evaluation":{"network_mode":"no-network"}}`; phases.Digest() != sha256.Sum256([]byte(want)) {
		t.Errorf("the phases' digest is not that of %s", want)
	}
	if got, want := mustPolicy(t, "no-network").Digest().String(), "sha256:a238c3f4d7f106f126d1c66e76d936fd28fbd7bde2ee6da37a360fb747e780ca"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDigestJSON(t *testing.T) {
	want := mustPolicy(t, "public").Digest()
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Digest
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("%s: got %v, %v", text, got, err)
	}
	for _, bad := range []string{"", "sha256:", "sha256:zz", want.String() + "00", want.String()[:70], "md5:" + want.String()[7:]} {
		if err := got.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}
