package evidence

import (
	"slices"
	"testing"

	"sluice/lifecycle"
	"sluice/policy"
)

// TestAdvice has the rows of the seeds' tables of network problems that are about a policy.
func TestAdvice(t *testing.T) {
	one := 1
	step := func(b lifecycle.Boundary, p policy.Phase) lifecycle.Step {
		return lifecycle.Step{Boundary: b, Phase: p, Began: at(10), Seconds: 10, ExitCode: &one}
	}
	refused := func(phase, target string, port uint16, protocol, reason string, second int) Phase {
		return Phase{Phase: phase, Attempts: []Attempt{{Target: target, Port: port, Protocol: protocol, Verdict: Refused, Reason: reason, Rule: map[string]string{"denied": "*.test"}[reason], First: at(second), Last: at(second)},
			{Target: "fine.test", Port: 443, Verdict: Allowed, First: at(second), Last: at(second)}}}
	}
	zero := 0
	ok := step(lifecycle.RunTask, policy.Run)
	ok.ExitCode = &zero
	slow := ok
	slow.ExitCode, slow.TimedOut = nil, true
	for _, row := range []struct {
		name  string
		step  lifecycle.Step
		tried Phase
		mode  string
		older bool
		want  string
	}{
		{"set-up", step(lifecycle.PrepareTask, policy.Baseline), refused("baseline", "files.test", 443, "tls", "not-listed", 12), "allowlist", false,
			"prepare_task failed, and baseline_network_policy (allowlist) refused files.test:443 meanwhile: if it needs that, add files.test:443 to baseline_network_policy.allowed_hosts, or put what it needs into the image"},
		{"set-up-older", step(lifecycle.StartSession, policy.Baseline), refused("baseline", "files.test", 53, "dns-udp", "no-network", 12), "no-network", true,
			"start_session failed, and network_policy (no-network) refused files.test meanwhile: if it needs that, make network_policy an allowlist with files.test, or put what it needs into the image"},
		{"model", step(lifecycle.RunTask, policy.Run), refused("run", "model.test", 8443, "tls", "port-not-listed", 20), "allowlist", false,
			"run_task failed, and run_network_policy (allowlist) refused model.test:8443 meanwhile: if it needs that, add model.test:8443 to run_network_policy.allowed_hosts, or call the model from outside of the Environment"},
		{"model-slow", slow, refused("run", "model.test", 443, "tls", "not-listed", 12), "allowlist", false,
			"run_task failed, and run_network_policy (allowlist) refused model.test:443 meanwhile: if it needs that, add model.test:443 to run_network_policy.allowed_hosts, or call the model from outside of the Environment"},
		{"artifacts", step(lifecycle.CollectArtifacts, policy.Run), refused("run", "store.test", 443, "tls", "no-network", 10), "no-network", false,
			"collect_artifacts failed, and run_network_policy (no-network) refused store.test:443 meanwhile: if it needs that, make run_network_policy an allowlist with store.test:443, or keep the artifacts in the Environment and name them in artifacts"},
		{"verification", step(lifecycle.Evaluate, policy.Evaluation), refused("evaluation", "judge.test", 443, "tls", "not-listed", 12), "allowlist", false,
			"evaluate failed, and evaluation_network_policy (allowlist) refused judge.test:443 meanwhile: if it needs that, add judge.test:443 to evaluation_network_policy.allowed_hosts, or put what it needs into the evaluation's image"},
		{"denied", step(lifecycle.Evaluate, policy.Evaluation), refused("evaluation", "judge.test", 443, "tls", "denied", 12), "denylist", true,
			"evaluate failed, and verifier_network_policy (denylist) refused judge.test:443 meanwhile: if it needs that, take *.test out of verifier_network_policy.denied_hosts, or put what it needs into the evaluation's image"},
		{"floor", step(lifecycle.RunTask, policy.Run), refused("run", "169.254.169.254", 80, "tcp", "floor", 12), "public", false,
			"run_task failed, and run_network_policy (public) refused 169.254.169.254:80 meanwhile"},
		{"before", step(lifecycle.RunTask, policy.Run), refused("run", "model.test", 443, "tls", "not-listed", 9), "allowlist", false, ""},
		{"after", step(lifecycle.RunTask, policy.Run), refused("run", "model.test", 443, "tls", "not-listed", 21), "allowlist", false, ""},
		{"other-phase", step(lifecycle.RunTask, policy.Run), refused("evaluation", "model.test", 443, "tls", "not-listed", 12), "allowlist", false, ""},
		{"succeeded", ok, refused("run", "model.test", 443, "tls", "not-listed", 12), "allowlist", false, ""},
		{"switch", lifecycle.Step{Switch: true, Error: "it hangs", Phase: policy.Run, Began: at(10), Seconds: 10}, refused("run", "model.test", 443, "tls", "not-listed", 12), "allowlist", false, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			var want []string
			if row.want != "" {
				want = []string{row.want}
			}
			if got := Advise([]lifecycle.Step{row.step}, []Phase{row.tried}, map[string]string{row.step.Phase.String(): row.mode}, row.older); !slices.Equal(got, want) {
				t.Errorf("\n got %q\nwant %q", got, want)
			}
		})
	}
}

// TestAdviceOnRedirect checks that every host of a chain is named, and that many are cut short.
func TestAdviceOnRedirect(t *testing.T) {
	one := 1
	p := Phase{Phase: "run"}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		p.Attempts = append(p.Attempts, Attempt{Target: name + ".cdn.test", Port: 443, Protocol: "tls", Verdict: Refused, Reason: "not-listed", First: at(1), Last: at(2)})
	}
	got := Advise([]lifecycle.Step{{Boundary: lifecycle.RunTask, Phase: policy.Run, Began: at(0), Seconds: 3, ExitCode: &one}}, []Phase{p}, map[string]string{"run": "allowlist"}, false)
	want := "run_task failed, and run_network_policy (allowlist) refused a.cdn.test:443, b.cdn.test:443, c.cdn.test:443, d.cdn.test:443, e.cdn.test:443 and 2 more meanwhile: " +
		"if it needs that, add a.cdn.test:443, b.cdn.test:443, c.cdn.test:443, d.cdn.test:443, e.cdn.test:443 and 2 more to run_network_policy.allowed_hosts, or call the model from outside of the Environment"
	if !slices.Equal(got, []string{want}) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}
