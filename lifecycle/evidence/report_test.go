package evidence

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"sluice/control"
	"sluice/controller/api"
	"sluice/lifecycle"
	"sluice/policy"
)

const resultText = `{"task": "t1", "baseline_network_mode": "public", "run_network_mode": "no-network", "evaluation_network_mode": "public",
	"began": "2026-01-02T03:04:05Z", "audit": {"records": 1, "complete": false, "problem": "the stream ended", "head": "sha256:0"},
	"steps": [{"boundary": "open", "environment": "shared", "phase": "baseline", "generation": 1, "began": "2026-01-02T03:04:05Z", "seconds": 1},
		{"switch": true, "environment": "shared", "phase": "run", "generation": 2, "receipt": {"flows_cut": 3, "ms": 2.5, "digest": "sha256:1"}, "began": "2026-01-02T03:04:06Z", "seconds": 0.1}],
	"traffic": [{"phase": "run", "refused": 2, "attempts": [{"target": "evil.test", "port": 443, "protocol": "tls", "verdict": "refuse", "reason": "not-listed", "count": 2}]}]}`

func TestReadReport(t *testing.T) {
	for name, text := range map[string]string{"indented": resultText, "one-line": strings.NewReplacer("\n", "", "\t", "", `": `, `":`).Replace(resultText)} {
		r, err := ReadReport(strings.NewReader(text))
		if err != nil || r.Task != "t1" || r.Modes["run"] != "no-network" || len(r.Steps) != 2 || len(r.Phases) != 1 || !r.Violation || r.Problem != "the stream ended" || r.Head != "sha256:0" {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
	file, _ := chain(t)
	r, err := ReadReport(bytes.NewReader(file))
	if err != nil || len(r.Steps) != 1 || len(r.Phases) != 1 || r.Phases[0].Refused != 5 || !r.Violation {
		t.Errorf("audit: got %+v, %v", r, err)
	}
	if r, err := ReadReport(strings.NewReader("")); err != nil || len(r.Phases) != 0 {
		t.Errorf("empty: got %+v, %v", r, err)
	}
	for _, in := range []string{`{"task": 5}`, `{ "x": 1 }`, "x"} {
		if r, err := ReadReport(strings.NewReader(in)); err == nil {
			t.Errorf("%s: got %+v", in, r)
		}
	}
}

// TestHTML checks that the page loads nothing and that what stands in a record stays text.
func TestHTML(t *testing.T) {
	var sum Summary
	for _, target := range []string{"<script>alert(1)</script>", `"onmouseover="x`, "javascript:x"} {
		sum.Add(&control.Event{Time: at(1), Phase: "run", Verdict: "refuse", Reason: "not-listed", Target: target, Port: 443, Protocol: "</td><img src=x>"})
	}
	r := Report{Task: "<b>t</b>", Modes: map[string]string{"run": "no-network"}, Phases: sum.Phases(), Violation: true, Error: "<i>broken</i>",
		Steps: []lifecycle.Step{
			{Boundary: lifecycle.Open, Phase: policy.Baseline, Generation: 1, Began: at(1), Seconds: 2},
			{Switch: true, Phase: policy.Run, Generation: 2, Began: at(3), Seconds: 1, Receipt: &api.Receipt{FlowsCut: 7, Digest: "sha256:x"}},
		}}
	var b bytes.Buffer
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, bad := range []string{"<script", "<img", "<b>t", "<i>broken", ` src="`, "href=", "url(", "@import", "http:", "https:", "<link", `="onmouse`} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{"&lt;script&gt;alert(1)&lt;/script&gt;:443", "the agent tried what its policy refuses", "left:66.6", "would need", "width=device-width"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestHeads(t *testing.T) {
	heads, err := Heads(strings.NewReader(`{"steps": [{"audit_head": "a", "receipt": {"audit_head": "a"}}, {"audit_head": "b"},
		{"audit_head": "c", "receipt": {"audit_head": "forged"}}], "audit": {"head": "d"}}`))
	if err != nil || strings.Join(heads, " ") != "a b c forged d" {
		t.Errorf("got %q, %v", heads, err)
	}
	for _, text := range []string{resultText[:50], `{"steps": []}`, "x"} {
		if heads, err := Heads(strings.NewReader(text)); err == nil {
			t.Errorf("%s: got %q", text, heads)
		}
	}
}

func TestEnforcement(t *testing.T) {
	for _, row := range []struct {
		e     Enforcement
		whole bool
		want  string
	}{
		{Enforcement{BeforeFirstProcess: true, Generations: make([]Generation, 4)}, true, "a policy was in force before the first process and ever after, in 4 generations"},
		{Enforcement{}, false, "the first process may have begun before its policy was in force"},
		{Enforcement{BeforeFirstProcess: true, UncoveredMilliseconds: 2.5}, false, "for 2.5 ms no policy was in force"},
		{Enforcement{BeforeFirstProcess: true, Unknown: "x"}, false, "whether a policy was in force all the time is not known: x"},
	} {
		if row.e.Whole() != row.whole || row.e.String() != row.want {
			t.Errorf("%+v: got %v, %s", row.e, row.e.Whole(), row.e)
		}
	}
	steps := []lifecycle.Step{
		{Environment: lifecycle.Agent, Boundary: lifecycle.Open, Receipt: &api.Receipt{Generation: 1, Phase: "baseline", Digest: "d1"}},
		{Environment: lifecycle.Agent, Boundary: lifecycle.RunTask},
		{Environment: lifecycle.Agent, Switch: true, Receipt: &api.Receipt{Generation: 2, Phase: "run", Digest: "d2"}},
		{Environment: lifecycle.Evaluation, Boundary: lifecycle.EvaluationOpen, Receipt: &api.Receipt{Generation: 1, Phase: "baseline", Digest: "d1"}},
	}
	got := Generations(steps, nil)
	if len(got) != 3 || got[1] != (Generation{lifecycle.Agent, 2, "run", "d2"}) {
		t.Errorf("got %+v", got)
	}
	known, ok := GenerationsOf(lifecycle.Agent, api.Report{Switches: []api.Switch{{Receipt: api.Receipt{Generation: 1}}, {Receipt: api.Receipt{Generation: 2}, Problem: "x"}, {Receipt: api.Receipt{Generation: 3}}}})
	if !ok || len(known) != 2 {
		t.Errorf("got %+v, %v", known, ok)
	}
	if got := Generations(steps, map[lifecycle.Role][]Generation{lifecycle.Agent: known}); len(got) != 3 || got[1].Generation != 3 || got[2].Environment != lifecycle.Evaluation {
		t.Errorf("got %+v", got)
	}
	for _, r := range []api.Report{{Partial: "x"}, {Earlier: 1}} {
		if _, ok := GenerationsOf(lifecycle.Agent, r); ok {
			t.Errorf("%+v is all", r)
		}
	}
}

func TestBars(t *testing.T) {
	if bars := (Report{}).Bars(); bars != nil {
		t.Errorf("no steps: got %+v", bars)
	}
	bars := Report{Steps: []lifecycle.Step{{Boundary: lifecycle.Open, Began: at(10), Seconds: 1}, {Switch: true, Phase: policy.Run, Began: at(11), Seconds: 3}}}.Bars()
	if bars[0].Left != 0 || bars[0].Width != 25 || bars[1].Left != 25 || bars[1].Width != 75 || bars[1].Name != "→ run" {
		t.Errorf("got %+v", bars)
	}
	if bars := (Report{Steps: []lifecycle.Step{{Began: at(1)}}}).Bars(); bars[0].Width != 0 {
		t.Errorf("no time: got %+v", bars)
	}
}

func FuzzReadReport(f *testing.F) {
	f.Add([]byte(resultText))
	f.Add([]byte(`{"phase":"run","verdict":"refuse","target":"a.test"}` + "\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := ReadReport(bytes.NewReader(in))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := r.WriteHTML(&b); err != nil {
			t.Error(err)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	})
}
