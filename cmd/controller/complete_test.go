package main

import (
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestComplete(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c", "sluice.sock")
	stop, err := startFake(path)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	var stderr strings.Builder
	if got := run(t.Context(), []string{"attach", "web", "--policy", "-", "--socket", path}, strings.NewReader("public"), io.Discard, &stderr); got != exitDone {
		t.Fatal(stderr.String())
	}
	const noFiles, withFiles, failed = "\n:4\n", "\n:0\n", ":1\n"
	for _, row := range []struct {
		name, line, socket string
		want               []string
	}{
		{"commands", "sta", path, []string{"status\t", noFiles}},
		{"container", "status ", path, []string{"web\tattached, baseline", noFiles}},
		{"second-argument", "status web ", path, []string{":4\n"}},
		{"phase", "phase web ", path, []string{"baseline\nrun\nevaluation", noFiles}},
		{"phase-flag", "attach web --phase ", path, []string{"baseline\nrun\nevaluation", noFiles}},
		{"file", "set web ", path, []string{":0\n"}},
		{"container-or-file", "report ", path, []string{"web\t", withFiles}},
		{"nobody-listens", "status ", "/nonexistent/sluice.sock", []string{failed}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Setenv("SLUICE_SOCKET", row.socket)
			var out strings.Builder
			if got := run(t.Context(), append([]string{"__complete"}, strings.Split(row.line, " ")...), nil, &out, io.Discard); got != exitDone {
				t.Errorf("exit code %d", got)
			}
			for _, want := range row.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("want %q in %q", want, out.String())
				}
			}
		})
	}
}

// The scripts are ones that the shells can read. Bash is everywhere; the others are asked where they are.
func TestCompletionScripts(t *testing.T) {
	for _, row := range []struct {
		shell, check string
		needed       bool
	}{{"bash", "-n", true}, {"zsh", "-n", false}, {"fish", "--no-execute", false}} {
		t.Run(row.shell, func(t *testing.T) {
			var script, stderr strings.Builder
			if got := run(t.Context(), []string{"completion", row.shell}, nil, &script, &stderr); got != exitDone || !strings.Contains(script.String(), "__complete") {
				t.Fatalf("exit code %d: %s%s", got, &stderr, &script)
			}
			path, err := exec.LookPath(row.shell)
			if err != nil && !row.needed {
				t.Skipf("%s is not installed; its script was made, and not read", row.shell)
			}
			if err != nil {
				t.Fatal(err)
			}
			shell := exec.Command(path, row.check)
			shell.Stdin = strings.NewReader(script.String())
			if out, err := shell.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
