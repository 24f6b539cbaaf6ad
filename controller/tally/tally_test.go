package tally

import (
	"fmt"
	"testing"
	"time"

	"sluice/control"
)

func at(second int) time.Time { return time.Unix(int64(second), 0).UTC() }

func TestSummary(t *testing.T) {
	var s Summary
	for _, e := range []control.Event{
		{Time: at(5), Phase: "run", Generation: 2, Protocol: "connect", Target: "evil.test", Port: 443, Verdict: "refuse", Reason: "not-listed"},
		{Time: at(3), Phase: "run", Generation: 2, Protocol: "connect", Target: "evil.test", Port: 443, Verdict: "refuse", Reason: "not-listed"},
		{Time: at(4), Phase: "run", Generation: 2, Protocol: "dns-udp", Target: "evil.test", Port: 53, Verdict: "refuse", Reason: "not-listed"},
		{Time: at(6), Phase: "run", Generation: 3, Protocol: "tcp", Target: "ok.test", Port: 443, Verdict: "allow", Reason: "name-rule", Rule: "ok.test:443", BytesIn: 7, BytesOut: 5},
		{Time: at(7), Phase: "run", Generation: 3, Protocol: "tcp", Target: "ok.test", Port: 443, Verdict: "cut"},
		{Time: at(8), Phase: "run", Generation: 3, Protocol: "tcp", Target: "gone.test", Port: 443, Verdict: "error"},
		{Time: at(1), Phase: "baseline", Generation: 1, Protocol: "tcp", Target: "ok.test", Port: 80, Verdict: "allow", BytesIn: 1},
		{Time: at(9), Phase: "evaluation", Generation: 4, Protocol: "tcp", Target: "x.test", Port: 1, Verdict: "strange"},
	} {
		s.Add(&e)
	}
	phases := s.Phases()
	if len(phases) != 3 || phases[0].Phase != "baseline" || phases[1].Phase != "run" || phases[2].Phase != "evaluation" || s.Records() != 8 {
		t.Fatalf("got %+v", phases)
	}
	run := phases[1]
	if run.Allowed != 1 || run.Refused != 3 || run.Failed != 1 || run.Cut != 1 || run.NamesRefused != 1 || run.BytesIn != 7 || run.BytesOut != 5 ||
		!run.First.Equal(at(3)) || !run.Last.Equal(at(8)) || fmt.Sprint(run.Generations) != "[2 3]" {
		t.Errorf("got %+v", run)
	}
	if a := run.Attempts[0]; a.Where() != "evil.test:443" || a.Count != 2 || !a.First.Equal(at(3)) || !a.Last.Equal(at(5)) {
		t.Errorf("the first attempt is %+v", a)
	}
	if a := run.Attempts[1]; a.Where() != "evil.test" || a.Protocol != "dns-udp" {
		t.Errorf("the second attempt is %+v", a)
	}
	if phases[2].Refused != 1 {
		t.Errorf("a verdict that is not known counts as refused: %+v", phases[2])
	}
}

func TestSummaryIsBounded(t *testing.T) {
	for limit, want := range map[int]int{0: MaxAttempts, 3: 3} {
		s := Summary{Limit: limit}
		for i := range want + 5 {
			s.Add(&control.Event{Phase: "run", Verdict: "refuse", Target: fmt.Sprintf("h%d.test", i)})
		}
		if p := s.Phases()[0]; len(p.Attempts) != want || p.Untold != 5 || p.Refused != uint64(want+5) {
			t.Errorf("%d attempts, %d untold, %d refused", len(p.Attempts), p.Untold, p.Refused)
		}
	}
}

func TestMissing(t *testing.T) {
	for _, row := range []struct {
		a    Attempt
		want string
	}{
		{Attempt{Target: "a.test", Port: 443, Verdict: Refused, Reason: "not-listed"}, "a.test:443"},
		{Attempt{Target: "2001:db8::1", Port: 443, Verdict: Refused, Reason: "not-listed"}, "[2001:db8::1]:443"},
		{Attempt{Target: "a.test", Port: 53, Protocol: "dns-udp", Verdict: Refused, Reason: "not-listed"}, "a.test"},
		{Attempt{Target: "169.254.169.254", Port: 80, Verdict: Refused, Reason: "floor"}, ""},
		{Attempt{Target: "a.test", Port: 443, Verdict: Allowed}, ""},
	} {
		if got := row.a.Missing(); got != row.want {
			t.Errorf("%+v: got %q, want %q", row.a, got, row.want)
		}
	}
}
