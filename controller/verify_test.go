package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice/control"
	"sluice/controller/api"
	"sluice/dockernet/probe"
	"sluice/policy"
)

// Probe lets rules refuse that are in force, and count.
func (n *fakeNet) Probe(_ context.Context, p probe.Probe) (a probe.Answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &n.counted
	c.Links = 1
	if n.flooded { // the workload's own are refused all the time
		c.Never, c.Frames, c.Guard = c.Never+1, c.Frames+1, c.Guard+1
		for i := range c.Refused {
			c.Refused[i]++
		}
	}
	if answer, ok := n.passing[p.Kind]; ok {
		return answer
	}
	if o, ok := n.broken[p.Kind]; ok {
		return probe.Answer{Outcome: o}
	}
	switch p.Kind {
	case probe.TCP:
		c.Proxied++
		a.Outcome = probe.Closed
	case probe.UDP, probe.Echo:
		a.Outcome = probe.Refused
		if p.To.Addr().Is6() {
			a.Outcome = probe.Unreachable
			return a
		}
		c.Refused[n.gate.force[0].phase]++
	case probe.DNS:
		c.DNS++
		a.Outcome = probe.Blocked
	case probe.DNSTCP:
		c.Proxied++
		a.Outcome = probe.Blocked
	case probe.Connect:
		c.Proxied++
		a.Outcome, a.Decision = probe.Blocked, "told"
		if strings.HasPrefix(p.Name, "allowed.test:") {
			a.Outcome = probe.Answered
		}
	case probe.Loopback:
		a.Outcome = probe.Answered
	case probe.RawSource:
		c.Never++
		a.Outcome = probe.Refused
	case probe.Frame:
		c.Frames++
		a.Outcome, a.Sent, a.Stopped = probe.Silent, 1, 1
	case probe.ARP:
		c.Guard++
		a.Outcome, a.Sent, a.Arrived = probe.Silent, 1, 1
	}
	return a
}

func (n *fakeNet) Counted() (Counted, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counted, n.do("counted")
}

// impatient waits for nothing that does not come.
func impatient(t *testing.T) {
	count, record := countLimit, recordLimit
	countLimit, recordLimit = 2*askAgain, 0
	t.Cleanup(func() { countLimit, recordLimit = count, record })
}

func verdicts(v *api.Verification) map[string]api.Verdict {
	all := map[string]api.Verdict{}
	for _, p := range v.Probes {
		all[p.Name] = p.Verdict
	}
	return all
}

// A probe passes if it was refused and one of our counters says so; each way to fail shows, and nothing else does.
func TestVerify(t *testing.T) {
	impatient(t)
	allow := policy.Phases{policy.Run: parsed(t, `{"network_mode": "allowlist", "allowed_hosts": ["allowed.test"]}`)}
	for _, row := range []struct {
		name    string
		kind    probe.Kind
		outcome probe.Outcome
		probe   string
		verdict api.Verdict
	}{
		{"udp_leaks", probe.UDP, probe.Answered, "udp4", api.Leaked},
		{"udp_into_nothing", probe.UDP, probe.Silent, "udp4", api.Leaked},
		{"udp_refused_by_others", probe.UDP, probe.Refused, "udp4", api.Unproven},
		{"udp_cannot_be_sent", probe.UDP, probe.Failed, "quic", api.Leaked},
		{"tcp_leaks", probe.TCP, probe.Answered, "metadata", api.Leaked},
		{"tcp_closed_by_others", probe.TCP, probe.Closed, "tcp4", api.Unproven},
		{"name_leaks", probe.DNS, probe.Answered, "dns-udp", api.Leaked},
		{"name_refused_by_others", probe.DNS, probe.Blocked, "engine-resolver", api.Unproven},
		{"proxy_gone", probe.Connect, probe.Refused, "proxy-floor", api.Leaked},
		{"proxy_does_not_work", probe.Connect, probe.Silent, "reach", api.Broken},
		{"guard_gone", probe.ARP, probe.Silent, "forged-arp", api.Unproven},
		{"frames_leave", probe.Frame, probe.Silent, "raw-frame", api.Unproven},
		{"false_source_leaves", probe.RawSource, probe.Silent, "raw-source", api.Unproven},
		{"loopback_closed", probe.Loopback, probe.Refused, "loopback", api.Broken},
		{"holds", 255, 0, "udp4", api.Passed},
		{"no_ipv6", 255, 0, "udp6", api.Skipped},
		{"reached", 255, 0, "reach", api.Passed},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld()
			w.start("web", id1)
			c, stop := w.control(t, t.TempDir())
			defer stop()
			if _, err := c.Attach(t.Context(), "web", allow, policy.Run, api.Options{}); err != nil {
				t.Fatal(err)
			}
			w.net(id1).broken = map[probe.Kind]probe.Outcome{row.kind: row.outcome}
			v, err := c.Verify(t.Context(), "web", api.Verify{Reach: []string{"allowed.test:443"}})
			if err != nil {
				t.Fatal(err)
			}
			got := verdicts(&v)
			if got[row.probe] != row.verdict || v.OK != (row.kind == 255) || v.OK != (v.Problem() == "") || len(got) < 18 {
				t.Errorf("got %v, ok %v, problem %q", got, v.OK, v.Problem())
			}
		})
	}
}

// However many packets of the workload's own are refused meanwhile, what becomes of the probe itself decides.
func TestVerifyBesideAFlood(t *testing.T) {
	impatient(t)
	silent := func(a probe.Answer) probe.Answer { a.Outcome = probe.Silent; return a }
	for _, row := range []struct {
		name    string
		kind    probe.Kind
		answer  probe.Answer
		probe   string
		verdict api.Verdict
	}{
		{"frame-passes", probe.Frame, silent(probe.Answer{Sent: 1, Arrived: 1, Passed: 1}), "raw-frame", api.Leaked},
		{"frame-on-one-link-passes", probe.Frame, silent(probe.Answer{Sent: 2, Stopped: 1, Arrived: 1, Passed: 1}), "raw-frame", api.Leaked},
		{"frame-is-lost", probe.Frame, silent(probe.Answer{Sent: 1}), "raw-frame", api.Unproven},
		{"frame-on-one-link-is-lost", probe.Frame, silent(probe.Answer{Sent: 2, Stopped: 1}), "raw-frame", api.Unproven},
		{"frame-is-not-sent", probe.Frame, silent(probe.Answer{}), "raw-frame", api.Unproven},
		{"frame-meets-the-guard", probe.Frame, silent(probe.Answer{Sent: 1, Arrived: 1}), "raw-frame", api.Passed},
		{"arp-passes", probe.ARP, silent(probe.Answer{Sent: 1, Arrived: 1, Passed: 1}), "forged-arp", api.Leaked},
		{"arp-is-lost", probe.ARP, silent(probe.Answer{Sent: 1}), "forged-arp", api.Unproven},
		{"source-passes", probe.RawSource, silent(probe.Answer{Arrived: 1, Passed: 1}), "raw-source", api.Leaked},
		{"source-is-lost", probe.RawSource, silent(probe.Answer{}), "raw-source", api.Unproven},
		{"source-meets-the-guard", probe.RawSource, silent(probe.Answer{Arrived: 1}), "raw-source", api.Passed},
		{"udp-refused-by-others", probe.UDP, probe.Answer{Outcome: probe.Refused, Arrived: 1, Passed: 1}, "udp4", api.Leaked},
		{"udp-held-by-the-guard-alone", probe.UDP, probe.Answer{Outcome: probe.Refused, Arrived: 1}, "udp4", api.Leaked},
		{"holds", 255, probe.Answer{}, "raw-frame", api.Passed},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld()
			c, stop := w.control(t, t.TempDir())
			defer stop()
			w.attached(t, c, "web", id1)
			if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
				t.Fatal(err)
			}
			n := w.net(id1)
			n.flooded, n.passing = true, map[probe.Kind]probe.Answer{row.kind: row.answer}
			v, err := c.Verify(t.Context(), "web", api.Verify{})
			if err != nil {
				t.Fatal(err)
			}
			if got := verdicts(&v)[row.probe]; got != row.verdict || v.OK != (row.verdict == api.Passed) {
				t.Errorf("got %s, ok %v: %s", got, v.OK, v.Problem())
			}
		})
	}
}

// In public nothing applies but the floor and what is forged; a denylist is asked for a name that it denies.
func TestVerifyModes(t *testing.T) {
	impatient(t)
	for _, row := range []struct{ name, policy, skipped, passed string }{
		{"public", `"public"`, "tcp4 udp4 quic icmp4 dns-udp dns-tcp engine-resolver", "metadata metadata-udp forged-mark proxy-floor raw-frame"},
		{"no_network", `"no-network"`, "", "tcp4 udp4 quic icmp4 dns-udp metadata"},
		{"everything", `{"network_mode": "allowlist", "allowed_hosts": ["0.0.0.0/0", "*.invalid"]}`, "tcp4 udp4 quic dns-udp", "metadata"},
		{"everything_but_names", `{"network_mode": "denylist", "denied_hosts": ["*.evil.test"]}`, "tcp4 udp4", "dns-udp quic metadata"},
		{"everything_but_addresses", `{"network_mode": "denylist", "denied_hosts": ["198.51.100.0/24"]}`, "dns-udp", "tcp4 udp4 quic"},
		{"metadata_itself", `{"network_mode": "allowlist", "allowed_hosts": ["169.254.169.254"]}`, "metadata proxy-floor", "udp4"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld()
			w.start("web", id1)
			c, stop := w.control(t, t.TempDir())
			defer stop()
			p := parsed(t, row.policy)
			if _, err := c.Attach(t.Context(), "web", policy.Phases{p, p, p}, policy.Baseline, api.Options{}); err != nil {
				t.Fatal(err)
			}
			v, err := c.Verify(t.Context(), "web", api.Verify{})
			if err != nil || !v.OK {
				t.Fatalf("error %v: %s", err, v.Problem())
			}
			got := verdicts(&v)
			for want, list := range map[api.Verdict]string{api.Skipped: row.skipped, api.Passed: row.passed} {
				for _, name := range strings.Fields(list) {
					if got[name] != want {
						t.Errorf("%s: %s, want %s", name, got[name], want)
					}
				}
			}
			for _, k := range must(w.member(c).plan.checks(policy.Baseline, nil)) {
				if a := k.To.Addr(); k.skip == "" && a.IsValid() && !a.IsLoopback() && a != metadata &&
					!slices.Contains(nobodies, a) && !slices.Contains(nobodies6, a) {
					t.Errorf("%s goes to %v", k.name, a)
				}
			}
		})
	}
}

func must(list []check, err error) []check {
	if err != nil {
		panic(err)
	}
	return list
}

func (w *world) member(c *Controller) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[id1]
}

// The record that a probe has made is named, and those of others are not.
func TestVerifyRecords(t *testing.T) {
	w := newWorld()
	c, stop := w.control(t, t.TempDir())
	defer stop()
	w.attached(t, c, "web", id1)
	r := c.recordsAbout(id1)
	defer r.end()
	c.publish(control.Event{ContainerID: id1, Target: "192.0.2.1", Port: 9, Protocol: "tcp", Verdict: "refuse", Decision: "other"})
	c.publish(control.Event{ContainerID: id2, Target: "192.0.2.1", Port: 9, Protocol: "udp", Verdict: "refuse", Decision: "another"})
	c.publish(control.Event{ContainerID: id1, Target: "192.0.2.1", Port: 9, Protocol: "udp", Verdict: "refuse", Decision: "this"})
	k := check{Probe: probe.Probe{Kind: probe.UDP, To: netip.MustParseAddrPort("192.0.2.1:9")}}
	eventually(t, "the record is there", func() bool { return r.about(&k) == "this" })
	k.To = netip.MustParseAddrPort("192.0.2.1:443")
	if got := r.about(&k); got != "" {
		t.Errorf("port 443: %s", got)
	}
}

// What cannot be verified is an error, and with Quarantine nothing passes from then on.
func TestVerifyQuarantines(t *testing.T) {
	impatient(t)
	w := newWorld()
	c, stop := w.control(t, t.TempDir())
	defer stop()
	w.attached(t, c, "web", id1)
	if _, err := c.Verify(t.Context(), "web", api.Verify{Reach: []string{"nowhere"}}); !errors.Is(err, control.ErrInvalid) {
		t.Errorf("reach: %v", err)
	}
	if _, err := c.Verify(t.Context(), "nobody", api.Verify{}); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("nobody: %v", err)
	}
	w.net(id1).broken = map[probe.Kind]probe.Outcome{probe.ARP: probe.Silent}
	if v, err := c.Verify(t.Context(), "web", api.Verify{}); err != nil || v.OK {
		t.Errorf("ok %v, error %v", v.OK, err)
	}
	if s, err := c.Status(t.Context(), "web"); err != nil || s.State != api.Attached {
		t.Errorf("without quarantine: %s, error %v", s.State, err)
	}
	w.failing("counted", errFake)
	if _, err := c.Verify(t.Context(), "web", api.Verify{Quarantine: true}); !errors.Is(err, errFake) {
		t.Errorf("counters: %v", err)
	}
	s, err := c.Status(t.Context(), "web")
	if err != nil || s.State != api.Quarantined || !strings.HasPrefix(s.Problem, "verifying failed: ") {
		t.Errorf("%s (%s), error %v", s.State, s.Problem, err)
	}
	if _, err := c.Verify(t.Context(), "web", api.Verify{}); !errors.Is(err, control.ErrQuarantined) {
		t.Errorf("in quarantine: %v", err)
	}
}

func parsed(t *testing.T, text string) policy.Policy {
	t.Helper()
	p, err := policy.ParsePolicy([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProbesAreCounted(t *testing.T) {
	impatient(t)
	w := newWorld()
	c, stop := w.control(t, t.TempDir())
	defer stop()
	w.attached(t, c, "web", id1)
	if text := scrape(t, c); !strings.Contains(text, `sluice_probes_total{verdict="leak"} 0`) {
		t.Errorf("before any: %s", text)
	}
	if _, err := c.Phase(t.Context(), "web", policy.Run, 0); err != nil {
		t.Fatal(err)
	}
	w.net(id1).broken = map[probe.Kind]probe.Outcome{probe.UDP: probe.Answered}
	v, err := c.Verify(t.Context(), "web", api.Verify{})
	if err != nil {
		t.Fatal(err)
	}
	leaks := 0
	for _, p := range v.Probes {
		if p.Verdict == api.Leaked {
			leaks++
		}
	}
	if text := scrape(t, c); leaks == 0 || !strings.Contains(text, fmt.Sprintf(`sluice_probes_total{verdict="leak"} %d`, leaks)) {
		t.Errorf("%d leaks: %s", leaks, text)
	}
}

// A connection that the proxy would have carried is a leak, though nobody was there to take it.
func TestClosedIsNoProof(t *testing.T) {
	closed := check{Probe: probe.Probe{Kind: probe.TCP, To: netip.AddrPortFrom(probe.Nobody4, discardPort)}, want: wantRefused, answer: probe.Answer{Outcome: probe.Closed}}
	other := closed
	other.want = wantWorks
	for _, row := range []struct {
		name string
		of   check
		e    control.Event
		want bool
	}{
		{"unreachable", closed, control.Event{Target: "192.0.2.1", Port: 9, Protocol: "tcp", Verdict: "error", Reason: "unreachable"}, true},
		{"allowed", closed, control.Event{Target: "192.0.2.1", Port: 9, Protocol: "tcp", Verdict: "allow", Reason: "public"}, true},
		{"refused", closed, control.Event{Target: "192.0.2.1", Port: 9, Protocol: "tcp", Verdict: "refuse", Reason: "not-listed"}, false},
		{"left", closed, control.Event{Target: "192.0.2.1", Port: 9, Protocol: "tcp", Verdict: "error", Reason: "client-gone"}, false},
		{"other-port", closed, control.Event{Target: "192.0.2.1", Port: 80, Protocol: "tcp", Verdict: "allow", Reason: "public"}, false},
		{"wanted", other, control.Event{Target: "192.0.2.1", Port: 9, Protocol: "tcp", Verdict: "allow", Reason: "public"}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := &records{all: []control.Event{row.e}}
			if reason, got := r.letThrough(&row.of); got != row.want {
				t.Errorf("got %v (%s), want %v", got, reason, row.want)
			}
		})
	}
}
