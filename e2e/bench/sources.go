package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// comparePolicy is what the proxies enforce in compare.
const comparePolicy = `network_mode: allowlist
allowed_hosts: ["127.0.0.1:7001", "api.test", "*.allowed.example"]
`

// report is what compare writes.
type report struct {
	Tests []struct {
		Test    string                                         `json:"test"`
		Ratios  map[string]map[string]struct{ Median float64 } `json:"ratios"`
		Proxies map[string]map[string]struct{ Median float64 } `json:"proxies"`
	} `json:"tests"`
}

// takeCompare runs compare with the sidecar as it is meant to run: user and password, metrics and audit on.
func takeCompare(ctx context.Context, s settings, dir string) (figures, error) {
	if s.compare == "" {
		return nil, fmt.Errorf("%w: give -compare", errNotThere)
	}
	policy, out := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "compare.json")
	if err := os.WriteFile(policy, []byte(comparePolicy), 0o644); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // compare runs proxies as other users
		return nil, err
	}
	proxy := filepath.Join(s.bin, "sluice-proxy")
	if err := command(ctx, s.compare, "all", "--rounds", strconv.Itoa(s.rounds), "--json", out, "--auth", "agentcompass:secret",
		"--candidate", "sluice=env SLUICE_PASSWORD=secret "+proxy+" serve --listen 127.0.0.1:{port} --policy "+policy+
			" --user agentcompass --metrics 127.0.0.1:9464 --audit /dev/null",
		"--dns-candidate", "dns="+proxy+" serve --listen 127.0.0.1:0 --policy "+policy+
			" --dns 127.0.0.1:{port} --upstream {upstream} --metrics 127.0.0.1:9465 --audit /dev/null"); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	return readReport(text)
}

// readReport names each ratio of a candidate by its test, the other program and the figure, and descriptors by
// "idle fds".
func readReport(text []byte) (figures, error) {
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("what compare has written: %w", err)
	}
	all := figures{}
	for _, t := range r.Tests {
		for pair, ratios := range t.Ratios {
			_, peer, ok := strings.Cut(pair, "/")
			if !ok {
				return nil, fmt.Errorf("what compare has written: %q is not two programs", pair)
			}
			for figure, ratio := range ratios {
				all[t.Test+" "+peer+" "+figure] = ratio.Median
			}
		}
		if fds, ok := t.Proxies["sluice"]["fds"]; ok && t.Test == "idle" {
			all["idle fds"] = fds.Median
		}
	}
	return all, nil
}

// takeMatcher runs the benchmarks of the matcher.
func takeMatcher(ctx context.Context, _ settings, _ string) (figures, error) {
	return goBenchmarks(ctx, "./matcher", "NameToGoMap1M|Compile")
}

// takeReady starts proxies as AgentCompass's provider does.
func takeReady(ctx context.Context, s settings, _ string) (figures, error) {
	return goBenchmarks(ctx, "./e2e", "Ready", "-benchtime", "6x", "-run-docker", "-bin", s.bin)
}

func goBenchmarks(ctx context.Context, pkg, bench string, more ...string) (figures, error) {
	c := exec.CommandContext(ctx, "go", append([]string{"test", pkg, "-run", "^$", "-bench", bench}, more...)...)
	c.Stderr = os.Stderr
	out, err := c.Output()
	os.Stderr.Write(out)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c, err)
	}
	return readBenchmarks(out)
}

// readBenchmarks names each figure by its benchmark, without the number of processors, and its unit; of benchmarks that
// have run more than once, the best counts.
func readBenchmarks(text []byte) (figures, error) {
	all := figures{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(fields[0], "Benchmark")
		if at := strings.LastIndex(name, "-"); at > 0 {
			name = name[:at]
		}
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("benchmark %q: %w", lines.Text(), err)
			}
			key := name + " " + fields[i+1]
			if before, ok := all[key]; ok {
				value = math.Min(value, before)
			}
			all[key] = value
		}
	}
	return all, nil
}

// takeController runs e2e/figures.
func takeController(ctx context.Context, s settings, dir string) (figures, error) {
	program, out := filepath.Join(dir, "figures"), filepath.Join(dir, "figures.json")
	if err := command(ctx, "go", "build", "-o", program, "./e2e/figures"); err != nil {
		return nil, err
	}
	if err := command(ctx, program, "-bin", s.bin, "-beside", strconv.Itoa(s.beside), "-json", out); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	var all figures
	return all, json.Unmarshal(text, &all)
}
