package policy

import (
	"bytes"
	"testing"
)

// FuzzInputs checks that what decides about a task's policies is read without a panic, and that what is accepted is
// in normal form.
func FuzzInputs(f *testing.F) {
	f.Add([]byte(`{"run_network_policy": "no-network", "image": "a"}`), "https://u:p@api.test:8443/v1")
	f.Add([]byte(fullRecipe), "[::1]:80")
	f.Add([]byte("network_policy: {network_mode: allowlist, allowed_hosts: [a.test]}"), "http://%zz")
	f.Fuzz(func(t *testing.T, in []byte, url string) {
		if p, err := ParseParams(in); err == nil {
			_ = p.Over(p)
			for _, value := range p.Layer {
				if value != nil {
					if text, err := value.MarshalJSON(); err != nil || !bytes.Contains(text, []byte("network_mode")) {
						t.Errorf("%q: %s, %v", in, text, err)
					}
				}
			}
		}
		r, err := ParseRecipe(in)
		if err == nil && r.Name == "" {
			t.Errorf("%q: a recipe without a name", in)
		}
		model, err := ParseEndpoint(url)
		if err != nil {
			model = Target{}
		} else if model.Port == 0 || model.Kind == Wildcard || model.Kind == IPv4CIDR || model.Kind == IPv6CIDR {
			t.Errorf("%q: %+v is no endpoint", url, model)
		}
		_, _ = MakePlan(Inputs{Recipes: []Recipe{r}, Model: model}, listed)
	})
}
