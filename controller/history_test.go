package controller

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/policy"
)

// TestReport checks that a report has every change with its receipt, and what was tried in each phase, of that container
// alone and whether anybody follows the records or not.
func TestReport(t *testing.T) {
	w := newWorld()
	dir := t.TempDir()
	c, stop := w.control(t, dir)
	w.attached(t, c, "web", id1)
	w.attached(t, c, "other", id2)
	if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
		t.Fatal(err)
	}
	w.failing("gate both", errFake)
	if _, err := c.Phase(t.Context(), "web", policy.Evaluation, 0); err == nil {
		t.Fatal("no error")
	}
	w.failing("", nil)
	if _, err := c.Phase(t.Context(), "web", policy.Evaluation, 0); err != nil {
		t.Fatal(err)
	}
	w.audit <- control.Event{ContainerID: id1, Phase: "run", Protocol: "tls", Target: "evil.test", Port: 443, Verdict: "refuse", Reason: "no-network"}
	w.audit <- control.Event{ContainerID: id2, Phase: "run", Protocol: "tls", Target: "other.test", Port: 443, Verdict: "refuse"}
	w.audit <- control.Event{ContainerID: "nobody", Phase: "run", Verdict: "refuse"}
	w.net(id1).refused <- Refused{By: "evaluation", Protocol: "udp", Destination: netip.MustParseAddrPort("198.51.100.9:123")}
	report := func() (r api.Report) {
		t.Helper()
		r, err := c.Report(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	eventually(t, "both records are there", func() bool { return len(report().Traffic) == 2 })
	r := report()
	var changes []string
	for _, s := range r.Switches {
		changes = append(changes, fmt.Sprintf("%d %s %v", s.Generation, s.Phase, s.Problem != ""))
	}
	compare(t, "changes", changes, []string{"1 baseline false", "2 run false", "3 evaluation true", "4 evaluation false"})
	if a := r.Traffic[0].Attempts; r.Traffic[0].Phase != "run" || len(a) != 1 || a[0].Where() != "evil.test:443" {
		t.Errorf("run: %+v", r.Traffic[0])
	}
	if a := r.Traffic[1].Attempts; r.Traffic[1].Phase != "evaluation" || len(a) != 1 || a[0].Where() != "198.51.100.9:123" || a[0].Reason != "not-listed" {
		t.Errorf("evaluation: %+v", r.Traffic[1])
	}
	if r.Partial != "" || r.Earlier != 0 || len(r.Packets) != 3 || len(r.Status.Policies) != 3 || r.Now.Before(r.Since) {
		t.Errorf("report %+v", r)
	}

	stop()
	c, _ = w.control(t, dir)
	if r := report(); r.Partial == "" || len(r.Traffic) != 0 {
		t.Errorf("after a restart of the controller: %+v", r)
	}
	if err := c.Detach(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	w.audit <- control.Event{ContainerID: id1, Phase: "run", Verdict: "refuse"}
	if _, err := c.Report(t.Context(), "web"); code(err) != control.CodeNotFound {
		t.Errorf("after detach: %v", err)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	var h history
	for i := range keptSwitches + 3 {
		h.changed(time.Now(), api.Receipt{Generation: uint64(i)}, "")
	}
	for i := range keptAttempts + 2 {
		h.record(&control.Event{Phase: "run", Verdict: "refuse", Target: fmt.Sprint(i)})
	}
	if len(h.switches) != keptSwitches || h.earlier != 3 || h.switches[0].Generation != 3 || h.switches[keptSwitches-1].Generation != keptSwitches+2 {
		t.Errorf("%d switches from generation %d on, %d earlier", len(h.switches), h.switches[0].Generation, h.earlier)
	}
	if p := h.tried.Phases()[0]; len(p.Attempts) != keptAttempts || p.Untold != 2 {
		t.Errorf("%d attempts, %d untold", len(p.Attempts), p.Untold)
	}
}
