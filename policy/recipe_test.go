package policy

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

const fullRecipe = `
recipe: remote-agent
when: {benchmark: deepswe, harness: [codex, claude_code]}
baseline_network_policy: public
run_network_policy: no-network
requires:
- {phase: run, endpoint: model, why: the agent asks it from inside}
- {phase: evaluation, endpoint: "judge.test:443"}
`

func TestParseRecipe(t *testing.T) {
	r, err := ParseRecipe([]byte(fullRecipe))
	if err != nil {
		t.Fatal(err)
	}
	none, public := Policy{}, Policy{Mode: Public}
	want := Recipe{
		Name: "remote-agent", When: Match{Benchmarks: []string{"deepswe"}, Harnesses: []string{"codex", "claude_code"}},
		Layer: Layer{&public, &none, nil},
		Requires: []Requirement{
			{Phase: Run, Why: "the agent asks it from inside"},
			{Phase: Evaluation, Endpoint: mustTarget(t, "judge.test:443")},
		},
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, want %+v", r, want)
	}
	const endpoint = `write "model", or a host or an address with a port, as in "judge.example.com:443"`
	for _, row := range []struct{ in, want string }{
		{`{}`, "{...}: has no name; write it as recipe: NAME"},
		{`{"recipe": "a", "reqires": []}`, `/reqires: "reqires": is not a known field; write ` + strings.Join(recipeFields, ", ") + " or remove it"},
		{`{"recipe": "a", "requires": [{"phase": "run"}]}`, "/requires/0: {...}: has no endpoint; " + endpoint},
		{`{"recipe": "a", "requires": [{"endpoint": "a.test"}]}`, `/requires/0/endpoint: "a.test": is not one endpoint; ` + endpoint},
		{`{"recipe": "a", "requires": [{"endpoint": "*.a.test:1"}]}`, `/requires/0/endpoint: "*.a.test:1": is not one endpoint; ` + endpoint},
		{`{"recipe": "a", "requires": [{"endpoint": "a.test:1", "phase": "verifier"}]}`, `/requires/0/phase: "verifier": is not a known phase; write "evaluation"`},
		{`{"recipe": "a", "when": {"harness": []}}`, "/when/harness: [...]: is an empty list, which nothing matches; name something, or leave it out"},
		{`{"recipe": "a", "run_network_policy": "closed"}`, `/run_network_policy: "closed": is not a known mode; write "no-network", "public", "allowlist" or "denylist"`},
	} {
		if _, err := ParseRecipe([]byte(row.in)); err == nil || err.Error() != row.want {
			t.Errorf("%s:\n got %v\nwant %s", row.in, err, row.want)
		}
	}
}

func TestRecipeMatches(t *testing.T) {
	r, err := ParseRecipe([]byte(fullRecipe))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		task Task
		want bool
	}{
		{Task{"deepswe", "codex", "docker"}, true},
		{Task{"deepswe", "claude_code", ""}, true},
		{Task{"deepswe", "mini", "docker"}, false},
		{Task{"other", "codex", "docker"}, false},
		{Task{}, false},
	} {
		if got := r.Matches(row.task); got != row.want {
			t.Errorf("%+v: got %v", row.task, got)
		}
	}
}

func TestParseEndpoint(t *testing.T) {
	for _, row := range []struct{ in, want string }{
		{"https://API.test/v1", "api.test:443"},
		{"http://api.test", "api.test:80"},
		{"api.test:8000/v1", "api.test:8000"},
		{"api.test", "api.test:443"},
		{"https://user:secret@api.test:8443/v1?key=secret", "api.test:8443"},
		{"http://[2001:db8::1]:8080/v1", "[2001:db8::1]:8080"},
		{"http://192.0.2.1/v1", "192.0.2.1:80"},
	} {
		if got, err := ParseEndpoint(row.in); err != nil || got.String() != row.want {
			t.Errorf("%s: got %s, %v; want %s", row.in, got, err, row.want)
		}
	}
	for _, in := range []string{"", "https://", "ftp://a.test", "https://*.a.test", "https://a.test:0", "https://a.test:70000", "https://a b.test", "https://user:secret@", "http://[::1", "https://localhost:1"} {
		_, err := ParseEndpoint(in)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", in, err)
		}
	}
}

// listed judges as an allowlist of exact targets does, which is enough here.
func listed(p Policy, endpoint Target) (bool, string) {
	ok := p.Mode == Public || p.Mode == Allowlist && slices.Contains(p.Targets, endpoint)
	return ok, endpoint.String() + " is not listed"
}

func TestMakePlan(t *testing.T) {
	params := func(text string) Params {
		p, err := ParseParams([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	recipe := func(text string) Recipe {
		r, err := ParseRecipe([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const model = `{"network_mode": "allowlist", "allowed_hosts": ["api.test:443"]}`
	needsModel := recipe(`{"recipe": "r", "requires": [{"endpoint": "model", "why": "it runs inside"}]}`)
	for _, row := range []struct {
		name     string
		in       Inputs
		explicit string
		modes    string
		recipes  string
		notes    int
		err      string
	}{
		{name: "nothing", modes: "public public public"},
		{name: "other-recipe", in: Inputs{Recipes: []Recipe{recipe(fullRecipe)}}, modes: "public public public"},
		{name: "recipe", in: Inputs{Recipes: []Recipe{recipe(`{"recipe": "r", "run_network_policy": "no-network"}`)}}, modes: "public no-network public", recipes: "r"},
		{name: "over-recipe", in: Inputs{Recipes: []Recipe{recipe(`{"recipe": "r", "run_network_policy": "no-network"}`)}}, explicit: `{"run_network_policy": "public"}`, modes: "public public public", recipes: "r"},
		{name: "model-listed", in: Inputs{Recipes: []Recipe{needsModel}, Model: mustTarget(t, "api.test:443")}, explicit: `{"run_network_policy": ` + model + `}`, modes: "public allowlist public", recipes: "r"},
		{name: "model-blocked", in: Inputs{Recipes: []Recipe{needsModel}, Model: mustTarget(t, "api.test:443")}, explicit: `{"run_network_policy": "no-network"}`,
			err: `run_network_policy, from explicit, blocks the model's endpoint api.test:443, which the recipe "r" requires (it runs inside): api.test:443 is not listed. A recipe widens no policy: add the target where the policy comes from, or override the phase with --env-params '{"run_network_policy": ...}'`},
		{name: "model-other-port", in: Inputs{Recipes: []Recipe{needsModel}, Model: mustTarget(t, "api.test:8443")}, explicit: `{"run_network_policy": ` + model + `}`, err: "blocks the model's endpoint api.test:8443"},
		{name: "model-unknown", in: Inputs{Recipes: []Recipe{needsModel}}, explicit: `{"run_network_policy": "no-network"}`,
			err: `run_network_policy: the recipe "r" requires the model's endpoint, which is not known: give --model-base-url`},
		{name: "model-public", in: Inputs{Recipes: []Recipe{needsModel}}, modes: "public public public", recipes: "r"},
		{name: "model-from-the-host", in: Inputs{Model: mustTarget(t, "api.test:443")}, explicit: `{"run_network_policy": "no-network"}`, modes: "public no-network public", notes: 1},
		{name: "contradiction", in: Inputs{Recipes: []Recipe{recipe(`{"recipe": "a", "run_network_policy": "no-network"}`), recipe(`{"recipe": "b", "run_network_policy": "public"}`)}},
			err: `the recipes "a" and "b" give the phase run different policies`},
		{name: "older-name-in-error", in: Inputs{Recipes: []Recipe{recipe(`{"recipe": "r", "requires": [{"phase": "evaluation", "endpoint": "judge.test:443"}]}`)}}, explicit: `{"network_policy": "no-network"}`,
			err: "verifier_network_policy, from explicit, blocks the endpoint judge.test:443"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.explicit != "" {
				row.in.Explicit = params(row.explicit)
			}
			plan, err := MakePlan(row.in, listed)
			if row.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), row.err) && !strings.Contains(err.Error(), row.err) {
					t.Errorf("\n got %v\nwant %s", err, row.err)
				}
				return
			}
			var modes []string
			for _, p := range plan.Phases {
				modes = append(modes, p.Mode.String())
			}
			if err != nil || strings.Join(modes, " ") != row.modes || strings.Join(plan.Recipes, " ") != row.recipes || len(plan.Notes) != row.notes {
				t.Errorf("got %v, recipes %v, notes %q, %v", modes, plan.Recipes, plan.Notes, err)
			}
		})
	}
}
