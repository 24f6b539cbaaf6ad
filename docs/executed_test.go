package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/docs/shown"
)

// notRun are the blocks of commands that no test runs as they stand, by their document and first line, and why.
var notRun = map[string]string{
	"README.md: make demo":                                    "e2e's TestScenarios/demo runs it; make test is what runs everything",
	"README.md: sluice serve &":                               "it stays: e2e starts it for all documents",
	"README.md: sluice-proxy serve --policy phases.yaml":      "it stays: e2e's TestScenarios/by_hand does the same in the lab",
	"README.md: make images":                                  "a run of AgentCompass needs a model: e2e's TestScenarios/task runs its provider",
	"README.md: sluice images harbor":                         "e2e's TestHarborImage runs it",
	"docs/agentcompass.md: make images":                       "the same",
	"docs/agentcompass.md: sluice serve --adopt agentcompass": "it stays: e2e's TestAlone/adopted does it",
	"docs/commands.md: eval \"$(sluice completion bash)\"":    "a shell's own start: cmd/controller's TestCompletionScripts lets each read its script",
	"docs/contributing.md: make build":                        "it makes what the tests run",
	"docs/contributing.md: go test ./policy":                  "tests of tests: TestDocumentsTellToRunWhatExists looks for them",
	"docs/dependencies.md: make vulncheck":                    "it asks a data base of vulnerabilities, which changes by itself",
	"docs/harbor.md: sluice images harbor":                    "e2e's TestHarborImage runs both",
	"docs/operations.md: sluice logs -f":                      "it goes on: cmd/controller's logs tests and e2e's scripts read it",
	"docs/performance.md: compare all --rounds 15":            "it takes an hour, and is beside the repository",
	"docs/performance.md: network_mode: allowlist":            "a policy for it",
	"docs/performance.md: go test ./e2e -run '^$'":            "benchmarks: make test-bench runs each once",
	"docs/performance.md: go test ./matcher":                  "the same",
	"docs/performance.md: make bench-controller":              "it takes half an hour",
	"docs/performance.md: go test ./e2e -run-docker":          "make test-e2e runs it",
	"docs/redteam.md: go test ./e2e -run-docker":              "make test-e2e runs it",
	"docs/performance.md: make growth":                        "it takes four minutes",
	"docs/reliability.md: go build -o bin/figures":            "it takes six minutes",
	"docs/reliability.md: make soak":                          "it takes longer than a test may",
	"docs/phases.md: sluice status web":                       "a quarantine has to be made first: e2e's TestSwitchHungSidecar makes one",
	"docs/providers.md: sluice apply --provider daytona":      "it needs an account: lifecycle/daytona's tests have a server of their own",
	"docs/quickstart.md: make build":                          "it installs to the machine: e2e runs what it builds",
	"docs/quickstart.md: sudo sluice check --host":            "what it says is the machine's: cmd/controller's host test runs it",
	"docs/quickstart.md: sudo sluice serve &":                 "it stays: e2e starts it for all documents",
	"docs/quickstart.md: sluice logs -f web":                  "it goes on",
	"docs/quickstart.md: sudo pkill -x sluice":                "it would end the controller of other tests: e2e ends and clears its own",
	"docs/troubleshooting.md: sluice status web":              "about a container of the reader's; the quick start runs each",
	"examples/compose/README.md: make images":                 "e2e loads the image before",
	"examples/systemd/README.md: systemctl daemon-reload":     "no systemd runs in the lab: e2e's TestUnit does what the unit does",
	"examples/systemd/README.md: systemctl enable --now":      "the same",
}

// Every command that a document shows is run by a test: blocks of the language console by cmd/controller's
// TestDocumentsShowWhatHappens, those of shell-session by e2e, others are named above.
func TestEveryCommandIsRun(t *testing.T) {
	followed := ""
	for _, name := range []string{"documents_test.go", "swarm_test.go"} {
		text, err := os.ReadFile(filepath.Join("..", "e2e", name))
		if err != nil {
			t.Fatal(err)
		}
		followed += string(text)
	}
	all, err := shown.Documents("..")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, d := range all {
		path, err := filepath.Rel("..", d.Path)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range d.Blocks() {
			switch b.Language {
			case shown.Console:
			case shown.EngineConsole:
				if !strings.Contains(followed, `"`+path+`"`) {
					t.Errorf("%v: no test of e2e follows %s", b, path)
				}
			case "", "sh", "bash", "shell":
				known := false
				for key := range notRun {
					if strings.HasPrefix(path+": "+b.Text, key) {
						known, used[key] = true, true
					}
				}
				if !known {
					t.Errorf("%v: nothing runs %q: make it a block of %s or %s, or say here why not", b, b.Text, shown.Console, shown.EngineConsole)
				}
			}
		}
	}
	for key := range notRun {
		if !used[key] {
			t.Errorf("no document has the block %q any more", key)
		}
	}
}
