package proxy

import (
	"net/netip"
	"testing"

	"sluice/matcher"
	"sluice/policy"
)

// A record says what the policy would have done, where nothing was refused because it only observes.
func TestReportObserves(t *testing.T) {
	p, err := policy.ParsePolicy([]byte(`{"network_mode": "allowlist", "allowed_hosts": ["a.test:443", "*.w.test", "198.51.100.1"], "observe": true}`))
	if err != nil {
		t.Fatal(err)
	}
	set, err := matcher.Compile(p, matcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	public := netip.MustParseAddr("198.51.100.7")
	for _, row := range []struct {
		name    string
		target  endpoint
		address netip.Addr
		outcome outcome
		reason  matcher.Reason
		rule    string
	}{
		{"name", endpoint{host: "a.test", port: 443}, public, allowed, matcher.NameRule, "a.test:443"},
		{"other_port", endpoint{host: "a.test", port: 80}, public, observed, matcher.PortNotListed, ""},
		{"other_name", endpoint{host: "b.test", port: 443}, public, observed, matcher.NotListed, ""},
		{"private", endpoint{host: "x.w.test", port: 443}, netip.MustParseAddr("10.0.0.1"), observed, matcher.PrivateWildcard, "*.w.test"},
		{"address", endpoint{host: "198.51.100.1", port: 22}, netip.MustParseAddr("198.51.100.1"), allowed, matcher.AddressRule, "198.51.100.1"},
		{"other_address", endpoint{host: "198.51.100.2", addr: netip.MustParseAddr("198.51.100.2"), port: 22}, public, observed, matcher.NotListed, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := report{rules: &rules{set: set, policy: p.InForce()}, target: row.target, address: row.address, outcome: allowed, reason: matcher.PublicMode}
			if rule := r.observe("-"); r.outcome != row.outcome || r.reason != row.reason || rule != row.rule {
				t.Errorf("got %s, %s, rule %q", r.outcome, r.reason, rule)
			}
		})
	}
	r := report{rules: &rules{set: set.Observed()}, outcome: allowed, reason: matcher.NameRule}
	if rule := r.observe("kept"); rule != "kept" || r.outcome != allowed || r.reason != matcher.NameRule {
		t.Errorf("a policy that is enforced: %s, %s, %q", r.outcome, r.reason, rule)
	}
}
