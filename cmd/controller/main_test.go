package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sluice": main})
}

// TestScripts runs the command lines in testdata/script, each in a directory of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"controller": cmdController},
	})
}

func TestExitCodes(t *testing.T) {
	for _, row := range []struct {
		name, args, stdin string
		want              int
	}{
		{"help", "", "", exitDone},
		{"check-ok", "check -", "public", exitDone},
		{"check-refused", "check -", "Public", exitFailed},
		{"check-json-refused", "check - --json", "Public", exitFailed},
		{"check-no-file", "check /nonexistent/policy.yaml", "", exitFailed},
		{"check-nothing", "check", "", exitUsage},
		{"notice-refused", "notice -", "Public", exitFailed},
		{"notice-two", "notice - -", "public", exitUsage},
		{"notice-phase", "notice - --phase Run", "public", exitUsage},
		{"explain-ok", "explain --policy - ok.test:443", "no-network", exitDone},
		{"explain-refused", "explain --policy - ok.test:443", "", exitFailed},
		{"explain-no-policy", "explain ok.test:443", "", exitUsage},
		{"explain-no-target", "explain --policy -", "public", exitUsage},
		{"explain-port", "explain --policy - ok.test:0", "public", exitUsage},
		{"explain-url", "explain --policy - https://ok.test", "public", exitUsage},
		{"explain-bracket", "explain --policy - [::1", "public", exitUsage},
		{"unknown-command", "chekc", "", exitUsage},
		{"unknown-flag", "check --yaml -", "public", exitUsage},
		{"version", "version", "", exitDone},
		{"version-args", "version x", "", exitUsage},
		{"attach-no-policy", "attach web", "", exitUsage},
		{"attach-bad-policy", "attach web --policy -", "Public", exitFailed},
		{"attach-bad-phase", "attach web --policy - --phase Run", "public", exitUsage},
		{"attach-nobody-listens", "attach web --policy - --socket /nonexistent/sluice.sock", "public", exitFailed},
		{"phase-unknown", "phase web later", "", exitUsage},
		{"phase-missing", "phase web", "", exitUsage},
		{"phase-nobody-listens", "phase web run --socket /nonexistent/sluice.sock", "", exitFailed},
		{"set-no-file", "set web /nonexistent/policy.yaml", "", exitFailed},
		{"explain-container-nobody-listens", "explain web a.test:1 --socket /nonexistent/sluice.sock", "", exitFailed},
		{"logs-without-follow", "logs", "", exitUsage},
		{"ls-args", "ls web", "", exitUsage},
		{"serve-relative-socket", "serve --socket sluice.sock", "", exitUsage},
		{"serve-ui-for-everybody", "serve --ui :9465", "", exitUsage},
		{"serve-ui-elsewhere", "serve --ui 192.0.2.1:9465", "", exitUsage},
		{"serve-ui-no-port", "serve --ui 127.0.0.1", "", exitUsage},
		{"completion-no-shell", "completion", "", exitUsage},
		{"completion-other-shell", "completion tcsh", "", exitUsage},
		{"images-no-binary", "images harbor --binary /nonexistent/sluice-harbor", "", exitFailed},
		{"images-args", "images harbor x", "", exitUsage},
		{"network-unknown", "network make x", "", exitUsage},
	} {
		t.Run(row.name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			got := run(context.Background(), strings.Fields(row.args), strings.NewReader(row.stdin), &stdout, &stderr)
			if got != row.want {
				t.Errorf("exit code %d, want %d\n%s%s", got, row.want, &stdout, &stderr)
			}
			if usage := strings.HasSuffix(stderr.String(), " --help' for usage.\n"); usage != (row.want == exitUsage) {
				t.Errorf("stderr: %s", &stderr)
			}
		})
	}
}

// TestExamples checks that the help of every command shows an example.
func TestExamples(t *testing.T) {
	var check func(*cobra.Command)
	check = func(parent *cobra.Command) {
		for _, cmd := range parent.Commands() {
			if !strings.HasPrefix(cmd.Example, "  "+cmd.CommandPath()+" ") && cmd.Example != "  "+cmd.CommandPath() {
				t.Errorf("%s: the example is %q", cmd.CommandPath(), cmd.Example)
			}
			check(cmd)
		}
	}
	check(newRoot())
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestLostOutput checks that output which did not arrive is a failure.
func TestLostOutput(t *testing.T) {
	var stderr strings.Builder
	got := run(context.Background(), []string{"notice", "-"}, strings.NewReader("no-network"), fullDisk{}, &stderr)
	if want := "sluice: write the output: no space left\n"; got != exitFailed || stderr.String() != want {
		t.Errorf("exit code %d, stderr %q; want %d, %q", got, &stderr, exitFailed, want)
	}
}

// TestNoticeOfGoldenFiles checks that stdout has the notice and a newline, and nothing else.
func TestNoticeOfGoldenFiles(t *testing.T) {
	golden, err := os.ReadFile("../../policy/testdata/notice/no-network.txt")
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr strings.Builder
	got := run(context.Background(), []string{"notice", "-"}, strings.NewReader("no-network"), &stdout, &stderr)
	if got != exitDone || stdout.String() != string(golden)+"\n" || stderr.String() != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q", got, &stdout, &stderr)
	}
}
