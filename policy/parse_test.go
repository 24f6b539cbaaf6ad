package policy

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
)

func TestParsePolicy(t *testing.T) {
	okAllow := func(o Options, targets ...string) Policy {
		p := Policy{Mode: Allowlist, Options: o}
		for _, s := range targets {
			p.Targets = append(p.Targets, mustTarget(t, s))
		}
		return p
	}
	v6 := mustTarget(t, "2001:db8::/32")
	v6.Port = 443
	for _, row := range []struct {
		name, in string
		want     Policy
	}{
		{"json-string", `"public"`, Policy{Mode: Public}},
		{"yaml-string", "no-network\n", Policy{Mode: NoNetwork}},
		{"json-object", `{"network_mode": "public"}`, Policy{Mode: Public}},
		{"empty-lists", `{"network_mode":"no-network","allowed_hosts":[],"denied_hosts":[]}`, Policy{}},
		{"json-list", ` {"network_mode": "allowlist", "allowed_hosts": ["ok.test:443"]}`, okAllow(Options{}, "ok.test:443")},
		{"yaml-list", "# a comment\nnetwork_mode: allowlist\nallowed_hosts:\n- ok.test:443\n- '*.a.test'\n- ::1\n- 1.2.3.4\n",
			okAllow(Options{}, "*.a.test", "1.2.3.4", "::1", "ok.test:443")},
		{"P-16", `{"network_mode": "allowlist", "allowed_hosts": ["ok.test:443", "OK.test.", "ok.test:80", "ok.test"]}`,
			okAllow(Options{}, "ok.test", "ok.test:80", "ok.test:443")},
		{"P-22", `{"network_mode": "allowlist", "allowed_hosts": [{"host": "10.0.0.0/8", "port": 443}, {"host": "A.test"}, "a.test"]}`,
			okAllow(Options{}, "10.0.0.0/8:443", "a.test")},
		{"P-22-v6", `{"network_mode": "allowlist", "allowed_hosts": [{"host": "2001:db8::/32", "port": 443}]}`, Policy{Mode: Allowlist, Targets: []Target{v6}}},
		{"yaml-object-target", "network_mode: denylist\ndenied_hosts:\n- host: ok.test\n  port: 443\n", Policy{Mode: Denylist, Targets: []Target{mustTarget(t, "ok.test:443")}}},
		{"yaml-document-marks", "---\npublic\n...\n", Policy{Mode: Public}},
		{"options", `{"network_mode": "public", "inbound": "none", "ech": "keep", "dns_unique_names": 7, "dns_question_bytes": 1000000000}`,
			Policy{Mode: Public, Options: Options{Inbound: InboundNone, KeepECH: true, DNSUniqueNames: 7, DNSQuestionBytes: 1e9}}},
		{"observe", `{"network_mode": "allowlist", "allowed_hosts": ["a.test"], "observe": true}`,
			Policy{Mode: Allowlist, Targets: []Target{{Host: "a.test", Kind: Hostname}}, Options: Options{Observe: true}}},
		{"observe-nothing", `{"network_mode": "no-network", "observe": false}`, Policy{}},
		{"default-options", `{"network_mode": "public", "inbound": "all", "ech": "strip"}`, Policy{Mode: Public}},
		{"inbound-host", "network_mode: allowlist\nallowed_hosts: [ok.test]\ninbound: host", okAllow(Options{Inbound: InboundHost}, "ok.test")},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := ParsePolicy([]byte(row.in))
			if err != nil || !reflect.DeepEqual(got, row.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, row.want)
			}
		})
	}
}

func TestParsePhases(t *testing.T) {
	public, none := Policy{Mode: Public}, Policy{}
	ok := Policy{Mode: Allowlist, Targets: []Target{mustTarget(t, "ok.test")}}
	okJSON := `{"network_mode": "allowlist", "allowed_hosts": ["ok.test"]}`
	for _, row := range []struct {
		name, in string
		want     Phases
	}{
		{"all", `{"baseline_network_policy": "public", "run_network_policy": "no-network", "evaluation_network_policy": ` + okJSON + `}`, Phases{public, none, ok}},
		{"unset-is-public", `{"baseline_network_policy": "no-network"}`, Phases{none, public, public}},
		{"run-alone", `{"run_network_policy": "no-network"}`, Phases{public, none, public}},
		{"yaml", "run_network_policy:\n  network_mode: allowlist\n  allowed_hosts: [ok.test]\nevaluation_network_policy: no-network\n", Phases{public, ok, none}},
		{"older-inherit", `{"network_policy": ` + okJSON + `}`, Phases{ok, ok, ok}},
		{"older-all", `{"network_policy": "public", "run_network_policy": "no-network", "verifier_network_policy": ` + okJSON + `}`, Phases{public, none, ok}},
		{"older-part", `{"network_policy": "no-network", "verifier_network_policy": "public"}`, Phases{none, none, public}},
		{"older-without-base", `{"verifier_network_policy": "no-network"}`, Phases{public, public, none}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := ParsePhases([]byte(row.in))
			if err != nil || !reflect.DeepEqual(got, row.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, row.want)
			}
		})
	}
}

// TestParseTells checks that Parse says which kind of document it read and which phases that names.
func TestParseTells(t *testing.T) {
	one, err := Parse([]byte("public"))
	if err != nil || one.Policy == nil || one.Policy.Mode != Public || one.Phases != (Layer{}) {
		t.Errorf("one policy: got %+v, %v", one, err)
	}
	three, err := Parse([]byte(`{"run_network_policy": "no-network"}`))
	if err != nil || three.Policy != nil || three.Phases[Baseline] != nil || three.Phases[Run] == nil || three.Phases[Evaluation] != nil {
		t.Errorf("phases: got %+v, %v", three, err)
	}
}

func TestParseErrors(t *testing.T) {
	const (
		modes  = `write "no-network", "public", "allowlist" or "denylist"`
		fields = "network_mode, allowed_hosts, denied_hosts, inbound, ech, dns_unique_names, dns_question_bytes, observe"
		phases = "baseline_network_policy, run_network_policy, evaluation_network_policy"
		older  = "network_policy, run_network_policy, verifier_network_policy"
		aList  = `write a list of targets, as in ["api.example.com"]`
		a      = `{"network_mode":"allowlist","allowed_hosts":`
		port   = "is not a port; write 1 to 65535 in plain digits without quotes, or leave it out for every port"
	)
	for _, row := range []struct{ id, in, want string }{
		{"", "", `the text is empty; write a policy, "public" for example`},
		{"", " \n", `the text is empty; write a policy, "public" for example`},
		{"", "# nothing\n", `the text is empty; write a policy, "public" for example`},
		{"", "null", `null: is not a policy; write "public", "no-network" or an object with network_mode; leave a phase out to keep its default`},
		{"", "[]", `[...]: is not a policy; write "public", "no-network" or an object with network_mode; leave a phase out to keep its default`},
		{"", "5", `5: is not a policy; write "public", "no-network" or an object with network_mode; leave a phase out to keep its default`},
		{"", "{}", "{...}: holds no policy; write network_mode for one policy, or " + phases},

		{"P-08", a + "[]}", "/allowed_hosts: is empty in the mode allowlist; name what it allows, or write the mode no-network"},
		{"P-08", `{"network_mode":"denylist","denied_hosts":[]}`, "/denied_hosts: is empty in the mode denylist; name what it refuses, or write the mode public"},
		{"P-09", `{"network_mode":"allowlist"}`, "has no allowed_hosts; name what it allows, or write the mode no-network"},
		{"P-09", `{"network_mode":"denylist"}`, "has no denied_hosts; name what it refuses, or write the mode public"},
		{"P-09", a + "null}", "/allowed_hosts: null: is not a list; " + aList},
		{"P-09", a + `""}`, `/allowed_hosts: "": is not a list; ` + aList},
		{"P-09", a + `","}`, `/allowed_hosts: ",": is not a list; ` + aList},
		{"P-09", a + `{}}`, `/allowed_hosts: {...}: is not a list; ` + aList},
		{"P-09", "network_mode: allowlist\nallowed_hosts:\n", "/allowed_hosts: null: is not a list; " + aList},
		{"P-09", a + `[""]}`, `/allowed_hosts/0: "": is empty; write a host, an address or a network, or remove the entry`},
		{"P-09", a + `[null]}`, "/allowed_hosts/0: null: is not a target; write a target or remove the entry"},
		{"P-09", a + `["ok.test", true]}`, `/allowed_hosts/1: true: is not a target; write a string in quotes, or {"host": "api.example.com", "port": 443}`},
		{"P-09", a + `[["ok.test"]]}`, `/allowed_hosts/0: [...]: is not a target; write a string in quotes, or {"host": "api.example.com", "port": 443}`},
		{"P-09", "network_mode: allowlist\nallowed_hosts: [127]\n", `/allowed_hosts/0: 127: is not a target; write a string in quotes, or {"host": "api.example.com", "port": 443}`},

		{"P-11", a + `[{"host":"ok.test","port":0}]}`, "/allowed_hosts/0/port: 0: " + port},
		{"P-11", a + `[{"host":"ok.test","port":65536}]}`, "/allowed_hosts/0/port: 65536: " + port},
		{"P-11", a + `[{"host":"ok.test","port":-1}]}`, "/allowed_hosts/0/port: -1: " + port},
		{"P-11", a + `[{"host":"ok.test","port":4.43e2}]}`, "/allowed_hosts/0/port: 4.43e2: " + port},
		{"P-11", a + `[{"host":"ok.test","port":443.0}]}`, "/allowed_hosts/0/port: 443.0: " + port},
		{"P-11", a + `[{"host":"ok.test","port":"443"}]}`, `/allowed_hosts/0/port: "443": ` + port},
		{"P-11", a + `[{"host":"ok.test","port":null}]}`, "/allowed_hosts/0/port: null: " + port},
		{"P-11", a + `[{"host":"ok.test","port":true}]}`, "/allowed_hosts/0/port: true: " + port},
		{"P-11", "network_mode: allowlist\nallowed_hosts: [{host: ok.test, port: 0443}]", "/allowed_hosts/0/port: 0443: " + port},
		{"P-11", "network_mode: allowlist\nallowed_hosts: [{host: ok.test, port: 0x1bb}]", "/allowed_hosts/0/port: 0x1bb: " + port},
		{"P-11", "network_mode: allowlist\nallowed_hosts: [{host: ok.test, port: 4_43}]", "/allowed_hosts/0/port: 4_43: " + port},
		{"P-11", "network_mode: allowlist\nallowed_hosts: [{host: ok.test, port: +443}]", "/allowed_hosts/0/port: +443: " + port},
		{"P-11", "network_mode: allowlist\nallowed_hosts:\n- host: ok.test\n  port:\n", "/allowed_hosts/0/port: null: " + port},
		{"P-22", a + `[{"port":443}]}`, `/allowed_hosts/0: {...}: has no host; write it as in {"host": "api.example.com", "port": 443}`},
		{"P-22", a + `[{"host":443}]}`, "/allowed_hosts/0/host: 443: is not a string; write a host, an address or a network in quotes"},
		{"P-22", a + `[{"host":"ok.test:443"}]}`, `/allowed_hosts/0/host: "ok.test:443": holds a port beside the host; write "ok.test" and the port as "port"`},
		{"P-22", a + `[{"host":"[::1]","port":443}]}`, `/allowed_hosts/0/host: "[::1]": has brackets, which belong to the short form; write "::1"`},
		{"P-22", a + `[{"host":"10.0.0.0/8:443"}]}`, `/allowed_hosts/0/host: "10.0.0.0/8:443": holds a port beside the host; write "10.0.0.0/8:443"`},
		{"P-22", a + `[{"host":"10.0.0.5/8","port":443}]}`,
			`/allowed_hosts/0/host: "10.0.0.5/8": is not a network: its address has bits behind the prefix; write "10.0.0.0/8" for the network or "10.0.0.5/32" for the address`},
		{"P-22", a + `[{"host":"1:2","port":443}]}`, `/allowed_hosts/0/host: "1:2": holds a port beside the host; write the host alone and the port as "port"`},
		{"P-22", a + `[{"host":"a:b","port":443}]}`,
			`/allowed_hosts/0/host: "a:b": has several colons but is not an IPv6 address; write an IPv6 address as in "2001:db8::1", with a port as in "[2001:db8::1]:443"`},
		{"P-22", a + `[{"host":"ok.test","prot":443}]}`, `/allowed_hosts/0/prot: "prot": is not a known field; write host, port or remove it`},

		{"P-20", `{"network_mode":"denylist","denied_hosts":["ok.test","10.0.0.0/33"]}`,
			`/denied_hosts/1: "10.0.0.0/33": has a prefix length outside 0 to 32; write a prefix length from 0 to 32`},

		{"P-21", `{"network_mode":"public","alowlist":1}`, `/alowlist: "alowlist": is not a known field; write ` + fields + " or remove it"},
		{"P-21", `{"Network_Mode":"public"}`, "{...}: holds no policy; write network_mode for one policy, or " + phases},
		{"P-21", `{"network_mode":"public","network_mode":"public"}`, `/network_mode: "network_mode": stands here twice; keep one`},
		{"P-21", "network_mode: public\nnetwork_mode: no-network\n", `/network_mode: "network_mode": stands here twice; keep one`},
		{"P-21", `{"run_network_policy":"public","run_network_policy":"no-network"}`, `/run_network_policy: "run_network_policy": stands here twice; keep one`},
		{"P-21", a + `[{"host":"a.test","host":"b.test"}]}`, `/allowed_hosts/0/host: "host": stands here twice; keep one`},
		{"P-21", `{"network_mode":"public"} x`, "something follows the JSON value at line 1, column 26; remove it"},
		{"P-21", `{"network_mode":"public"}{}`, "something follows the JSON value at line 1, column 26; remove it"},
		{"P-21", "public\n---\nno-network\n", "a second YAML document begins at line 2; keep one policy document in a file"},
		{"P-21", `"public" x`, `is not valid YAML; correct it; a target that begins with "*" or "[" needs quotes, as in "*.example.com"`},
		{"P-21", `{"network_mode":"public","run_network_policy":"public"}`, `/network_mode: "network_mode": is not a known field; write ` + phases + " or remove it"},
		{"P-21", `{"network_policy":"public","evaluation_baseline_network_policy":"public"}`,
			`/evaluation_baseline_network_policy: "evaluation_baseline_network_policy": is not a known field; write ` + older + " or remove it"},
		{"P-21", "{\n \"network_mode\": public}", "is not valid JSON at line 2, column 18: invalid character 'p' at start of value; correct it there"},
		{"P-21", `{"network_mode":"pub`, "the JSON text ends too early; write it to its end"},
		{"P-21", "{\"network_mode\":\"\xff\"}", "is not valid JSON at line 1, column 18: invalid UTF-8; correct it there"},
		{"P-21", "\ufeff{}", "the text begins with a byte order mark; save it as UTF-8 without one"},
		{"P-21", "network_mode: \xff", "the text is not valid UTF-8; save it as UTF-8"},
		{"P-21", "network_mode: allowlist\nallowed_hosts:\n- *.ok.test\n", `is not valid YAML near line 3; correct it; a target that begins with "*" or "[" needs quotes, as in "*.example.com"`},
		{"P-21", "network_mode: allowlist\nallowed_hosts: [&a ok.test, *a]\n",
			`/allowed_hosts/1: "a": is a YAML alias (line 2); write the value itself; a target that begins with "*" needs quotes`},
		{"P-21", "network_mode: !!binary cHVibGlj\n", `/network_mode: "cHVibGlj": is a YAML value of the type "!!binary" (line 1); write a string in quotes or a number`},
		{"P-21", "network_mode: allowlist\nallowed_hosts: !!set {ok.test}\n", `/allowed_hosts: "": is a YAML value of the type "!!set" (line 2); write a plain object or list`},
		{"P-21", "<<: {network_mode: public}\n", `"<<": is a YAML key that is not a string (line 1); write a field name`},
		{"P-21", `{"a":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + "}",
			"the text has more values, or deeper ones, than a policy has; write a policy or the policies of the three phases"},
		{"P-21", "a: " + strings.Repeat("[", 20) + strings.Repeat("]", 20),
			"/a" + strings.Repeat("/0", 16) + `: "": is nested deeper than a policy is (line 1); write a policy or the policies of the three phases`},

		{"P-23", `{"network_mode":""}`, `/network_mode: "": is not a known mode; ` + modes},
		{"P-23", `{"network_mode":"Public"}`, `/network_mode: "Public": is not a known mode; write "public"`},
		{"P-23", `{"network_mode":" public"}`, `/network_mode: " public": is not a known mode; write "public"`},
		{"P-23", `{"network_mode":"none"}`, `/network_mode: "none": is not a known mode; write "no-network"`},
		{"P-23", `{"network_mode":"allow-list","allowed_hosts":["ok.test"]}`, `/network_mode: "allow-list": is not a known mode; write "allowlist"`},
		{"P-23", `{"network_mode":"x"}`, `/network_mode: "x": is not a known mode; ` + modes},
		{"P-23", `{"network_mode":null}`, `/network_mode: null: is not a string; ` + modes},
		{"P-23", "network_mode: no\n", `/network_mode: "no": is not a known mode; ` + modes},
		{"P-23", `{"allowed_hosts":["ok.test"]}`, `{...}: has no network_mode; add one of "no-network", "public", "allowlist" or "denylist"`},
		{"P-23", `"Public"`, `"Public": is not a known mode; write "public"`},
		{"P-23", `"allowlist"`, `"allowlist": needs targets; write an object with network_mode and allowed_hosts`},
		{"P-23", `denylist`, `"denylist": needs targets; write an object with network_mode and denied_hosts`},
		{"P-23", `{"network_mode":"public","allowed_hosts":["ok.test"]}`,
			"/allowed_hosts: [...]: belongs to the mode allowlist, not to public; remove it, or write the mode allowlist"},
		{"P-23", `{"network_mode":"no-network","denied_hosts":["ok.test"]}`,
			"/denied_hosts: [...]: belongs to the mode denylist, not to no-network; remove it, or write the mode denylist"},
		{"P-23", `{"network_mode":"public","allowed_hosts":null}`,
			"/allowed_hosts: null: belongs to the mode allowlist, not to public; remove it, or write the mode allowlist"},
		{"P-23", `{"run_network_policy":null}`,
			`/run_network_policy: null: is not a policy; write "public", "no-network" or an object with network_mode; leave a phase out to keep its default`},
		{"P-23", "run_network_policy:\n",
			`/run_network_policy: null: is not a policy; write "public", "no-network" or an object with network_mode; leave a phase out to keep its default`},
		{"P-23", `{"run_network_policy":["ok.test"]}`,
			`/run_network_policy: [...]: is not a policy; write "public", "no-network" or an object with network_mode; leave a phase out to keep its default`},

		{"P-26", `{"network_mode":"allowlist","allowed_hosts":["ok.test"],"denied_hosts":["ok.test"]}`,
			"/denied_hosts: [...]: belongs to the mode denylist, not to allowlist; remove it: what an allowlist does not name is refused"},
		{"I-65", `{"network_mode":"denylist","allowed_hosts":["ok.test"],"denied_hosts":["ok.test"]}`,
			"/allowed_hosts: [...]: belongs to the mode allowlist, not to denylist; remove it: what a denylist does not name is allowed"},

		{"", `{"network_mode":"public","inbound":"some"}`, `/inbound: "some": is not a known value of inbound; write "all", "host" or "none"`},
		{"", `{"network_mode":"public","inbound":false}`, `/inbound: false: is not a string; write "all", "host" or "none"`},
		{"", `{"network_mode":"public","observe":"true"}`, `/observe: "true": is neither true nor false; write true, or leave it out`},
		{"", `{"network_mode":"public","observe":1}`, `/observe: 1: is neither true nor false; write true, or leave it out`},
		{"", `{"network_mode":"public","ech":"Keep"}`, `/ech: "Keep": is not a known value of ech; write "keep"`},
		{"", `{"network_mode":"public","dns_unique_names":0}`, "/dns_unique_names: 0: is not a number of names; write 1 to 1000000 in plain digits, or leave it out for no limit"},
		{"", `{"network_mode":"public","dns_unique_names":1e3}`, "/dns_unique_names: 1e3: is not a number of names; write 1 to 1000000 in plain digits, or leave it out for no limit"},
		{"", `{"network_mode":"public","dns_question_bytes":"9"}`, `/dns_question_bytes: "9": is not a number of bytes; write 1 to 1000000000 in plain digits, or leave it out for no limit`},
		{"", `{"network_mode":"public","dns_question_bytes":1000000001}`, "/dns_question_bytes: 1000000001: is not a number of bytes; write 1 to 1000000000 in plain digits, or leave it out for no limit"},
		{"", `{"network_mode":"public","dns_unique_names":1000001}`, "/dns_unique_names: 1000001: is not a number of names; write 1 to 1000000 in plain digits, or leave it out for no limit"},

		{"", `{"network_policy":"public","evaluation_network_policy":"public"}`, "/network_policy: mixes the older field names with the present ones; write baseline_network_policy"},
		{"", `{"verifier_network_policy":"public","baseline_network_policy":"public"}`, "/verifier_network_policy: mixes the older field names with the present ones; write evaluation_network_policy"},
		{"", `{"network_policy":` + a + `["ok.test:443"]}}`,
			`/network_policy/allowed_hosts/0: "ok.test:443": has a port, which targets under the older field names do not have; write the phases as ` + phases},
		{"", `{"network_policy":` + a + `[{"host":"ok.test","port":443}]}}`,
			"/network_policy/allowed_hosts/0: {...}: has a port, which targets under the older field names do not have; write the phases as " + phases},
		{"", `{"network_policy":{"network_mode":"denylist","denied_hosts":["ok.test"]}}`,
			`/network_policy/network_mode: "denylist": is not a mode of the older field names; write the phases as ` + phases},

		{"", `{"network_mode":"public","https://u:secret@ok.test/":1}`, `/https:~1~1xxxxx@ok.test~1: "https://xxxxx@ok.test/": is not a known field; write ` + fields + " or remove it"},
	} {
		t.Run(subtest(row.id, row.in), func(t *testing.T) {
			got, err := Parse([]byte(row.in))
			if err == nil {
				t.Fatalf("got %+v; want %s", got, row.want)
			}
			if err.Error() != row.want || !reflect.DeepEqual(got, Document{}) {
				t.Errorf("\n got %v\nwant %s", err, row.want)
			}
		})
	}
}

func TestParseWrongKind(t *testing.T) {
	if _, err := ParsePolicy([]byte(`{"run_network_policy":"public"}`)); err == nil || err.Error() != "holds the policies of phases; write one policy" {
		t.Errorf("ParsePolicy: %v", err)
	}
	want := "holds one policy; name the phases: baseline_network_policy, run_network_policy, evaluation_network_policy"
	if _, err := ParsePhases([]byte("public")); err == nil || err.Error() != want {
		t.Errorf("ParsePhases: %v", err)
	}
}

// TestParseCollects checks that all errors of a document arrive at once, in its order, and that there is a bound.
func TestParseCollects(t *testing.T) {
	_, err := Parse([]byte(`{
		"baseline_network_policy": "Public",
		"run_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["ok.test:0", "ok.test", {"host": "a..b"}], "ech": 1},
		"x/y~z": 0}`))
	var all *Errors
	if !errors.As(err, &all) {
		t.Fatalf("got %v", err)
	}
	var pointers []string
	for _, one := range all.All {
		pointers = append(pointers, one.Pointer)
	}
	want := []string{"/x~1y~0z", "/baseline_network_policy", "/run_network_policy/ech", "/run_network_policy/allowed_hosts/0", "/run_network_policy/allowed_hosts/2/host"}
	if !reflect.DeepEqual(pointers, want) || all.Omitted != 0 {
		t.Errorf("got %q and %d more, want %q", pointers, all.Omitted, want)
	}
	var one *Error
	if !errors.As(err, &one) || one != all.All[0] {
		t.Errorf("errors.As finds %v, want the first error", one)
	}

	_, err = Parse([]byte(`{"network_mode":"allowlist","allowed_hosts":["*"` + strings.Repeat(`,"*"`, 149) + "]}"))
	if !errors.As(err, &all) || len(all.All) != maxErrors || all.Omitted != 50 || !strings.HasSuffix(err.Error(), "\nand 50 more") {
		t.Errorf("150 errors: got %d and %d more", len(all.All), all.Omitted)
	}
}

// TestParseCutOff checks that readers can tell a file that is still being written from one that is wrong.
func TestParseCutOff(t *testing.T) {
	whole := `{"network_mode":"allowlist","allowed_hosts":["ok.test",{"host":"a.test","port":443}],"denied_hosts":[]}`
	for i := range whole {
		if _, err := Parse([]byte(whole[:i])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: got %v", whole[:i], err)
		}
	}
	if _, err := Parse([]byte(whole + "}")); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("one bracket too many: got %v", err)
	}
}

func TestLimits(t *testing.T) {
	list := func(n int) string {
		return `{"network_mode":"allowlist","allowed_hosts":["a"` + strings.Repeat(`,"a"`, n-1) + "]}"
	}
	for _, row := range []struct{ name, in, want string }{
		{"targets", list(MaxTargets + 1), "/allowed_hosts: has 250001 targets, more than 250000; use wildcards and networks instead of single targets"},
		{"values", "[1" + strings.Repeat(",1", maxValues) + "]", "the text has more values, or deeper ones, than a policy has; write a policy or the policies of the three phases"},
		{"json-bytes", "{" + strings.Repeat(" ", MaxDocumentBytes) + "}", "the text has 16777218 bytes, more than the 16777216 of a JSON document; use wildcards and networks instead of single targets"},
		{"yaml-bytes", "a" + strings.Repeat(" ", MaxYAMLBytes), "the text has 4194305 bytes, more than the 4194304 of a YAML document; use wildcards and networks instead of single targets"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := Parse([]byte(row.in)); err == nil || err.Error() != row.want {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
	p, err := ParsePolicy([]byte(list(MaxTargets)))
	if err != nil || len(p.Targets) != 1 {
		t.Errorf("%d targets: got %d, %v", MaxTargets, len(p.Targets), err)
	}
}

// many returns a policy text with n different targets of every kind.
func many(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"network_mode":"allowlist","allowed_hosts":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		switch i % 4 {
		case 0:
			fmt.Fprintf(&b, `"host-%d.example.com"`, i)
		case 1:
			fmt.Fprintf(&b, `"*.zone-%d.example.com:443"`, i)
		case 2:
			fmt.Fprintf(&b, `"10.%d.%d.0/24"`, i>>8&255, i&255)
		case 3:
			fmt.Fprintf(&b, `{"host":"2001:db8::%x:%x","port":8443}`, i>>16, i&0xffff)
		}
	}
	b.WriteString("]}")
	return []byte(b.String())
}

func BenchmarkParse100k(b *testing.B) {
	text := many(100_000)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDigest100k(b *testing.B) {
	p, err := ParsePolicy(many(100_000))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p.Digest()
	}
}

func BenchmarkWarnings100k(b *testing.B) {
	p, err := ParsePolicy(many(100_000))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		Warnings(p, floorForTest)
	}
}
