package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sluice/controller/api"
	"sluice/lifecycle"
	"sluice/policy"
)

// TestStepLine checks what a person sees of each kind of step.
func TestStepLine(t *testing.T) {
	three := 3
	step := func(change func(*taskStep)) taskStep {
		s := taskStep{Mode: policy.NoNetwork, Step: lifecycle.Step{Boundary: lifecycle.RunTask, Environment: lifecycle.Shared, Phase: policy.Run,
			Generation: 2, Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local), Seconds: 1.5}}
		change(&s)
		return s
	}
	for _, row := range []struct {
		step taskStep
		want string
	}{
		{step(func(s *taskStep) { s.ExitCode = &three }), "03:04:05 run_task shared run no-network generation 2 1.500 s exit code 3"},
		{step(func(s *taskStep) { s.TimedOut = true }), "03:04:05 run_task shared run no-network generation 2 1.500 s timed out"},
		{step(func(s *taskStep) { s.Error = "broken" }), "03:04:05 run_task shared run no-network generation 2 1.500 s failed: broken"},
		{step(func(s *taskStep) { s.Boundary, s.Kept = lifecycle.Close, true }), "03:04:05 close shared run no-network generation 2 1.500 s kept"},
		{step(func(s *taskStep) {
			s.Boundary, s.Switch, s.Receipt = "", true, &taskReceipt{Receipt: api.Receipt{FlowsCut: 1, FlowsKept: 4}}
		}),
			"03:04:05 -> run shared run no-network generation 2 1.500 s 1 flow cut, 4 kept"},
	} {
		if got := strings.Join(strings.Fields(row.step.line()), " "); got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
}

// TestStepLineIsInert checks that an error that names what a workload has chosen does nothing to a terminal.
func TestStepLineIsInert(t *testing.T) {
	const evil = "copy /out: open a\x1b]0;b\x07\u009b31m: not a directory"
	if got := (taskStep{Step: lifecycle.Step{Error: evil}}).line(); strings.ContainsAny(got, "\x1b\x07\u009b") {
		t.Errorf("got %q", got)
	}
	if got := cleanLines(errors.New("first\n\t" + evil)); strings.ContainsAny(got, "\x1b\x07\u009b\t") || !strings.HasPrefix(got, "first\n    copy") {
		t.Errorf("got %q", got)
	}
}

// TestNoticeFits checks that the longest notice that is given lets a command start, and that a longer one is not given.
func TestNoticeFits(t *testing.T) {
	longest := strings.Repeat("x", maxVariable-len(noticeVariable)-1)
	told, fits := withNotice(lifecycle.Command{Env: []string{"A=b"}}, longest)
	if !fits || len(told.Env) != 2 {
		t.Fatalf("fits: %v, %d variables", fits, len(told.Env))
	}
	cmd := exec.CommandContext(t.Context(), "true")
	cmd.Env = told.Env
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	if told, fits := withNotice(lifecycle.Command{Env: []string{"A=b"}}, longest+"x"); fits || len(told.Env) != 1 {
		t.Errorf("one byte more: fits: %v, %d variables", fits, len(told.Env))
	}
}
