package policy

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// rollout is a line of testdata/agentcompass/rollouts.jsonl: what AgentCompass 1.0.1 makes of an input. The test
// TestNoticeAsAgentCompass of package e2e asks it again.
type rollout struct {
	Policy  Policy
	Input   json.RawMessage
	Encoded bool
	Want    struct {
		Prompt, Messages any
		Surfaces         []string
	}
}

func TestAppendNoticeAsAgentCompass(t *testing.T) {
	for _, line := range goldenLines(t, "rollouts.jsonl") {
		var r rollout
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		before := bytes.Clone(r.Input)
		copied, surfaces, err := AppendNotice(r.Input, Notice(r.Policy), r.Encoded)
		if err != nil {
			t.Errorf("%s: %v", r.Input, err)
			continue
		}
		var got struct{ Prompt, Messages any }
		if err := json.Unmarshal(copied, &got); err != nil {
			t.Errorf("%s: %v: %s", r.Input, err, copied)
			continue
		}
		// Python's own input has these two fields always.
		if got.Prompt == nil {
			got.Prompt = ""
		}
		if got.Messages == nil {
			got.Messages = []any{}
		}
		if !reflect.DeepEqual(got.Prompt, r.Want.Prompt) || !reflect.DeepEqual(got.Messages, r.Want.Messages) {
			t.Errorf("%s:\n got %#v\nwant %#v, %#v", r.Input, got, r.Want.Prompt, r.Want.Messages)
		}
		if strings.Join(surfaces, " ") != strings.Join(r.Want.Surfaces, " ") {
			t.Errorf("%s: got the surfaces %v, want %v", r.Input, surfaces, r.Want.Surfaces)
		}
		if !bytes.Equal(before, r.Input) {
			t.Errorf("%s: became %s", before, r.Input)
		}
		again, surfaces, err := AppendNotice(copied, Notice(r.Policy), r.Encoded)
		if err != nil || !bytes.Equal(again, copied) || len(surfaces) > 0 {
			t.Errorf("%s, again: %s, %v, %v", r.Input, again, surfaces, err)
		}
	}
}

func TestAppendNoticeErrors(t *testing.T) {
	for _, row := range []struct{ in, want string }{
		{`[]`, `[...]: is not the input of a rollout; write an object with prompt or messages`},
		{`{"prompt": 5}`, `/prompt: 5: is not a prompt; write a string or a list of messages`},
		{`{"prompt": {"role": "user"}}`, `/prompt: {...}: is not a prompt; write a string or a list of messages`},
		{`{"messages": "x"}`, `/messages: "x": is not a list; write a list of messages`},
		{`{"messages": [{"role": "user", "content": {"a": 1}}]}`, `/messages/0/content: {...}: is not the content of a message; write a string or a list of parts`},
		{`{"prompt": "x"} x`, `something follows the JSON value`},
		{`{"prompt": `, `the JSON text ends too early: unexpected EOF`},
	} {
		if _, _, err := AppendNotice([]byte(row.in), "notice", false); err == nil || err.Error() != row.want {
			t.Errorf("%s:\n got %v\nwant %s", row.in, err, row.want)
		}
	}
}

// TestAppendNoticeKeeps checks that what is not an instruction stays as it was spelt.
func TestAppendNoticeKeeps(t *testing.T) {
	const in = `{"id":7e0,"prompt":"a","tools":[{"x":1.50}],"workspace":null}`
	got, _, err := AppendNotice([]byte(in), "NOTICE", false)
	if want := strings.Replace(in, `"a"`, `"a\n\nNOTICE"`, 1); err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if got, surfaces, err := AppendNotice([]byte(in), "", false); err != nil || string(got) != in || surfaces != nil {
		t.Errorf("no notice: got %s, %v, %v", got, surfaces, err)
	}
}

func TestNoticeWanted(t *testing.T) {
	for _, row := range []struct {
		params string
		want   bool
		err    bool
	}{
		{`{}`, true, false},
		{`{"inject_network_restriction_notice": true}`, true, false},
		{`{"inject_network_restriction_notice": false, "x": 1}`, false, false},
		{`{"inject_network_restriction_notice": 0}`, false, true},
		{`{"inject_network_restriction_notice": null}`, false, true},
	} {
		p, err := ParseParams([]byte(row.params))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := NoticeWanted(p.Other); got != row.want || (err != nil) != row.err {
			t.Errorf("%s: got %v, %v", row.params, got, err)
		}
	}
}

func FuzzAppendNotice(f *testing.F) {
	f.Add([]byte(`{"prompt":"[{\"role\":\"user\",\"content\":[{\"text\":\"t\"}],\"n\":-1E999}]","messages":[{"role":"user","role":"x"}]}`), true)
	f.Add([]byte(`{"messages":[[],5,{"role":"user","content":null}]}`), false)
	f.Fuzz(func(t *testing.T, in []byte, encoded bool) {
		out, surfaces, err := AppendNotice(in, Notice(Policy{}), encoded)
		if err != nil {
			return
		}
		if !json.Valid(out) {
			t.Fatalf("%q: %q is not JSON", in, out)
		}
		again, more, err := AppendNotice(out, Notice(Policy{}), encoded)
		if err != nil || !bytes.Equal(again, out) || len(more) > 0 {
			t.Fatalf("%q: %q, again %q, %v %v, %v", in, out, again, surfaces, more, err)
		}
	})
}
