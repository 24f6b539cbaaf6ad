package policy

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// stricter holds the inputs that AgentCompass accepts and a policy of ours does not, with the reason.
var stricter = map[string]string{
	`" ok.test"`: "nothing is trimmed", `"ok.test "`: "nothing is trimmed", `"ok.test\r\n"`: "nothing is trimmed",
	`"ok.test\u00a0"`: "nothing is trimmed", `{"host": " a.test"}`: "nothing is trimmed",
	`"evil.test.."`: "one trailing dot is the root, two are a mistake",
	`"localhost"`:   "not outbound", `"a.localhost"`: "not outbound", `"*.localhost"`: "not outbound",
	`"127.1"`: "number-like", `"1.2.3.4.5"`: "number-like", `"0x7f.1"`: "number-like", `"2130706433"`: "number-like",
	`"01.2.3.4"`: "number-like", `"256.1.1.1"`: "number-like", `"1.2.3.4."`: "number-like", `"*.1.2.3.4"`: "number-like",
	`"10.0.0.0/255.0.0.0"`: "a length, not a mask", `"10.0.0.0/0.255.255.255"`: "a length, not a mask", `"10.0.0.0/08"`: "plain digits",
	`"fe80::1%eth0"`: "zone id", `"[fe80::1%1]:443"`: "zone id",
	`"ok.test:0443"`: "plain digits", `"[::1]:0443"`: "plain digits", `{"host": "a.test", "port": null}`: "plain digits",
	`"2001:db8:0:0:0:0:0:1:443"`: "a port needs brackets", `"2001:db8::/32:443"`: "needs the object form",
	`"[2001:db8::/32]:443"`: "brackets are for addresses", `"[2001:db8::/32]"`: "brackets are for addresses",
	`"[example.com]:443"`: "brackets are for IPv6", `"[127.0.0.1]:80"`: "brackets are for IPv6", `"[ok.test]"`: "brackets are for IPv6",
	`"xn--a.test"`: "not an A-label", `"xn--zz.test"`: "not an A-label", `"\u212a.test"`: "not ASCII",
	`{"host": 1}`: "not a string", `5`: "not a string", `true`: "not a string",
}

// TestTargetsAsAgentCompass compares with what AgentCompass 1.0.1 really returned; testdata/agentcompass/generate.py
// says how that was recorded.
func TestTargetsAsAgentCompass(t *testing.T) {
	unused := map[string]bool{}
	for input := range stricter {
		unused[input] = true
	}
	for _, line := range goldenLines(t, "targets.jsonl") {
		var golden struct {
			Input   json.RawMessage
			Refused bool
			Dump    json.RawMessage
			Kind    string
			Notice  string
		}
		if err := json.Unmarshal(line, &golden); err != nil {
			t.Fatal(err)
		}
		var got Target
		err := got.UnmarshalJSON(golden.Input)
		_, refusedHere := stricter[string(golden.Input)]
		delete(unused, string(golden.Input))
		switch {
		case refusedHere && golden.Refused:
			t.Errorf("%s: AgentCompass refuses it too", golden.Input)
		case (golden.Refused || refusedHere) != (err != nil):
			t.Errorf("%s: got %v, %v", golden.Input, got, err)
		case err == nil:
			if dump, _ := got.MarshalJSON(); !bytes.Equal(dump, compact(t, golden.Dump)) {
				t.Errorf("%s: prints %s, want %s", golden.Input, dump, golden.Dump)
			}
			if got.Kind.String() != golden.Kind || got.String() != golden.Notice {
				t.Errorf("%s: got %s %s, want %s %s", golden.Input, got.Kind, got, golden.Kind, golden.Notice)
			}
		}
	}
	for input := range unused {
		t.Errorf("%s is no golden input", input)
	}
}

func TestPoliciesAsAgentCompass(t *testing.T) {
	for _, line := range goldenLines(t, "policies.jsonl") {
		var golden struct {
			Input        json.RawMessage
			Dump, Notice string
		}
		if err := json.Unmarshal(line, &golden); err != nil {
			t.Fatal(err)
		}
		var p Policy
		if err := p.UnmarshalJSON(golden.Input); err != nil {
			t.Errorf("%s: %v", golden.Input, err)
			continue
		}
		if dump, _ := p.MarshalJSON(); string(dump) != golden.Dump {
			t.Errorf("%s:\n got %s\nwant %s", golden.Input, dump, golden.Dump)
		}
		if notice := Notice(p); notice != golden.Notice {
			t.Errorf("%s:\n got %s\nwant %s", golden.Input, notice, golden.Notice)
		}
	}
}

func goldenLines(t *testing.T, name string) [][]byte {
	t.Helper()
	data, err := os.ReadFile("testdata/agentcompass/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSpace(data), []byte("\n"))
}

func compact(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
