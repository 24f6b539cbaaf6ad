package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"testing"

	"sluice/e2e/agentcompass"
	"sluice/policy"
	"sluice/policy/provider"
)

// ask has the real AgentCompass answer requests.
func ask(t *testing.T, requests []any) []json.RawMessage {
	t.Helper()
	if !*runDocker {
		t.Skip("needs what the scenarios need: go test ./e2e -run-docker")
	}
	answers, err := agentcompass.Ask(t.Context(), lab.python, requests)
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

// TestNoticeAsAgentCompass has AgentCompass's own functions answer what the tests of package policy compare with.
func TestNoticeAsAgentCompass(t *testing.T) {
	data, err := os.ReadFile("../policy/testdata/agentcompass/rollouts.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var requests, wants []any
	for line := range bytes.Lines(data) {
		var row struct {
			Policy, Input json.RawMessage // the order of members counts
			Encoded       bool
			Want          any
		}
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		wants = append(wants, row.Want)
		requests = append(requests, map[string]any{"do": "notice", "policy": row.Policy, "input": row.Input, "encoded": row.Encoded})
	}
	for i, answer := range ask(t, requests) {
		var got any
		if err := json.Unmarshal(answer, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, wants[i]) {
			t.Errorf("%s:\nAgentCompass %v\nrecorded %v", requests[i], got, wants[i])
		}
	}
}

// TestAnalysisAsAgentCompass has its own analyser answer what the tests of package trajectory compare with.
func TestAnalysisAsAgentCompass(t *testing.T) {
	data, err := os.ReadFile("../trajectory/testdata/agentcompass.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var requests, wants []any
	for line := range bytes.Lines(data) {
		var row struct {
			Calls json.RawMessage `json:"tool_calls"` // the order of members counts
			Want  any
		}
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		wants = append(wants, row.Want)
		requests = append(requests, map[string]any{"do": "analyze", "tool_calls": row.Calls})
	}
	for i, answer := range ask(t, requests) {
		var got struct{ Details any }
		if err := json.Unmarshal(answer, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got.Details, wants[i]) {
			t.Errorf("%s:\nAgentCompass %v\nrecorded %v", requests[i], got.Details, wants[i])
		}
	}
}

// TestSettingsAsAgentCompass compares the settings of hosted providers with those that AgentCompass sends.
func TestSettingsAsAgentCompass(t *testing.T) {
	policies := []string{
		`"public"`, `"no-network"`,
		`{"network_mode": "allowlist", "allowed_hosts": ["b.test", "*.a.test"]}`,
		`{"network_mode": "allowlist", "allowed_hosts": ["198.51.100.0/24", "192.0.2.1"]}`,
		`{"network_mode": "allowlist", "allowed_hosts": ["a.test", "2001:db8::1", "2001:db8::/32", "192.0.2.1"]}`,
	}
	var requests []any
	var specs []provider.Spec
	for _, name := range []string{"daytona", "modal"} {
		to, err := provider.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range policies {
			// The evaluation makes the second one dynamic.
			for _, evaluation := range []string{text, `"no-network"`, `"public"`} {
				s := provider.Spec{}
				for phase, text := range []string{text, text, evaluation} {
					if err := json.Unmarshal([]byte(text), &s.Phases[phase]); err != nil {
						t.Fatal(err)
					}
				}
				if to.Check(s) != nil {
					continue // provider's own tests say what is refused
				}
				specs = append(specs, s)
				requests = append(requests, map[string]any{"do": "settings", "provider": name, "policy": json.RawMessage(text),
					"dynamic": s.Phases[policy.Run].Digest() != s.Phases[policy.Evaluation].Digest()})
			}
		}
	}
	for i, answer := range ask(t, requests) {
		name := requests[i].(map[string]any)["provider"].(string)
		to, err := provider.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		settings, err := to.Settings(specs[i])
		if err != nil {
			t.Fatal(err)
		}
		var want struct{ Create, Update any }
		if err := json.Unmarshal(answer, &want); err != nil {
			t.Fatal(err)
		}
		same(t, name+" create", settings.Create, want.Create)
		if update, ok := settings.Update["baseline"]; ok && name == "modal" {
			same(t, name+" update", update, want.Update)
		}
	}
}

// TestProvidersAsAgentCompass compares which policies each provider enforces, one at a time.
func TestProvidersAsAgentCompass(t *testing.T) {
	hosts := func(format string, n int) string {
		list := []string{}
		for i := range n {
			list = append(list, fmt.Sprintf(format, i))
		}
		text, err := json.Marshal(map[string]any{"network_mode": "allowlist", "allowed_hosts": list})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var requests []any
	var ours []bool
	for _, name := range provider.Names() {
		to, err := provider.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{
			`"public"`, `"no-network"`, `{"network_mode": "denylist", "denied_hosts": ["a.test"]}`,
			hosts("a%d.test", 1), hosts("*.a%d.test", 1), hosts("a%d.test:443", 1), hosts("192.0.2.%d", 1), hosts("192.0.2.%d:22", 1),
			hosts("198.51.10%d.0/24", 1), hosts("2001:db8::%d", 1), hosts("2001:db8:%d::/48", 1),
			hosts("a%d.test", 20), hosts("a%d.test", 21), hosts("192.0.2.%d", 10), hosts("192.0.2.%d", 11),
			`{"network_mode": "allowlist", "allowed_hosts": ["a.test", "192.0.2.1"]}`,
		} {
			s := provider.Spec{}
			for phase := range s.Phases {
				if err := json.Unmarshal([]byte(text), &s.Phases[phase]); err != nil {
					t.Fatal(err)
				}
			}
			ours = append(ours, to.Check(s) == nil)
			requests = append(requests, map[string]any{"do": "accepts", "provider": name, "policy": json.RawMessage(text)})
		}
	}
	for i, answer := range ask(t, requests) {
		var theirs struct {
			Accepted bool
			Error    string
		}
		if err := json.Unmarshal(answer, &theirs); err != nil {
			t.Fatal(err)
		}
		if theirs.Accepted != ours[i] {
			t.Errorf("%s: AgentCompass accepts it: %v (%s); here: %v", requests[i], theirs.Accepted, theirs.Error, ours[i])
		}
	}
}

func same(t *testing.T, what string, text json.RawMessage, want any) {
	t.Helper()
	var got any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}
