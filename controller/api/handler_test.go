package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/control"
	"sluice/policy"
)

// fakeBackend knows one container, "web", in generation 3, and writes down what it was asked.
type fakeBackend struct {
	hub control.Hub

	mu    sync.Mutex
	calls []string
}

func (b *fakeBackend) called(container, format string, args ...any) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, container+" "+fmt.Sprintf(format, args...))
	if container != "web" {
		return &control.Error{Code: control.CodeNotFound, Message: "no container " + container}
	}
	return nil
}

func (b *fakeBackend) List(context.Context) ([]Status, error) {
	return []Status{{ID: "1", Name: "web", State: Attached}}, nil
}

func (b *fakeBackend) Attach(_ context.Context, c string, p policy.Phases, phase policy.Phase, o Options) (Status, error) {
	return Status{ID: c, Name: c, Phase: phase.String()}, b.called(c, "attach %v %v %v", modes(p), phase, o)
}

func (b *fakeBackend) Status(_ context.Context, c string) (Status, error) {
	return Status{Name: c, State: Quarantined, Policies: map[string]json.RawMessage{"run": json.RawMessage(`"public"`)}}, b.called(c, "status")
}

func (b *fakeBackend) Verify(_ context.Context, c string, v Verify) (Verification, error) {
	return Verification{Container: c, Probes: []Probe{{Name: "udp4", Target: "192.0.2.1:9", Verdict: Leaked, Got: "answered"}}}, b.called(c, "verify %v", v)
}

func (b *fakeBackend) Detach(_ context.Context, c string) error { return b.called(c, "detach") }

func (b *fakeBackend) Phase(_ context.Context, c string, phase policy.Phase, generation uint64) (Receipt, error) {
	if generation == 2 {
		return Receipt{}, &control.Error{Code: control.CodeStale, Have: 3, Got: 2, Message: "too old"}
	}
	return Receipt{Container: c, Generation: 4, FlowsCut: 7}, b.called(c, "phase %v %d", phase, generation)
}

func (b *fakeBackend) Set(_ context.Context, c string, p policy.Phases, generation uint64) (Receipt, error) {
	return Receipt{Container: c, Generation: 5}, b.called(c, "set %v %d", modes(p), generation)
}

func (b *fakeBackend) Explain(_ context.Context, c, target string) (control.Explanation, error) {
	return control.Explanation{Target: target}, b.called(c, "explain")
}

func (b *fakeBackend) Report(_ context.Context, c string) (Report, error) {
	return Report{Status: Status{Name: c}, Switches: []Switch{{Receipt: Receipt{Generation: 4}, Problem: "it hangs"}}}, b.called(c, "report")
}

func (b *fakeBackend) Flows(_ context.Context, c string) ([]control.Flow, error) {
	return nil, b.called(c, "flows")
}

func (b *fakeBackend) Networks(context.Context) ([]Network, error) { return nil, nil }

func (b *fakeBackend) CreateNetwork(_ context.Context, n NewNetwork) (Network, error) {
	return Network{Name: n.Name, Internal: n.Internal}, b.called("web", "network %+v %s", n.IPv6, n.Policy)
}

func (b *fakeBackend) RemoveNetwork(_ context.Context, name string, force bool) error {
	return b.called("web", "rm %s %v", name, force)
}

func (b *fakeBackend) Events() *control.Hub { return &b.hub }

func (b *fakeBackend) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "sluice_build_info 1") })
}

func modes(p policy.Phases) (m []policy.Mode) {
	for _, one := range p {
		m = append(m, one.Mode)
	}
	return m
}

// serve answers for b on a socket until the test ends.
func serve(t *testing.T, b Backend) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s", "sluice.sock")
	l, err := control.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- control.ServeHTTP(ctx, control.OnlyPeers(l, log), Handler(b), log) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &Client{Socket: path}
}

func TestClientAndHandler(t *testing.T) {
	b := &fakeBackend{}
	c := serve(t, b)
	ctx := t.Context()
	check := func(what string, got any, err error, want any) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	all, err := c.List(ctx)
	check("list", all, err, []Status{{ID: "1", Name: "web", State: Attached}})
	s, err := c.Attach(ctx, Attach{Container: "web", Policy: json.RawMessage(`"no-network"`), Phase: "run", Options: Options{AllowWeak: true, Workload: "w"}})
	check("attach", s, err, Status{ID: "web", Name: "web", Phase: "run"})
	s, err = c.Status(ctx, "web")
	check("status", s, err, Status{Name: "web", State: Quarantined, Policies: map[string]json.RawMessage{"run": json.RawMessage(`"public"`)}})
	r, err := c.Phase(ctx, "web", "evaluation", 9)
	check("phase", r, err, Receipt{Container: "web", Generation: 4, FlowsCut: 7})
	r, err = c.Set(ctx, "web", json.RawMessage(`{"run_network_policy": "no-network"}`), 0)
	check("set", r, err, Receipt{Container: "web", Generation: 5})
	x, err := c.Explain(ctx, "web", "[2001:db8::1]:443&a=b")
	check("explain", x, err, control.Explanation{Target: "[2001:db8::1]:443&a=b"})
	report, err := c.Report(ctx, "web")
	check("report", report, err, Report{Status: Status{Name: "web"}, Switches: []Switch{{Receipt: Receipt{Generation: 4}, Problem: "it hangs"}}})
	v, err := c.Verify(ctx, "web", Verify{Reach: []string{"web.test:443"}})
	check("verify", v, err, Verification{Container: "web", Probes: []Probe{{Name: "udp4", Target: "192.0.2.1:9", Verdict: Leaked, Got: "answered"}}})
	flows, err := c.Flows(ctx, "web")
	check("flows", flows, err, []control.Flow{})
	text, err := c.Metrics(ctx)
	check("metrics", text, err, "sluice_build_info 1\n")
	check("detach", nil, c.Detach(ctx, "web"), nil)
	n, err := c.CreateNetwork(ctx, NewNetwork{Name: "tasks", IPv6: true, Policy: json.RawMessage(`"public"`)})
	check("create network", n, err, Network{Name: "tasks"})
	all2, err := c.Networks(ctx)
	check("networks", all2, err, []Network{})
	check("remove network", nil, c.RemoveNetwork(ctx, "tasks", true), nil)

	const public = `{"network_mode":"public","allowed_hosts":[],"denied_hosts":[]}`
	if _, err := c.Phase(ctx, "web", "run", 2); !errors.Is(err, control.ErrStale) || !strings.Contains(err.Error(), "too old") {
		t.Errorf("stale: %v", err)
	}
	if _, err := c.Status(ctx, "a/../b?c"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("odd name: %v", err)
	}
	check("calls", b.calls, nil, []string{"web attach [no-network no-network no-network] run {true w false}", "web status",
		"web phase evaluation 9", "web set [public no-network public] 0", "web explain", "web report", "web verify {[web.test:443] false}", "web flows", "web detach",
		`web network true {"baseline_network_policy":` + public + `,"run_network_policy":` + public + `,"evaluation_network_policy":` + public + `}`,
		"web rm tasks true", "a/../b?c status"})
}

// Who attaches and wants it verified gets an error where it does not hold, and everything is refused.
func TestAttachVerified(t *testing.T) {
	b := &fakeBackend{}
	c := serve(t, b)
	_, err := c.Attach(t.Context(), Attach{Container: "web", Policy: json.RawMessage(`"no-network"`), Options: Options{Verify: true}})
	if !errors.Is(err, control.ErrQuarantined) || !strings.Contains(err.Error(), "udp4 to 192.0.2.1:9: leak (answered)") {
		t.Errorf("got %v", err)
	}
	want := []string{"web attach [no-network no-network no-network] baseline {false  true}", "web verify {[] true}"}
	if diff := cmp.Diff(want, b.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestEvents(t *testing.T) {
	b := &fakeBackend{}
	c := serve(t, b)
	go func() {
		for !b.hub.Active() {
			time.Sleep(time.Millisecond) // the reader below will be there
		}
		b.hub.Publish(control.Event{Target: "evil.test"})
	}()
	for e, err := range c.Events(t.Context()) {
		if err != nil || e.Target != "evil.test" {
			t.Errorf("event %+v, error %v", e, err)
		}
		break
	}
}

func TestNobodyListens(t *testing.T) {
	c := &Client{Socket: filepath.Join(t.TempDir(), "sluice.sock")}
	if _, err := c.List(t.Context()); err == nil || !strings.Contains(err.Error(), "is sluice serve running, with --socket "+c.Socket) {
		t.Errorf("error %v", err)
	}
}

func TestRoutesAreSortedAndVersioned(t *testing.T) {
	if !slices.IsSortedFunc(routes, func(a, b route) int { return strings.Compare(a.path+" "+a.method, b.path+" "+b.method) }) {
		t.Error("routes are not sorted by path and method")
	}
	for _, r := range routes {
		if !strings.HasPrefix(r.path, "/v1/") && r.path != "/metrics" {
			t.Errorf("%s has no version", r.path)
		}
	}
}

func TestRequests(t *testing.T) {
	for _, row := range []struct {
		name, method, path, body string
		want                     int
		text                     string
	}{
		{"wrong-method", "POST", "/v1/containers/web", "{}", 405, "is not for /v1/containers/{id}"},
		{"other-container", "GET", "/v1/containers/db", "", 404, "no container db"},
		{"no-target", "GET", "/v1/containers/web/explain", "", 400, "?target="},
		{"attach-nothing", "POST", "/v1/containers", `{"policy":"public"}`, 400, `"container" is missing`},
		{"attach-no-policy", "POST", "/v1/containers", `{"container":"web"}`, 400, `"policy" is missing`},
		{"attach-null-policy", "POST", "/v1/containers", `{"container":"web","policy":null}`, 400, `"policy": null`},
		{"attach-bad-policy", "POST", "/v1/containers", `{"container":"web","policy":"none"}`, 400, `write "no-network"`},
		{"attach-two-lists", "POST", "/v1/containers", `{"container":"web","policy":{"network_mode":"allowlist","allowed_hosts":["a.test"],"denied_hosts":["b.test"]}}`, 400, "denied_hosts"},
		{"attach-bad-phase", "POST", "/v1/containers", `{"container":"web","policy":"public","phase":"Run"}`, 400, "Run"},
		{"attach-unknown", "POST", "/v1/containers", `{"container":"web","policy":"public","allowWeak":true}`, 400, `"allowWeak": unknown field`},
		{"attach-repeated", "POST", "/v1/containers", `{"container":"web","policy":"no-network","policy":"public"}`, 400, `"policy": repeated`},
		{"phase-none", "PUT", "/v1/containers/web/phase", `{}`, 400, "phase"},
		{"phase-unknown", "PUT", "/v1/containers/web/phase", `{"phase":"run","force":true}`, 400, `"force": unknown field`},
		{"phase-stale", "PUT", "/v1/containers/web/phase", `{"phase":"run","generation":2}`, 409, `"have":3`},
		{"phase", "PUT", "/v1/containers/web/phase", `{"phase":"run"}`, 200, `"flows_cut":7`},
		{"policy-empty", "PUT", "/v1/containers/web/policy", ``, 400, "not JSON"},
		{"policy", "PUT", "/v1/containers/web/policy", `{"policy":"no-network"}`, 200, `"generation":5`},
		{"network-nameless", "POST", "/v1/networks", `{"internal":true}`, 400, `"name" is missing`},
		{"network-bad-policy", "POST", "/v1/networks", `{"name":"a","policy":"none"}`, 400, `write "no-network"`},
		{"browser", "GET", "http://evil.test/v1/containers", "", 403, "evil.test"},
	} {
		t.Run(row.name, func(t *testing.T) {
			url := row.path
			if strings.HasPrefix(url, "/") {
				url = "http://localhost" + url
			}
			w := httptest.NewRecorder()
			Handler(&fakeBackend{}).ServeHTTP(w, httptest.NewRequest(row.method, url, strings.NewReader(row.body)))
			if w.Code != row.want || !strings.Contains(strings.ReplaceAll(w.Body.String(), `\"`, `"`), row.text) {
				t.Errorf("got %d %s, want %d and %s", w.Code, w.Body, row.want, row.text)
			}
		})
	}
}
