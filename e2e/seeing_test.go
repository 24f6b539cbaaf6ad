package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/controller/api"
	"sluice/e2e/lab/client"
)

// prometheusAddress is where Prometheus listens, in the engine's network namespace.
const prometheusAddress = "127.0.0.1:9090"

// observed is a container that uses the network and is switched, so that there is something to see, and another one
// that comes and goes.
type observed struct {
	t           *testing.T
	name, other string
	api         api.Client
}

func startObserved(t *testing.T, name string) *observed {
	t.Helper()
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the controller's log:\n%s", theController.logText())
		}
	})
	o := &observed{t, name, name + "-other", api.Client{Socket: theController.socket()}}
	for _, name := range []string{o.name, o.other} {
		if _, err := docker("run", "--detach", "--name", name, client.Tag, "sleep", "infinity"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := docker("rm", "--force", name); err != nil {
				t.Error(err)
			}
		})
	}
	list := json.RawMessage(`{"network_mode": "allowlist", "allowed_hosts": ["web.test", "*.any.test", "203.0.113.32"]}`)
	policies, err := json.Marshal(map[string]json.RawMessage{
		"baseline_network_policy": list, "run_network_policy": list, "evaluation_network_policy": json.RawMessage(`"no-network"`)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.api.Attach(t.Context(), api.Attach{Container: name, Policy: policies}); err != nil {
		t.Fatal(err)
	}
	return o
}

// use does what is allowed and what is not, by each way, and switches on and back.
func (o *observed) use() {
	o.t.Helper()
	commands := "curl -sS -m 10 https://web.test/ && curl -sS -m 10 https://open-seeing.any.test/ && curl -sS -m 10 http://203.0.113.32/ || exit 1; " +
		"curl -sS -m 10 https://refused-seeing.any.example/; curl -sS -m 10 --insecure https://203.0.113.33/; echo x >/dev/udp/203.0.113.34/9; exit 0"
	if _, err := docker("exec", o.name, "bash", "-c", commands); err != nil {
		o.t.Fatal(err)
	}
	for _, phase := range []string{"evaluation", "run"} {
		if _, err := o.api.Phase(o.t.Context(), o.name, phase, 0); err != nil {
			o.t.Fatal(err)
		}
	}
	if _, err := o.api.Attach(o.t.Context(), api.Attach{Container: o.other, Policy: json.RawMessage(`"no-network"`)}); err != nil {
		o.t.Fatal(err)
	}
	if err := o.api.Detach(o.t.Context(), o.other); err != nil {
		o.t.Fatal(err)
	}
}

// inEngineNamespace is a client of what listens there.
var inEngineNamespace = http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
	DisableKeepAlives: true,
	DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = lab.InEngineNamespace(func() (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	},
}}

// program finds one that scripts/setup installs.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: run scripts/setup", err)
	}
	return path
}

// TestPrometheus lets Prometheus scrape both programs with the configuration of examples/prometheus, and asks it for all
// that the dashboard of examples/grafana asks for.
func TestPrometheus(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "config", "prometheus.yml"}, {"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		check := exec.Command(promtool, args...)
		check.Dir = "../examples/prometheus"
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	o := startObserved(t, "seeing-prometheus")
	startPrometheus(t)
	queries := dashboardQueries(t)
	for deadline := time.Now().Add(waitLimit); ; {
		o.use()
		maps.DeleteFunc(queries, func(query, _ string) bool { return hasData(t, query) })
		if len(queries) == 0 {
			break
		}
		if time.Now().After(deadline) {
			for query, where := range queries {
				t.Errorf("%s: no data for %s", where, query)
			}
			break
		}
	}
	for _, job := range []string{"sluice", "sluice-proxy"} {
		if !hasData(t, fmt.Sprintf("up{job=%q} == 1", job)) {
			t.Errorf("%s is not scraped", job)
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	askPrometheus(t, "rules", nil, &rules)
	count := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			count++
			if r.Health == "err" || r.State == "firing" {
				t.Errorf("alert %s: %s %s %s", r.Name, r.Health, r.State, r.LastError)
			}
		}
	}
	if count == 0 {
		t.Error("no alerts are loaded")
	}
}

// startPrometheus starts it with the example's configuration, but for the times.
func startPrometheus(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"prometheus.yml", "alerts.yml"} {
		text, err := os.ReadFile(filepath.Join("../examples/prometheus", name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "prometheus.yml" {
			if text = []byte(strings.ReplaceAll(string(text), "_interval: 15s", "_interval: 500ms")); !strings.Contains(string(text), "500ms") {
				t.Fatal("the example has other intervals now")
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	process := exec.Command(program(t, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheusAddress, "--log.level=warn")
	var log strings.Builder
	process.Stdout, process.Stderr = &log, &log
	if err := lab.InEngineNamespace(process.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Process.Signal(syscall.SIGTERM)
		if err := process.Wait(); err != nil || t.Failed() {
			t.Errorf("prometheus: %v\n%s", err, &log)
		}
	})
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(20 * time.Millisecond) {
		answer, err := inEngineNamespace.Get("http://" + prometheusAddress + "/-/ready")
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("prometheus is not ready: %v", err)
		}
	}
}

// askPrometheus reads the data of an answer of its interface.
func askPrometheus(t *testing.T, path string, values url.Values, data any) {
	t.Helper()
	answer, err := inEngineNamespace.Get("http://" + prometheusAddress + "/api/v1/" + path + "?" + values.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil || body.Status != "success" {
		t.Fatalf("prometheus, %s %v: %v %s", path, values, err, body.Error)
	}
}

// hasData reports whether a query has a result that is a number.
func hasData(t *testing.T, query string) bool {
	t.Helper()
	var data struct{ Result []struct{ Value [2]any } }
	askPrometheus(t, "query", url.Values{"query": {query}}, &data)
	for _, r := range data.Result {
		if v, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64); err == nil && !math.IsNaN(v) {
			return true
		}
	}
	return false
}

// dashboardQueries returns what the dashboard asks for, and which panel does.
func dashboardQueries(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../examples/grafana/sluice.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct {
				Name, Type string
				Query      json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	// What Grafana puts in; the variables as they are when all is chosen.
	fill := strings.NewReplacer("$__rate_interval", "20s", "$__range", "1m", "$instance", ".*", "$container", ".*")
	queries := map[string]string{}
	add := func(where, query string) {
		query = fill.Replace(query)
		if query == "" || strings.Contains(query, "$") {
			t.Errorf("%s: the query %q", where, query)
			return
		}
		queries[query] = where
	}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			add("panel "+p.Title, target.Expr)
		}
	}
	variables := 0
	for _, v := range dashboard.Templating.List {
		if v.Type != "query" {
			continue
		}
		variables++
		var q struct{ Query string }
		if err := json.Unmarshal(v.Query, &q); err != nil {
			t.Fatal(err)
		}
		// label_values(SERIES, LABEL)
		of, label, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(q.Query, "label_values("), ")"), "}, ")
		if !ok {
			t.Fatalf("variable %s: %s", v.Name, q.Query)
		}
		add("variable "+v.Name, fmt.Sprintf(`count by (%s) (%s,%s!=""})`, label, of, label))
	}
	if len(queries) < 20 || variables == 0 {
		t.Fatalf("only %d queries of %d variables: %q", len(queries), variables, slices.Sorted(maps.Keys(queries)))
	}
	return queries
}
