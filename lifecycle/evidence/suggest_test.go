package evidence

import (
	"fmt"
	"strings"
	"testing"

	"sluice/policy"
)

// attempts reads lines like "refuse tls evil.test:443 not-listed".
func attempts(t *testing.T, lines ...string) []Phase {
	t.Helper()
	p := Phase{Phase: "run"}
	for _, line := range lines {
		words := strings.Fields(line)
		a := Attempt{Verdict: words[0], Protocol: words[1], Target: words[2], Count: 1}
		if len(words) > 3 {
			if _, err := fmt.Sscan(words[3], &a.Port); err != nil {
				t.Fatal(err)
			}
		}
		if len(words) > 4 {
			a.Reason = words[4]
		}
		p.Attempts = append(p.Attempts, a)
	}
	return []Phase{{Phase: "baseline", Attempts: []Attempt{{Target: "baseline.test", Port: 443, Verdict: Allowed}}}, p}
}

func TestSuggest(t *testing.T) {
	phases := attempts(t,
		"allow tls a.api.test 443", "allow tls a.api.test 443", "allow http b.api.test 80", "allow tcp 192.0.2.1 22", "cut tls 2001:db8::1 443",
		"refuse tls evil.test 443 not-listed", "refuse dns-udp evil.test 53 not-listed", "refuse dns-udp only.test 53 no-network",
		"refuse tcp 169.254.169.254 80 floor", "refuse tcp odd_name!.test 80 not-listed", "allow icmp 192.0.2.9")
	for _, row := range []struct {
		name  string
		o     SuggestOptions
		want  string
		notes int
	}{
		{"allowed", SuggestOptions{Phase: "run"}, "192.0.2.1:22 [2001:db8::1]:443 a.api.test:443 b.api.test:80", 1},
		{"refused-too", SuggestOptions{Phase: "run", Refused: true}, "192.0.2.1:22 [2001:db8::1]:443 a.api.test:443 b.api.test:80 evil.test:443", 4},
		{"wildcard", SuggestOptions{Phase: "run", Wildcards: []string{"API.test"}}, "*.api.test:80 *.api.test:443 192.0.2.1:22 [2001:db8::1]:443", 1},
		{"other-phase", SuggestOptions{Phase: "baseline"}, "baseline.test:443", 0},
		{"nothing", SuggestOptions{Phase: "evaluation"}, "", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, err := Suggest(phases, row.o)
			var got []string
			for _, target := range s.Policy.Targets {
				got = append(got, target.String())
			}
			if err != nil || strings.Join(got, " ") != row.want || len(s.Notes) != row.notes {
				t.Errorf("got %q, notes %q, %v", got, s.Notes, err)
			}
			if (s.Policy.Mode == policy.NoNetwork) != (row.want == "") {
				t.Errorf("got the mode %s", s.Policy.Mode)
			}
			text, err := s.Policy.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if back, err := policy.ParsePolicy(text); err != nil || back.Digest() != s.Policy.Digest() {
				t.Errorf("%s is read as %+v, %v", text, back, err)
			}
		})
	}
	for _, w := range []string{"", "a b", "x.test:443", "10.0.0.0/8"} {
		if _, err := Suggest(phases, SuggestOptions{Wildcards: []string{w}}); err == nil {
			t.Errorf("the wildcard %q is accepted", w)
		}
	}
}

// TestSuggestsNoMore checks that nothing is opened that was not tried: neither the other ports of what was only looked
// up or pinged, nor what the policy that was observed denies.
func TestSuggestsNoMore(t *testing.T) {
	lines := []string{"allow tls a.test 443", "refuse tls b.test 22 port-not-listed", "allow dns-udp b.test 53", "allow icmp 192.0.2.9",
		"observed tls denied.test 443 name-rule", "observed tcp 192.0.2.1 443 address-rule", "observed tls new.test 443 not-listed",
		"observed tls 192.0.2.2 443 private-wildcard"}
	for i := range 1000 { // names that carry something out
		lines = append(lines, fmt.Sprintf("allow dns-udp x%d.evil.test 53", i))
	}
	s, err := Suggest(attempts(t, lines...), SuggestOptions{Phase: "run"})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(s.Policy.Targets); got != "[192.0.2.2:443 a.test:443 new.test:443]" {
		t.Errorf("got %s", got)
	}
	if notes := strings.Join(s.Notes, "\n"); len(s.Notes) != 4 || !strings.Contains(notes, "b.test, x0.evil.test, x1.evil.test, x2.evil.test, x3.evil.test and 996 more") {
		t.Errorf("notes:\n%s", notes)
	}
}

func TestCompare(t *testing.T) {
	s, err := Suggest(attempts(t, "allow tls a.test 443", "allow tls b.api.test 443", "allow tcp 192.0.2.1 22", "allow tls new.test 443"), SuggestOptions{Phase: "run"})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ present, want string }{
		{`{"network_mode":"allowlist","allowed_hosts":["a.test","*.api.test","192.0.2.0/24:22","old.test","a.test:80"]}`,
			"keep 192.0.2.1:22, unused a.test:80, keep a.test:443, keep b.api.test:443, add new.test:443, unused old.test"},
		{`"no-network"`, "add 192.0.2.1:22, add a.test:443, add b.api.test:443, add new.test:443"},
		{`"public"`, "keep 192.0.2.1:22, keep a.test:443, keep b.api.test:443, keep new.test:443"},
	} {
		present, err := policy.ParsePolicy([]byte(row.present))
		if err != nil {
			t.Fatal(err)
		}
		changes, err := s.Compare(present)
		var got []string
		for _, c := range changes {
			got = append(got, c.What+" "+c.Target.String())
		}
		if err != nil || strings.Join(got, ", ") != row.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", row.present, strings.Join(got, ", "), err, row.want)
		}
	}
}
