package agentcompass

import (
	"strings"
	"testing"
)

func TestFromEnvironment(t *testing.T) {
	const token = "AGENTCOMPASS_PROXY_TOKEN"
	for _, row := range []struct {
		name, token, path, port string
		want                    uint16
		err                     string
	}{
		{"provider", "secret-token", "/opt/agentcompass/policy/policy.json", "8080", 8080, ""},
		{"default-port", "secret-token", "/p", "", 8080, ""},
		{"other-port", "secret-token", "/p", " 9090 ", 9090, ""},
		{"empty", "", "", "", 0, token + " is required"},
		{"no-token", "", "/p", "8080", 0, token + " is required"},
		{"no-path", "secret-token", "", "8080", 0, "AGENTCOMPASS_POLICY_PATH is required"},
		{"zero-port", "secret-token", "/p", "0", 0, "AGENTCOMPASS_PROXY_PORT"},
		{"large-port", "secret-token", "/p", "65536", 0, "AGENTCOMPASS_PROXY_PORT"},
		{"word-port", "secret-token", "/p", "http", 0, "AGENTCOMPASS_PROXY_PORT"},
		{"signed-port", "secret-token", "/p", "+80", 0, "AGENTCOMPASS_PROXY_PORT"},
	} {
		t.Run(row.name, func(t *testing.T) {
			env := map[string]string{token: row.token, "AGENTCOMPASS_POLICY_PATH": row.path, "AGENTCOMPASS_PROXY_PORT": row.port}
			s, err := FromEnvironment(func(name string) string { return env[name] })
			if row.err != "" {
				if err == nil || !strings.Contains(err.Error(), row.err) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v, want an error with %s", err, row.err)
				}
				return
			}
			if err != nil || s.Port != row.want || s.Token != row.token || s.PolicyPath != row.path {
				t.Errorf("got %+v, %v", s, err)
			}
		})
	}
}

// The line is written out here as AgentCompass's proxy prints it.
func TestReady(t *testing.T) {
	if got := (Settings{Port: 8080}).Ready(); got != "AgentCompass Docker egress proxy ready on port 8080" {
		t.Errorf("got %q", got)
	}
}

func TestStatus(t *testing.T) {
	for from, want := range map[int]int{400: 400, 403: 403, 407: 407, 502: 403, 503: 503, 504: 403} {
		if got := Status(from); got != want {
			t.Errorf("%d: got %d, want %d", from, got, want)
		}
	}
}
