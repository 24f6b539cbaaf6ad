package policy

import (
	"os"
	"testing"
)

// TestNotice compares with the texts that the documentation of AgentCompass prints, and with nothing for public.
func TestNotice(t *testing.T) {
	for mode, text := range map[string]string{
		"allowlist":  `{"network_mode": "allowlist", "allowed_hosts": ["registry.npmjs.org:443", "pypi.org"]}`,
		"denylist":   `{"network_mode": "denylist", "denied_hosts": [{"host": "example.com", "port": 443}]}`,
		"no-network": `no-network`,
	} {
		want, err := os.ReadFile("testdata/notice/" + mode + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		if got := Notice(mustPolicy(t, text)); got != string(want) {
			t.Errorf("%s:\n got %s\nwant %s", mode, got, want)
		}
	}
	if got := Notice(mustPolicy(t, "public")); got != "" {
		t.Errorf("public: got %q", got)
	}
}

func mustPolicy(t testing.TB, text string) Policy {
	t.Helper()
	p, err := ParsePolicy([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustTarget(t testing.TB, text string) Target {
	t.Helper()
	target, err := ParseTarget(text)
	if err != nil {
		t.Fatal(err)
	}
	return target
}
