package matcher

import (
	"net/netip"
	"testing"

	"sluice/policy"
)

// A policy that only observes lets through what public does, and not more; what it says itself is there to be asked.
func TestObserved(t *testing.T) {
	p, err := policy.ParsePolicy([]byte(`{"network_mode": "allowlist", "allowed_hosts": ["a.test:443", "10.0.0.0/8"], "observe": true}`))
	if err != nil {
		t.Fatal(err)
	}
	never := netip.MustParsePrefix("203.0.113.0/24")
	r, err := Compile(p, Options{Never: []netip.Prefix{never}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Mode() != policy.Public || r.HasNameRules() {
		t.Errorf("mode %v, name rules %v", r.Mode(), r.HasNameRules())
	}
	for _, row := range []struct {
		address           string
		verdict, observed Verdict
	}{
		{"198.51.100.1", Allow, Refuse},
		{"10.1.2.3", Allow, Allow},
		{"169.254.169.254", Refuse, Refuse},
		{"127.0.0.1", Refuse, Refuse},
		{"203.0.113.1", Refuse, Refuse},
		{"::ffff:169.254.169.254", Refuse, Refuse},
	} {
		a := netip.MustParseAddr(row.address)
		if got, observed := r.Addr(a, 443).Verdict, r.Observed().Addr(a, 443).Verdict; got != row.verdict || observed != row.observed {
			t.Errorf("%s: %v, observed %v", a, got, observed)
		}
	}
	for name, want := range map[string]Verdict{"a.test": Allow, "b.test": Refuse} {
		if got, observed := r.Name(name, 443).Verdict, r.Observed().Name(name, 443).Verdict; got != Allow || observed != want {
			t.Errorf("%s: %v, observed %v", name, got, observed)
		}
	}
	if got, want := r.Explain(r.Name("b.test", 443), "b.test", 443), "b.test:443 is allowed: the policy only observes"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	p.Options.Observe = false
	if r, err = Compile(p, Options{}); err != nil || r.Observed() != nil || r.Mode() != policy.Allowlist {
		t.Errorf("without: %v, observed %v, error %v", r.Mode(), r.Observed(), err)
	}
	p.Options.Observe, p.Mode = true, policy.NoNetwork
	if _, err := Compile(p, Options{}); err == nil {
		t.Error("no-network with targets compiles")
	}
}
