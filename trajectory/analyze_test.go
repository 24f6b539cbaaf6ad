package trajectory

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/lifecycle/evidence"
)

// compass makes AgentCompass's form of a trajectory of the tool calls of its steps; null is a step without a message.
func compass(t *testing.T, calls []json.RawMessage) []byte {
	t.Helper()
	type content struct {
		Calls json.RawMessage `json:"tool_calls"`
	}
	type step struct {
		ID      int      `json:"step_id"`
		Content *content `json:"assistant_content"`
	}
	steps := []step{}
	for i, c := range calls {
		s := step{ID: i + 1}
		if string(c) != "null" {
			s.Content = &content{c}
		}
		steps = append(steps, s)
	}
	text, err := json.Marshal(map[string]any{"trajectory": map[string]any{"steps": steps}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestAsAgentCompass compares with what AgentCompass 1.0.1 found. TestAnalysisAsAgentCompass of package e2e asks it
// again.
func TestAsAgentCompass(t *testing.T) {
	data, err := os.ReadFile("testdata/agentcompass.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var row struct {
			Calls []json.RawMessage `json:"tool_calls"`
			Want  json.RawMessage
		}
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		got, err := Analyze(compass(t, row.Calls))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var g, w any
		if err := errors.Join(json.Unmarshal(text, &g), json.Unmarshal(row.Want, &w)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(w, g); diff != "" {
			t.Errorf("%.300s: AgentCompass (-) and here (+):\n%s", line, diff)
		}
	}
}

func TestForms(t *testing.T) {
	const call = `[{"function": {"name": "bash", "arguments": "{\"command\": \"curl https://a.test\"}"}}]`
	for _, row := range []struct {
		name, in string
		tools    int
		network  int
		err      bool
	}{
		{"steps", `{"steps": [{"step_id": 7, "assistant_content": {"tool_calls": ` + call + `}}]}`, 1, 1, false},
		{"messages", `[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": ` + call + `}, {"role": "assistant", "content": "done"}]`, 1, 1, false},
		{"object-of-messages", `{"messages": [{"role": "assistant", "tool_calls": ` + call + `}]}`, 1, 1, false},
		{"calls-are-an-object", `{"steps": [{"assistant_content": {"tool_calls": {}}}]}`, 0, 0, false},
		{"empty", `{"steps": []}`, 0, 0, true},
		{"nothing", `{}`, 0, 0, true},
		{"text", `"x"`, 0, 0, true},
		{"cut-off", `{"steps": [`, 0, 0, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			a, err := Analyze([]byte(row.in))
			if (err != nil) != row.err || a.ToolSteps != row.tools || a.NetworkSteps != row.network {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
	if a, err := Analyze([]byte(`{"steps": [{"step_id": 7, "assistant_content": {"tool_calls": ` + call + `}}]}`)); err != nil || a.Details[0].ID != 7 {
		t.Errorf("got %+v, %v", a, err)
	}
}

// TestBad checks that the threshold is a ratio, which AgentCompass's 20 is not.
func TestBad(t *testing.T) {
	for _, row := range []struct {
		ratio, threshold float64
		want             bool
	}{
		{0.2, DefaultThreshold, false}, {0.2001, DefaultThreshold, true}, {1, DefaultThreshold, true}, {0, 0, false}, {1, 1, false},
	} {
		if got := (Analysis{Ratio: row.ratio}).Bad(row.threshold); got != row.want {
			t.Errorf("%v above %v: got %v", row.ratio, row.threshold, got)
		}
	}
}

func TestJoin(t *testing.T) {
	const in = `[{"role": "assistant", "tool_calls": [
		{"function": {"name": "bash", "arguments": "curl https://user:pw@Evil.test:8443/x http://ok.test http://evil.test"}},
		{"function": {"name": "bash", "arguments": "git clone git@code.test:a/b.git"}},
		{"function": {"name": "bash", "arguments": "ls https://not-a-network-command.test"}}]}]`
	a, err := Analyze([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	uses, rest := a.Join([]evidence.Phase{
		{Phase: "baseline", Attempts: []evidence.Attempt{{Target: "code.test", Verdict: "allow", Count: 9}}},
		{Phase: "run", Attempts: []evidence.Attempt{
			{Target: "evil.test", Verdict: "refuse", Count: 3}, {Target: "ok.test", Verdict: "allow", Count: 1},
			{Target: "ok.test", Verdict: "refuse", Count: 1}, {Target: "hidden.test", Verdict: "refuse", Count: 2},
		}},
	})
	wantUses := []Use{
		{Step: 1, Match: "curl", Target: "evil.test", Refused: 3, Verdict: "refused"},
		{Step: 1, Match: "curl", Target: "ok.test", Allowed: 1, Refused: 1, Verdict: "both"},
		{Step: 1, Match: "git clone", Target: "code.test", Verdict: "none"},
	}
	if diff := cmp.Diff(wantUses, uses); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Unexplained{{Target: "hidden.test", Refused: 2}}, rest); diff != "" {
		t.Error(diff)
	}
}

func FuzzAnalyze(f *testing.F) {
	f.Add([]byte(`[{"role":"assistant","tool_calls":[{"function":{"name":"bash","arguments":["curl",{"a":1e999}]}}]}]`))
	f.Fuzz(func(t *testing.T, in []byte) {
		a, err := Analyze(in)
		if err != nil {
			return
		}
		if a.NetworkSteps > a.ToolSteps || a.Ratio > 1 || len(a.Details) != a.NetworkSteps {
			t.Errorf("%q: %+v", in, a)
		}
		a.Join(nil)
	})
}
