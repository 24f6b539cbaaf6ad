package policy

import "testing"

func TestParseParams(t *testing.T) {
	const phases = "name the phases: baseline_network_policy, run_network_policy, evaluation_network_policy"
	for _, row := range []struct {
		name, in string
		modes    [PhaseCount]string // "" where the layer says nothing
		older    bool
		err      string
	}{
		{"nothing", `{}`, [3]string{}, false, ""},
		{"others", `{"image": "a:1", "network": "bridge", "n": [1]}`, [3]string{}, false, ""},
		{"one", `{"image": "a:1", "run_network_policy": "no-network"}`, [3]string{"", "no-network", ""}, false, ""},
		{"yaml", "run_network_policy: no-network\nevaluation_network_policy: public\n", [3]string{"", "no-network", "public"}, false, ""},
		{"older", `{"network_policy": "no-network", "id": 1}`, [3]string{"no-network", "no-network", "no-network"}, true, ""},
		{"older-verifier", `{"verifier_network_policy": "no-network"}`, [3]string{"", "", "no-network"}, true, ""},
		{"mixed", `{"network_policy": "public", "evaluation_network_policy": "public"}`, [3]string{}, false,
			"/network_policy: mixes the older field names with the present ones; write baseline_network_policy"},
		{"misspelt", `{"run_netwrok_policy": "no-network"}`, [3]string{}, false,
			`/run_netwrok_policy: "run_netwrok_policy": is not a known field about the network; write run_network_policy`},
		{"camel", `{"runNetworkPolicy": "no-network"}`, [3]string{}, false,
			`/runNetworkPolicy: "runNetworkPolicy": is not a known field about the network; write run_network_policy`},
		{"one-policy", `{"network_mode": "no-network"}`, [3]string{}, false,
			`/network_mode: "network_mode": is not a known field about the network; ` + phases},
		{"harbor", `{"allow_internet": false}`, [3]string{}, false,
			`/allow_internet: "allow_internet": is not a known field about the network; ` + phases},
		{"nested", `{"env_params": {"run_network_policy": "no-network"}}`, [3]string{}, false,
			`/env_params/run_network_policy: "run_network_policy": stands deeper than policies are read; move it to the top, or take it out`},
		{"nested-in-list", `{"tasks": [1, {"a": {"network_policy": "no-network"}}]}`, [3]string{}, false,
			`/tasks/1/a/network_policy: "network_policy": stands deeper than policies are read; move it to the top, or take it out`},
		{"null", `{"run_network_policy": null}`, [3]string{}, false,
			`/run_network_policy: null: is not a policy; write "public", "no-network" or an object with network_mode; leave a phase out to keep its default`},
		{"twice", `{"image": "a", "image": "b"}`, [3]string{}, false, `/image: "image": stands here twice; keep one`},
		{"list", `[]`, [3]string{}, false, `[...]: is not an object; write one, as in {"run_network_policy": "no-network"}`},
		{"cut-off", `{"run_network_policy"`, [3]string{}, false, "the JSON text ends too early; write it to its end"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := ParseParams([]byte(row.in))
			if row.err != "" {
				if err == nil || err.Error() != row.err {
					t.Errorf("\n got %v\nwant %s", err, row.err)
				}
				return
			}
			if err != nil || p.Older != row.older {
				t.Fatalf("got %+v, %v", p, err)
			}
			for phase, want := range row.modes {
				got := ""
				if p.Layer[phase] != nil {
					got = p.Layer[phase].Mode.String()
				}
				if got != want {
					t.Errorf("%s: got %q, want %q", Phase(phase), got, want)
				}
			}
		})
	}
	p, err := ParseParams([]byte(`{"network": "host", "n": 5, "b": true, "o": {}, "z": null}`))
	want := map[string]string{"network": "host", "n": "5", "b": "true", "o": "", "z": ""}
	if err != nil || len(p.Other) != len(want) {
		t.Fatalf("got %v, %v", p.Other, err)
	}
	for name, text := range want {
		if p.Other[name] != text {
			t.Errorf("%s: got %q, want %q", name, p.Other[name], text)
		}
	}
}
