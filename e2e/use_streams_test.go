package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestStreamsAtSwitch holds WebSockets and server-sent events open over a switch, with and without TLS, to a host that
// the next phase allows and to one that it does not.
func TestStreamsAtSwitch(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	u := startUser(t)
	for host, address := range map[string]string{"stays.use.test": "203.0.113.71", "goes.use.test": "203.0.113.72"} {
		if err := lab.Internet.SetName(host, "A "+address); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := u.api.Set(t.Context(), u.name, json.RawMessage(`{
		"baseline_network_policy": "no-network",
		"run_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["*.use.test"]},
		"evaluation_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["stays.use.test"]}}`), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := u.api.Phase(t.Context(), u.name, "run", 0); err != nil {
		t.Fatal(err)
	}
	var streams []*stream
	for _, host := range []string{"stays", "goes"} {
		for _, kind := range []string{"ws://%s.use.test/ws/ticks?id=%[1]s-ws", "wss://%s.use.test/ws/ticks?id=%[1]s-wss",
			"http://%s.use.test/events?n=1000", "https://%s.use.test/events?n=1000"} {
			s := &stream{user: u, url: fmt.Sprintf(kind, host), stays: host == "stays", file: fmt.Sprint("/tmp/stream-", len(streams))}
			if _, err := docker("exec", "--detach", u.name, "sh", "-c", fmt.Sprintf("use follow '%s' %s >%s.out 2>&1", s.url, s.file, s.file)); err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
		}
	}
	for _, s := range streams {
		u.wait("nothing has come from "+s.url, func() bool { return s.lines() > 1 })
	}

	receipt, err := u.api.Phase(t.Context(), u.name, "evaluation", 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(streams) / 2; receipt.FlowsCut != want || receipt.FlowsKept != want {
		t.Errorf("the switch cut %d flows and kept %d, want %d of each", receipt.FlowsCut, receipt.FlowsKept, want)
	}
	for _, s := range streams {
		if s.stays {
			before := s.lines()
			u.wait("nothing comes any more from "+s.url, func() bool { return s.lines() > before+2 })
			if end := s.end(); end != "" {
				t.Errorf("%s was %s", s.url, end)
			}
			continue
		}
		u.wait(s.url+" is still open", func() bool { return s.end() != "" })
		if end := s.end(); end != "reset" {
			t.Errorf("%s was %s, want a reset", s.url, end)
		}
	}
	// The origin's ends are gone too.
	for _, id := range []string{"goes-ws", "goes-wss"} {
		u.wait("the origin still has "+id, func() bool {
			counts, err := lab.Internet.Counts()
			return err == nil && counts.Streams[id].End != ""
		})
	}
}

// stream is one that the container follows.
type stream struct {
	*user
	url, file string
	stays     bool
}

// lines is how many have come.
func (s *stream) lines() int {
	out, err := docker("exec", s.name, "cat", s.file)
	if err != nil {
		return 0
	}
	return strings.Count(out, "\n")
}

// end is how it has ended; empty while it goes on.
func (s *stream) end() string {
	out, err := docker("exec", s.name, "cat", s.file+".end")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}
