package main

import (
	"strings"
	"testing"

	"sluice/dockernet/engine"
)

func TestPrintProblems(t *testing.T) {
	fault := engine.Problem{Check: "kernel", What: "release 4.19 is older than 5.10", Repair: "use a newer kernel"}
	warning := engine.Problem{Check: "dns", What: "names get out", Repair: "upgrade it", Warning: true}
	for _, row := range []struct {
		name   string
		engine string
		found  []engine.Problem
		json   bool
		want   string
		failed bool
	}{
		{"none", "", nil, false, "this host is ready\n", false},
		{"none-json", "", nil, true, "[]\n", false},
		{"engine", "Docker 29", nil, false, "info: engine: Docker 29\nthis host is ready\n", false},
		{"engine-json", "Docker 29", nil, true, `[{"check":"engine","severity":"info","what":"Docker 29"}]` + "\n", false},
		{"warning", "", []engine.Problem{warning}, false, "warning: dns: names get out\n  upgrade it\nthis host is ready, but for the warnings\n", false},
		{"error", "", []engine.Problem{fault, warning}, false,
			"error: kernel: release 4.19 is older than 5.10\n  use a newer kernel\nwarning: dns: names get out\n  upgrade it\n", true},
		{"error-json", "", []engine.Problem{fault}, true,
			`[{"check":"kernel","severity":"error","what":"release 4.19 is older than 5.10","repair":"use a newer kernel"}]` + "\n", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out strings.Builder
			cmd := newRoot()
			cmd.SetOut(&out)
			if err := printProblems(cmd, row.engine, row.found, row.json); (err != nil) != row.failed {
				t.Errorf("error %v", err)
			}
			if out.String() != row.want {
				t.Errorf("got %q, want %q", out.String(), row.want)
			}
		})
	}
}
