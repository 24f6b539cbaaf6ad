package policy

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestPolicyJSON(t *testing.T) {
	for _, row := range []struct{ name, in, want string }{
		{"public", `"public"`, `{"network_mode":"public","allowed_hosts":[],"denied_hosts":[]}`},
		{"allowlist", "network_mode: allowlist\nallowed_hosts: ['b.test:443', A.test., 'a.test:80']\ninbound: none\n",
			`{"network_mode":"allowlist","allowed_hosts":["a.test",{"host":"a.test","port":80},{"host":"b.test","port":443}],"denied_hosts":[],"inbound":"none"}`},
		{"denylist", `{"network_mode":"denylist","denied_hosts":[{"host":"2001:DB8::/32","port":1}],"ech":"keep","dns_unique_names":3,"dns_question_bytes":900}`,
			`{"network_mode":"denylist","allowed_hosts":[],"denied_hosts":[{"host":"2001:db8::/32","port":1}],"ech":"keep","dns_unique_names":3,"dns_question_bytes":900}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := mustPolicy(t, row.in)
			got, err := json.Marshal(p)
			if err != nil || string(got) != row.want {
				t.Fatalf("got %s, %v; want %s", got, err, row.want)
			}
			var again Policy
			if err := json.Unmarshal(got, &again); err != nil || !reflect.DeepEqual(again, p) {
				t.Errorf("read again: got %+v, %v; want %+v", again, err, p)
			}
		})
	}
}

func TestPhasesJSON(t *testing.T) {
	want := Phases{{Mode: Public}, {Mode: Denylist, Targets: []Target{mustTarget(t, "a.test")}}, {}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Phases
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, %v; want %+v", text, got, err, want)
	}
}

// TestUnmarshalRefuses checks that a refused value leaves what was there.
func TestUnmarshalRefuses(t *testing.T) {
	p := Policy{Mode: Allowlist, Targets: []Target{mustTarget(t, "a.test")}}
	phases := Phases{p, p, p}
	target := p.Targets[0]
	for _, text := range []string{"null", "{}", "[]", `"*"`, `{"network_mode":"x"}`, `{"host":1}`} {
		for _, v := range []any{&p, &phases, &target} {
			if err := json.Unmarshal([]byte(text), v); err == nil {
				t.Errorf("%s into %T: no error", text, v)
			}
		}
	}
	if p.Mode != Allowlist || len(p.Targets) != 1 || !reflect.DeepEqual(phases, Phases{p, p, p}) || target != p.Targets[0] {
		t.Errorf("changed to %+v, %+v, %+v", p, phases, target)
	}
}

func TestWords(t *testing.T) {
	type words struct {
		Mode    Mode
		Phase   Phase
		Inbound Inbound
	}
	want := words{Denylist, Evaluation, InboundHost}
	text, err := json.Marshal(want)
	if err != nil || string(text) != `{"Mode":"denylist","Phase":"evaluation","Inbound":"host"}` {
		t.Fatalf("got %s, %v", text, err)
	}
	var got words
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := json.Unmarshal([]byte(`{"Inbound":"some"}`), &got); err == nil || got != want {
		t.Errorf("some: got %+v, %v", got, err)
	}
	if got := []string{Mode(9).String(), Phase(9).String(), Inbound(9).String(), Kind(9).String()}; !reflect.DeepEqual(got, []string{"no-network", "baseline", "all", ""}) {
		t.Errorf("values without a word: got %q", got)
	}
	for word, want := range map[string]string{
		"Run":      `"Run": is not a known phase; write "run"`,
		"verifier": `"verifier": is not a known phase; write "evaluation"`,
		"":         `"": is not a known phase; write "baseline", "run" or "evaluation"`,
	} {
		if _, err := ParsePhase(word); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", word, err, want)
		}
	}
	if m, err := ParseMode("denylist"); m != Denylist || err != nil {
		t.Errorf("denylist: got %v, %v", m, err)
	}
}
