package agentcompass

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

const (
	// User is the name that clients give.
	User = "agentcompass"
	// Realm is named where credentials are asked for (RFC 7617).
	Realm = "AgentCompassEgress"
	// HeaderLimitStatus is the answer to a request head that is too large.
	HeaderLimitStatus = http.StatusBadRequest
)

// Settings are what AgentCompass says in the environment.
type Settings struct {
	Token      string // the password of [User]; a secret
	PolicyPath string
	Port       uint16
}

// FromEnvironment reads the settings. Its errors say what is missing and show no token.
func FromEnvironment(getenv func(string) string) (Settings, error) {
	s := Settings{Token: getenv("AGENTCOMPASS_PROXY_TOKEN"), PolicyPath: getenv("AGENTCOMPASS_POLICY_PATH"), Port: 8080}
	switch {
	case s.Token == "":
		return Settings{}, fmt.Errorf("AGENTCOMPASS_PROXY_TOKEN is required: set it to the password that clients give")
	case s.PolicyPath == "":
		return Settings{}, fmt.Errorf("AGENTCOMPASS_POLICY_PATH is required: set it to the path of the policy file")
	}
	if text := strings.TrimSpace(getenv("AGENTCOMPASS_PROXY_PORT")); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return Settings{}, fmt.Errorf("AGENTCOMPASS_PROXY_PORT is %.20q: set it to a port from 1 to 65535", text)
		}
		s.Port = uint16(port)
	}
	return s, nil
}

// Ready is the line that says, on standard output, that clients are served.
func (s Settings) Ready() string {
	return fmt.Sprintf("AgentCompass Docker egress proxy ready on port %d", s.Port)
}

// Status maps the status of an answer to the one that AgentCompass's proxy gives: it makes no difference between a
// host that is refused and one that cannot be looked up or dialled.
func Status(status int) int {
	switch status {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return http.StatusForbidden
	default:
		return status
	}
}
