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
		{"allowed", SuggestOptions{Phase: "run"}, "192.0.2.1:22 192.0.2.9 [2001:db8::1]:443 a.api.test:443 b.api.test:80", 0},
		{"refused-too", SuggestOptions{Phase: "run", Refused: true}, "192.0.2.1:22 192.0.2.9 [2001:db8::1]:443 a.api.test:443 b.api.test:80 evil.test:443 only.test", 3},
		{"wildcard", SuggestOptions{Phase: "run", Wildcards: []string{"API.test"}}, "*.api.test:80 *.api.test:443 192.0.2.1:22 192.0.2.9 [2001:db8::1]:443", 0},
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
