package main

import (
	"maps"
	"testing"
)

func TestReadReport(t *testing.T) {
	got, err := readReport([]byte(`{"tests": [
		{"test": "setup", "ratios": {"sluice/goproxy": {"cpu_us": {"median": 0.7, "low": 0.6, "high": 0.8}}}, "proxies": {}},
		{"test": "idle", "ratios": {}, "proxies": {"sluice": {"fds": {"median": 2, "min": 2, "max": 2}}, "squid": {"fds": {"median": 3}}}}]}`))
	want := figures{"setup goproxy cpu_us": 0.7, "idle fds": 2}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if _, err := readReport([]byte(`{"tests": [{"test": "setup", "ratios": {"sluice": {}}}]}`)); err == nil {
		t.Error("one program was taken for two")
	}
}

func TestReadBenchmarks(t *testing.T) {
	got, err := readBenchmarks([]byte("goos: linux\nBenchmarkCompile/names-1000-2 \t 3 \t 132597 ns/op\t 0.13 best-ms\n" +
		"BenchmarkCompile/names-1000-2 \t 3 \t 142597 ns/op\t 0.12 best-ms\nPASS\n"))
	want := figures{"Compile/names-1000 ns/op": 132597, "Compile/names-1000 best-ms": 0.12}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

func TestTarget(t *testing.T) {
	from := figures{"a": 3, "b": 4}
	for _, row := range []struct {
		t    target
		want string
	}{
		{target{what: "x", name: "a", limit: 3, unit: " ms"}, "| x | ≤ 3 ms | 3 ms | met |"},
		{target{what: "x", name: "a", limit: 2}, "| x | ≤ 2 | 3 | **missed** |"},
		{target{what: "x", name: "a", least: true, limit: 2}, "| x | ≥ 2 | 3 | met |"},
		{target{what: "x", name: "a", over: "b", limit: 0.5}, "| x | ≤ 0.5 | 0.75 | **missed** |"},
		{target{what: "x", name: "a", limit: 4, stretch: 3}, "| x | ≤ 4, better 3 | 3 | met, and better |"},
		{target{what: "x", name: "a", limit: 4, stretch: 2}, "| x | ≤ 4, better 2 | 3 | met |"},
		{target{what: "x", name: "c", limit: 1}, "| x | ≤ 1 | – | not taken |"},
		{target{what: "x", name: "a", over: "c", limit: 1}, "| x | ≤ 1 | – | not taken |"},
	} {
		if got := row.t.line(from, "not taken"); got != row.want {
			t.Errorf("got  %s\nwant %s", got, row.want)
		}
	}
}
