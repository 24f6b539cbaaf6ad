package policy

import "testing"

func TestResolve(t *testing.T) {
	layer := func(text string) Layer {
		doc, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return doc.Phases
	}
	explicit := layer(`{"run_network_policy":"no-network"}`)
	sample := layer(`{"run_network_policy":"public","evaluation_network_policy":{"network_mode":"allowlist","allowed_hosts":["sample.test"]}}`)
	recipe := layer(`{"baseline_network_policy":{"network_mode":"denylist","denied_hosts":["recipe.test"]},"evaluation_network_policy":"no-network"}`)
	for _, row := range []struct {
		name                     string
		explicit, sample, recipe Layer
		modes                    [PhaseCount]Mode
		sources                  Sources
	}{
		{"nothing", Layer{}, Layer{}, Layer{}, [PhaseCount]Mode{Public, Public, Public}, Sources{}},
		{"all", explicit, sample, recipe, [PhaseCount]Mode{Denylist, NoNetwork, Allowlist}, Sources{FromRecipe, FromExplicit, FromSample}},
		{"without-explicit", Layer{}, sample, recipe, [PhaseCount]Mode{Denylist, Public, Allowlist}, Sources{FromRecipe, FromSample, FromSample}},
		{"recipe-alone", Layer{}, Layer{}, recipe, [PhaseCount]Mode{Denylist, Public, NoNetwork}, Sources{FromRecipe, FromDefault, FromRecipe}},
	} {
		t.Run(row.name, func(t *testing.T) {
			phases, sources := Resolve(row.explicit, row.sample, row.recipe)
			for phase, mode := range row.modes {
				if phases[phase].Mode != mode || sources[phase] != row.sources[phase] {
					t.Errorf("%s: got %s from %s, want %s from %s", Phase(phase), phases[phase].Mode, sources[phase], mode, row.sources[phase])
				}
			}
		})
	}
}
