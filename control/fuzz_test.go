package control

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// A spec that is read must be written and read back as the same one, and must be one that encoding/json reads in the
// same way: whoever looks at a request with another reader sees the policy that was set.
func FuzzSessionSpec(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[]`, `{"phase":"run"}`, `{"phase":"run","phase":"baseline"}`, `{"PHASE":"run"}`,
		`{"generation":18446744073709551615}`, `{"generation":1e3}`, `{"policies":{"run":"public"}}`,
		`{"policies":{"run":{"network_mode":"allowlist","allowed_hosts":["a.test"]}}} x`,
		`{"hosts":{"db":["192.0.2.1"]},"never":["10.0.0.0/8"],"upstreams":null}`, "{\"container\":\"\xff\"}", `{"a":`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var spec SessionSpec
		if spec.UnmarshalJSON(data) != nil {
			return
		}
		type plain SessionSpec // without the method
		var other plain
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&other); err != nil {
			t.Fatalf("read strictly, but not by encoding/json: %v", err)
		}
		first, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		second, err := json.Marshal(SessionSpec(other))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			t.Fatalf("read as %s, by encoding/json as %s", first, second)
		}
		var again SessionSpec
		if err := again.UnmarshalJSON(first); err != nil {
			t.Fatalf("%s does not read back: %v", first, err)
		}
	})
}

func FuzzReceivedMessage(f *testing.F) {
	for _, seed := range []string{`{"session":"a","kind":"tcp"}`, `{"kind":""}`, `{}`, ``, `{"kind":"tcp","kind":"udp"}`, `[`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseMessage(data, 0, 1)
		if err == nil && (r.Kind == "" || !strings.Contains(string(data), `"`)) {
			t.Fatalf("accepted %q", data)
		}
	})
}
