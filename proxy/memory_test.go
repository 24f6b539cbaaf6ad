package proxy

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	"sluice/control"
	"sluice/policy"
)

// BenchmarkIdleSession reports the heap bytes of a session that serves nothing: three small policies, nineteen refused
// networks as a controller sends them, and a DNS filter.
func BenchmarkIdleSession(b *testing.B) {
	const sessions = 1000
	for _, c := range []struct {
		name  string
		never func(session int) string // the last of them
	}{
		{"same-networks", func(int) string { return "192.0.2.53/32" }},
		{"other-networks", func(session int) string { return fmt.Sprintf("198.18.%d.%d/32", session>>8, session&255) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			var bytes uint64
			for b.Loop() {
				bytes = idleSessions(b, sessions, c.never)
			}
			b.ReportMetric(float64(bytes)/sessions, "B/session")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// idleSessions returns how many bytes n sessions keep.
func idleSessions(b *testing.B, n int, last func(session int) string) uint64 {
	s, err := New(Config{Workers: 2})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	before := liveBytes()
	for i := range n {
		spec := control.SessionSpec{
			Phase: policy.Run.String(), Container: fmt.Sprintf("c%d", i),
			Policies: map[string]json.RawMessage{
				policy.Baseline.String():   json.RawMessage(allow("registry.test", "*.mirror.test", "203.0.113.7:443")),
				policy.Run.String():        json.RawMessage(allow("model.test", fmt.Sprintf("c%d.test:443", i))),
				policy.Evaluation.String(): json.RawMessage(`"no-network"`),
			},
			Upstreams: []string{"192.0.2.1"}, Hosts: map[string][]string{"host.docker.internal": {"172.17.0.1"}},
			Never: []string{last(i)},
		}
		for n := range 6 {
			spec.Never = append(spec.Never, fmt.Sprintf("172.%d.0.0/16", 17+n), fmt.Sprintf("203.0.113.%d/32", n), fmt.Sprintf("2001:db8:%d::/64", n))
		}
		id := fmt.Sprintf("%064x", i)
		if _, err := s.SetSession(b.Context(), id, spec); err != nil {
			b.Fatal(err)
		}
		session, err := s.find(id)
		if err != nil {
			b.Fatal(err)
		}
		session.switching.Lock()
		session.makeFilter()
		session.switching.Unlock()
	}
	return liveBytes() - before
}

// liveBytes returns how many bytes of the heap are in use.
func liveBytes() uint64 {
	runtime.GC()
	runtime.GC() // what the first one finalised
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
