package policy

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

var fuzzTargets = []string{
	"", "ok.test", "OK.test.:443", "*.ok.test", "*.*.test", "**", "10.0.0.5/8", "10.0.0.0/08", "10.0.0.0/255.0.0.0", "10.0.0.0/8:443",
	"2001:db8::1", "::1:80", "[::1]:443", "[::1]443", "[[[[::1", "[fe80::1%eth0]:1", "::ffff:1.2.3.4", "[2001:db8::/32]:443", "2001:db8::/32:443",
	"https://u:p@ok.test:1/x?y", "u@ok.test", "ok.test?x", "ok.test:0443", "ok.test: 443", "127.1", "0x7f.1", "010.0.0.1", "1.2.3.4.5", "localhost", "a.localhost",
	"\u0430pple.test", "xn--bcher-kva.test", "xn--zz.test", "\uff45x\uff0etest", "\u200bok.test", "\xff", "_x.test", "a..b", ".ok.test",
}

// FuzzParseTarget checks that nothing panics, that what is accepted is in normal form and stays what it is when it
// is printed and read again, and that errors are one line of printable ASCII.
func FuzzParseTarget(f *testing.F) {
	for _, s := range fuzzTargets {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		target, err := ParseTarget(s)
		if err != nil {
			checkError(t, err)
			if target != (Target{}) {
				t.Fatalf("%q: %+v beside an error", s, target)
			}
			return
		}
		again, err := ParseTarget(target.String())
		if err != nil || again != target {
			t.Fatalf("%q: printed as %s, read as %+v, %v; want %+v", s, target, again, err, target)
		}
		text, err := target.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var object Target
		if err := object.UnmarshalJSON(text); err != nil || object != target {
			t.Fatalf("%q: printed as %s, read as %+v, %v; want %+v", s, text, object, err, target)
		}
		if target.Kind.IsName() == target.Prefix.IsValid() || target.Host != strings.ToLower(target.Host) || strings.HasSuffix(target.Host, ".") {
			t.Fatalf("%q: not in normal form: %+v", s, target)
		}
	})
}

// FuzzParse checks that nothing panics, and that documents that are accepted keep their policies, digests and
// notices when they are printed and read again.
func FuzzParse(f *testing.F) {
	for _, s := range fuzzTargets {
		quoted := string(appendString(nil, strings.ToValidUTF8(s, "")))
		f.Add([]byte(`{"network_mode":"allowlist","allowed_hosts":[` + quoted + "]}"))
		f.Add([]byte("run_network_policy:\n  network_mode: denylist\n  denied_hosts:\n  - " + quoted + "\n  - {host: " + quoted + ", port: 0443}\n"))
	}
	for _, s := range []string{
		"public", `"no-network"`, "null", "{}", `{"network_mode":"public","network_mode":"public"}`, `{"network_policy":"public"}`, "- &a b\n- *a\n", "!" + strings.Repeat("Q", 2000) + " x",
		`{"verifier_network_policy":"public","evaluation_network_policy":"public"}`, `{"network_mode":"public","inbound":"none","ech":"keep","dns_unique_names":9,"dns_question_bytes":99}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := Parse(data)
		if err != nil {
			checkError(t, err)
			if !reflect.DeepEqual(doc, Document{}) {
				t.Fatalf("%q: %+v beside an error", data, doc)
			}
			return
		}
		doc.Warnings(floorForTest)
		if doc.Policy != nil {
			var again Policy
			printAndRead(t, *doc.Policy, &again)
			if !reflect.DeepEqual(again, *doc.Policy) || again.Digest() != doc.Policy.Digest() || Notice(again) != Notice(*doc.Policy) {
				t.Fatalf("%q: got %+v, want %+v", data, again, *doc.Policy)
			}
			return
		}
		phases := doc.Phases.Phases()
		var again Phases
		printAndRead(t, phases, &again)
		if !reflect.DeepEqual(again, phases) || again.Digest() != phases.Digest() {
			t.Fatalf("%q: got %+v, want %+v", data, again, phases)
		}
	})
}

func printAndRead(t *testing.T, v interface{ MarshalJSON() ([]byte, error) }, into interface{ UnmarshalJSON([]byte) error }) {
	t.Helper()
	text, err := v.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := into.UnmarshalJSON(text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func checkError(t *testing.T, err error) {
	t.Helper()
	var first *Error
	if !errors.As(err, &first) {
		t.Fatalf("%T is not an *Error", err)
	}
	all := []*Error{first}
	if many := (*Errors)(nil); errors.As(err, &many) {
		all = many.All
	}
	for _, e := range all {
		text := e.Error()
		for _, r := range text {
			if r < ' ' || r == 0x7f || r == utf8.RuneError {
				t.Fatalf("unprintable: %q", text)
			}
		}
		if e.Problem == "" || e.Repair == "" || len(text) > 2000 {
			t.Fatalf("not a helpful error: %q", text)
		}
	}
}
