package controller

import (
	"net/netip"
	"testing"

	"sluice/control"
	"sluice/controller/api"
	"sluice/policy"
)

// What goes straight in a phase that only observes is recorded with what its policy says itself.
func TestObserved(t *testing.T) {
	w := newWorld()
	w.start("web", id1)
	c, stop := w.control(t, t.TempDir())
	defer stop()
	p := parsed(t, `{"network_mode": "allowlist", "allowed_hosts": ["db:5432", "198.51.100.0/24"], "observe": true}`)
	s, err := c.Attach(t.Context(), "web", policy.Phases{policy.Run: p}, policy.Run, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Notes) == 0 || s.Notes[0] != "phase run only observes: it refuses nothing but what no policy opens" {
		t.Errorf("notes %q", s.Notes)
	}
	sub := c.Events().Subscribe()
	defer sub.Close()
	for _, row := range []struct{ to, verdict, reason, rule string }{
		{"198.51.100.9:123", "allow", "address-rule", "198.51.100.0/24"},
		{"203.0.113.9:123", "observed", "not-listed", ""},
		{"172.17.0.3:5432", "allow", "name-rule", ""},
		{"172.17.0.3:80", "observed", "not-listed", ""},
	} {
		to := netip.MustParseAddrPort(row.to)
		w.net(id1).refused <- Refused{By: "run", Observed: true, Protocol: "udp", Destination: to}
		e := <-sub.C
		got := control.Event{Phase: e.Phase, Verdict: e.Verdict, Reason: e.Reason, Rule: e.Rule, Target: e.Target, Port: e.Port}
		want := control.Event{Phase: "run", Verdict: row.verdict, Reason: row.reason, Rule: row.rule, Target: to.Addr().String(), Port: to.Port()}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
