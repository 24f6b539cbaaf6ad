package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"sluice/e2e/harbor"
	"sluice/e2e/lab/client"
)

// TestHarborTrial lets the Docker environment of the released Harbor do what it does for a trial: it finds the image by
// itself, starts a task of two services, switches before and behind the agent, and removes everything.
func TestHarborTrial(t *testing.T) {
	h := newHarbor(t)
	cache, err := client.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	python, err := harbor.Python(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	task := filepath.Join(dir, "environment")
	if err := os.Mkdir(task, 0o755); err != nil {
		t.Fatal(err)
	}
	const compose = `
services:
  main:
    depends_on: [files]
  files:
    image: ` + client.Tag + `
    command: [python3, -m, http.server, --bind, 127.0.0.1, "8123"]
    init: true
`
	if err := os.WriteFile(filepath.Join(task, "docker-compose.yaml"), []byte(compose), 0o644); err != nil {
		t.Fatal(err)
	}
	policy := func(mode string, hosts ...string) harbor.Step {
		return harbor.Step{Policy: &harbor.Policy{Mode: mode, Hosts: hosts}}
	}
	const curl = "curl --fail --silent --show-error --max-time 10 --output /dev/null "
	steps := []struct {
		harbor.Step
		works bool
	}{
		{harbor.Step{Run: curl + "https://evil.test/"}, true},
		{policy("allowlist", "web.test", "*.any.test"), true},
		{harbor.Step{Run: curl + "https://web.test/ && " + curl + "https://a.any.test/"}, true},
		{harbor.Step{Run: curl + "https://evil.test/"}, false},
		{harbor.Step{Run: curl + "--retry 5 --retry-connrefused http://127.0.0.1:8123/"}, true}, // of the other service
		{policy("no-network"), true},
		{harbor.Step{Run: curl + "https://web.test/"}, false},
		{policy("public"), true},
		{harbor.Step{Run: curl + "https://evil.test/"}, true},
	}
	trial := harbor.Trial{Package: h.Package, Dir: dir, Name: "harbor-trial", Image: client.Tag, Begin: harbor.Policy{Mode: "public"}}
	for _, s := range steps {
		trial.Steps = append(trial.Steps, s.Step)
	}
	all, err := trial.Go(t.Context(), python, h.Environ)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(steps)+1 || all[0].Sidecar != h.image {
		t.Fatalf("%+v; want %d outcomes, and the sidecar %s", all, len(steps), h.image)
	}
	for i, s := range steps {
		got := all[i+1]
		if (got.Code == 0) != s.works {
			t.Errorf("step %d, %+v: %+v", i, s.Step, got)
		}
		if s.Policy != nil {
			t.Logf("Harbor's switch to %s: %.2f s", s.Policy.Mode, got.Seconds)
		}
	}
}
