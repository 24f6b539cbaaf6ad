package docs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"sluice/control"
	"sluice/controller/api"
	"sluice/controller/tally"
	"sluice/policy"
	"sluice/proxy"
)

// description loads api/NAME.openapi.yaml, which is a valid OpenAPI 3.1 document.
func description(t *testing.T, name string) *openapi3.T {
	t.Helper()
	loader := openapi3.NewLoader()
	loader.IsExternalRefsAllowed = true
	d, err := loader.LoadFromFile(filepath.Join("api", name+".openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Validate(loader.Context); err != nil {
		t.Fatal(err)
	}
	if !d.IsOpenAPI31OrLater() {
		t.Fatalf("%s is of version %s", name, d.OpenAPI)
	}
	return d
}

// routes reads the table of routes in a file, as "METHOD /path".
func routes(t *testing.T, file string) []string {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	ast.Inspect(tree, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "routes" {
			return true
		}
		for _, x := range spec.Values[0].(*ast.CompositeLit).Elts {
			row := x.(*ast.CompositeLit)
			path, err := strconv.Unquote(row.Elts[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			method := strings.TrimPrefix(row.Elts[1].(*ast.SelectorExpr).Sel.Name, "Method")
			all = append(all, strings.ToUpper(method)+" "+path)
		}
		return false
	})
	return all
}

func TestEveryRouteIsDescribed(t *testing.T) {
	for name, file := range map[string]string{"control": "../control/handler.go", "sluice": "../controller/api/handler.go"} {
		var described []string
		for path, item := range description(t, name).Paths.Map() {
			for method := range item.Operations() {
				described = append(described, method+" "+path)
			}
		}
		want := routes(t, file)
		slices.Sort(described)
		slices.Sort(want)
		if len(want) < 5 || !slices.Equal(described, want) {
			t.Errorf("%s describes %q, the handler serves %q", name, described, want)
		}
	}
}

// server sends requests to a handler, and compares them and what it answers with a description.
type server struct {
	*testing.T
	described *openapi3.T
	handler   http.Handler
	browser   bool            // what is sent looks like a browser's
	beyond    bool            // what is wrong with a request is nothing that a description can say
	seen      map[string]bool // "METHOD /path status"
}

// ask sends a request of an operation, "METHOD /path", for an id, and expects a status. What is answered well is described
// so, and what the answer calls wrong is not.
func (s *server) ask(want int, operation, id, query, body string) {
	s.Helper()
	method, path, _ := strings.Cut(operation, " ")
	item := s.described.Paths.Value(path)
	if item == nil || item.GetOperation(method) == nil {
		s.Fatalf("%s is not described", operation)
	}
	url := "http://localhost" + strings.ReplaceAll(path, "{id}", id) + query
	request := func(ctx context.Context) *http.Request {
		req := httptest.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if s.browser {
			req.Header.Set("Origin", "http://page.example")
		}
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		return req
	}
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	w := &recorder{httptest.NewRecorder(), func() {}}
	stream := path == "/v1/events" && want == http.StatusOK
	if stream {
		w.flushed = cancel
	}
	s.handler.ServeHTTP(w, request(ctx))
	if w.Code != want {
		s.Errorf("%s for %q: status %d, want %d: %s", operation, id, w.Code, want, w.Body)
		return
	}
	in := &openapi3filter.RequestValidationInput{
		Request: request(s.Context()), PathParams: map[string]string{"id": id},
		Route: &routers.Route{Spec: s.described, Path: path, PathItem: item, Method: method, Operation: item.GetOperation(method)},
	}
	if err := openapi3filter.ValidateRequest(s.Context(), in); want < 300 && err != nil || want == http.StatusBadRequest && err == nil && !s.beyond {
		s.Errorf("%s for %q, %.100s: the answer is %d, the description says of the request: %v", operation, id, body, want, err)
	}
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: w.Code, Header: w.Result().Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: stream}, // its lines are records
	}
	out.SetBodyBytes(w.Body.Bytes())
	if err := openapi3filter.ValidateResponse(s.Context(), out); err != nil {
		s.Errorf("%s for %q: %d %s: %v", operation, id, w.Code, w.Body, err)
	}
	s.seen[operation+" "+strconv.Itoa(w.Code)] = true
}

// recorder calls flushed when something is to be on its way, the head of a stream for instance.
type recorder struct {
	*httptest.ResponseRecorder
	flushed func()
}

func (r *recorder) Flush() {
	r.ResponseRecorder.Flush()
	r.flushed()
}

// complete wants every described answer to have been seen.
func (s *server) complete() {
	s.Helper()
	for path, item := range s.described.Paths.Map() {
		for method, operation := range item.Operations() {
			for status := range operation.Responses.Map() {
				if !s.seen[method+" "+path+" "+status] {
					s.Errorf("no test has %s %s answer %s", method, path, status)
				}
			}
		}
	}
	if len(s.seen) == 0 {
		s.Error("nothing was asked")
	}
}

// failing answers every method with an error, if it is set.
type failing struct {
	control.Backend
	err error
}

func (f failing) Health(ctx context.Context) (control.Health, error) {
	if f.err == nil {
		return control.Health{Problems: []string{"nothing comes back"}}, nil
	}
	return control.Health{}, f.err
}
func (f failing) Sessions(context.Context) ([]control.SessionStatus, error) { return nil, f.err }
func (f failing) Session(context.Context, string) (control.SessionStatus, error) {
	return control.SessionStatus{}, f.err
}
func (f failing) SetSession(context.Context, string, control.SessionSpec) (control.Receipt, error) {
	return control.Receipt{}, f.err
}
func (f failing) DeleteSession(context.Context, string) (control.Receipt, error) {
	return control.Receipt{}, f.err
}
func (f failing) DropListeners(context.Context, string, uint64) error   { return f.err }
func (f failing) Flows(context.Context, string) ([]control.Flow, error) { return nil, f.err }
func (f failing) Explain(context.Context, string, string) (control.Explanation, error) {
	return control.Explanation{}, f.err
}

const phases = `{"baseline":"public","run":{"network_mode":"allowlist","allowed_hosts":["192.0.2.1:443"]},"evaluation":"no-network"}`

// The proxy's interface, asked of a real proxy.
func TestControlSocketIsAsDescribed(t *testing.T) {
	p, err := proxy.New(proxy.Config{Workers: 1, Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := &server{T: t, described: description(t, "control"), handler: control.Handler(p), seen: map[string]bool{}}
	s.ask(200, "PUT /v1/sessions/{id}", "a", "", `{"container":"web","phase":"run","generation":2,"policies":`+phases+`,"upstreams":["192.0.2.53"],"never":["192.0.2.0/25"],"hosts":{"db":["192.0.2.200"]},"no_route":["ipv6"]}`)
	s.ask(200, "PUT /v1/sessions/{id}", "a", "", `{"phase":"evaluation"}`)
	s.ask(400, "PUT /v1/sessions/{id}", "a", "", `{"phase":"later"}`)
	s.ask(400, "PUT /v1/sessions/{id}", "a", "", `{"policy":"public"}`)
	s.ask(400, "PUT /v1/sessions/{id}", "a", "", `{"policies":{"run":"public"}}`)
	s.ask(409, "PUT /v1/sessions/{id}", "a", "", `{"phase":"run","generation":1}`)
	s.ask(413, "PUT /v1/sessions/{id}", "a", "", `"`+strings.Repeat("a", 32<<20)+`"`)
	s.ask(200, "GET /v1/sessions/{id}", "a", "", "")
	s.ask(404, "GET /v1/sessions/{id}", "b", "", "")
	s.ask(400, "GET /v1/sessions/{id}", ".a", "", "")
	s.ask(200, "GET /v1/sessions", "n", "", "")
	s.ask(200, "GET /v1/health", "n", "", "")
	s.ask(200, "GET /v1/events", "n", "", "")
	s.ask(200, "GET /metrics", "n", "", "")
	s.ask(200, "GET /v1/sessions/{id}/explain", "a", "?target=192.0.2.1:443", "")
	s.ask(400, "GET /v1/sessions/{id}/explain", "a", "", "")
	s.ask(404, "GET /v1/sessions/{id}/explain", "b", "?target=192.0.2.1:443", "")
	s.ask(200, "GET /v1/sessions/{id}/flows", "a", "", "")
	s.ask(400, "GET /v1/sessions/{id}/flows", ".a", "", "")
	s.ask(404, "GET /v1/sessions/{id}/flows", "b", "", "")
	s.ask(200, "DELETE /v1/sessions/{id}/listeners", "a", "?keep=0", "")
	s.ask(400, "DELETE /v1/sessions/{id}/listeners", "a", "", "")
	s.ask(404, "DELETE /v1/sessions/{id}/listeners", "b", "?keep=0", "")
	s.ask(200, "DELETE /v1/sessions/{id}", "a", "", "")
	s.ask(404, "DELETE /v1/sessions/{id}", "a", "", "")
	s.ask(400, "DELETE /v1/sessions/{id}", ".a", "", "")

	s.handler = control.Handler(failing{p, nil})
	s.ask(503, "GET /v1/health", "n", "", "")
	s.handler = control.Handler(failing{p, errors.New("broken")})
	s.all(500)
	s.handler = control.Handler(failing{p, &control.Error{Code: control.CodeQuarantined, Message: "a step failed"}})
	s.ask(503, "PUT /v1/sessions/{id}", "a", "", `{"phase":"run"}`)
	s.browser = true
	s.all(403)
	s.complete()
}

// all asks for every operation that is described to answer a status.
func (s *server) all(status int) {
	s.Helper()
	bodies := map[string]string{"PUT /v1/sessions/{id}": `{"phase":"run"}`, "POST /v1/containers": `{"container":"web","policy":"public"}`,
		"PUT /v1/containers/{id}/phase": `{"phase":"run"}`, "PUT /v1/containers/{id}/policy": `{"policy":"public"}`, "POST /v1/networks": `{"name":"n"}`,
		"POST /v1/containers/{id}/verify": `{"reach":["a.test:1"]}`}
	queries := map[string]string{"explain": "?target=a.test:1", "listeners": "?keep=0"}
	for path, item := range s.described.Paths.Map() {
		for method, operation := range item.Operations() {
			if operation.Responses.Status(status) != nil {
				s.ask(status, method+" "+path, "a", queries[path[strings.LastIndexByte(path, '/')+1:]], bodies[method+" "+path])
			}
		}
	}
}

// controller answers with values in every field, or with an error.
type controller struct {
	hub control.Hub
	err error
}

var (
	digest  = policy.Policy{}.Digest().String()
	receipt = api.Receipt{Container: "web", ContainerID: "1", Generation: 2, Phase: "run", Digest: digest, FlowsCut: 3, DirectCut: 1, FlowsKept: 1,
		InboundOpen: 1, Milliseconds: 3.5}
	full = api.Status{ID: "1", Name: "web", Holder: "2", State: api.Quarantined, Problem: "a step failed", Phase: "run", Mode: "allowlist", Targets: 2,
		Generation: 2, Digest: digest, Since: time.Unix(1, 0), Weak: []string{"NET_ADMIN"}, Notes: []string{"internal"}, Proxy: []string{"127.0.0.1:3128"},
		UncoveredMilliseconds: 1.5, Policies: map[string]json.RawMessage{"run": json.RawMessage(`"public"`)}, Unchanged: true, Milliseconds: 2}
)

func (c *controller) List(context.Context) ([]api.Status, error) { return []api.Status{full}, c.err }
func (c *controller) Attach(context.Context, string, policy.Phases, policy.Phase, api.Options) (api.Status, error) {
	return full, c.err
}
func (c *controller) Status(context.Context, string) (api.Status, error) { return full, c.err }
func (c *controller) Detach(context.Context, string) error               { return c.err }
func (c *controller) Phase(context.Context, string, policy.Phase, uint64) (api.Receipt, error) {
	return receipt, c.err
}
func (c *controller) Set(context.Context, string, policy.Phases, uint64) (api.Receipt, error) {
	return receipt, c.err
}
func (c *controller) Explain(context.Context, string, string) (control.Explanation, error) {
	return control.Explanation{Target: "a.test:1", Phase: "run", Verdict: "allow", Reason: "name-rule", Rule: "a.test", Text: "it is allowed",
		Addresses: []control.ExplainedAddress{{Address: "192.0.2.1", Verdict: "allow", Reason: "name-rule", Rule: "a.test"}}}, c.err
}
func (c *controller) Report(context.Context, string) (api.Report, error) {
	return api.Report{Status: full, Since: time.Unix(1, 0), Now: time.Unix(3, 0), Partial: "started again", Earlier: 1,
		Switches: []api.Switch{{Began: time.Unix(2, 0), Receipt: receipt, Problem: "it hangs"}}, Packets: []api.Packets{{Phase: "run", Allowed: 1, Refused: 2}},
		Traffic: []tally.Phase{{Phase: "run", Refused: 1, Untold: 1, Generations: []uint64{2}, Attempts: []tally.Attempt{{Target: "b.test", Port: 443,
			Protocol: "tls", Verdict: "refuse", Reason: "not-listed", Rule: "r", Count: 1}}}}}, c.err
}
func (c *controller) Verify(context.Context, string, api.Verify) (api.Verification, error) {
	return verification, c.err
}
func (c *controller) Flows(context.Context, string) ([]control.Flow, error) {
	return []control.Flow{{ID: "1", Protocol: "tls", Target: "a.test:443", Address: "192.0.2.1:443", Since: time.Unix(1, 0), BytesIn: 1, Rule: "a.test"}}, c.err
}
func (c *controller) Networks(context.Context) ([]api.Network, error) {
	return []api.Network{{Name: "n", ID: "1", Bridge: "b", Subnets: []string{"192.0.2.0/24"}}}, c.err
}
func (c *controller) CreateNetwork(context.Context, api.NewNetwork) (api.Network, error) {
	return api.Network{Name: "n"}, c.err
}
func (c *controller) RemoveNetwork(context.Context, string, bool) error { return c.err }
func (c *controller) Events() *control.Hub                              { return &c.hub }
func (c *controller) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, "sluice_build_info 1\n")
	})
}

// verification has all fields.
var verification = api.Verification{Container: "web", ContainerID: "1", Phase: "run", Mode: "allowlist", OK: true, Generation: 1,
	Digest: receipt.Digest, Began: time.Unix(1, 0), Milliseconds: 1, Probes: []api.Probe{{Name: "udp4", Target: "192.0.2.1:9",
		Want: "refused", Verdict: api.Passed, Got: "refused", Detail: "d", Proof: []string{"gate refused"}, Decision: "1"}}}

// The controller's interface, with its real handler.
func TestSluiceSocketIsAsDescribed(t *testing.T) {
	c := &controller{}
	s := &server{T: t, described: description(t, "sluice"), handler: api.Handler(c), seen: map[string]bool{}}
	s.all(200)
	s.ask(200, "POST /v1/containers", "n", "", `{"container":"web","policy":{"run_network_policy":"public"},"phase":"run","allow_weak":true,"workload":"1"}`)
	s.ask(200, "POST /v1/networks", "n", "", `{"name":"n","internal":true,"ipv6":true,"policy":"no-network"}`)
	s.ask(200, "DELETE /v1/networks/{id}", "n", "?force=", "")
	s.ask(400, "POST /v1/containers", "n", "", `{"container":"web","policy":"public","other":1}`)
	s.ask(400, "POST /v1/containers", "n", "", `{"container":"","policy":"public"}`)
	s.ask(400, "POST /v1/containers", "n", "", `{"container":"web"}`)
	s.ask(400, "PUT /v1/containers/{id}/phase", "a", "", `{"phase":"later"}`)
	s.ask(400, "PUT /v1/containers/{id}/policy", "a", "", `{}`)
	s.ask(400, "GET /v1/containers/{id}/explain", "a", "", "")
	s.ask(400, "POST /v1/networks", "n", "", `{"internal":true}`)
	s.ask(400, "POST /v1/containers/{id}/verify", "a", "", `{"reach":1}`)
	s.beyond = true
	s.ask(400, "POST /v1/containers", "n", "", `{"container":"web","policy":{"network_mode":"none"}}`)
	s.beyond = false
	large := `{"container":"` + strings.Repeat("a", 32<<20) + `","policy":"public"}`
	s.ask(413, "POST /v1/containers", "n", "", large)
	s.ask(413, "PUT /v1/containers/{id}/phase", "a", "", large)
	s.ask(413, "PUT /v1/containers/{id}/policy", "a", "", large)
	s.ask(413, "POST /v1/networks", "n", "", large)
	s.ask(413, "POST /v1/containers/{id}/verify", "a", "", large)
	for status, code := range map[int]control.Code{404: control.CodeNotFound, 409: control.CodeConflict, 422: control.CodeRefused, 500: control.CodeInternal, 503: control.CodeQuarantined} {
		c.err = &control.Error{Code: code, Message: "it is so"}
		s.all(status)
	}
	c.err = nil
	s.browser = true
	s.all(403)
	s.complete()
}

// What is described has the fields that the programs read and write, no less and no more.
func TestFieldsAreDescribed(t *testing.T) {
	of := func(name string) openapi3.Schemas { return description(t, name).Components.Schemas }
	proxied, controlled := of("control"), of("sluice")
	common := openapi3.NewLoader()
	shared, err := common.LoadFromFile(filepath.Join("api", "common.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		schemas openapi3.Schemas
		name    string
		v       any
	}{
		{proxied, "Health", control.Health{}}, {proxied, "SessionSpec", control.SessionSpec{}}, {proxied, "Session", control.SessionStatus{}},
		{proxied, "Receipt", control.Receipt{}}, {controlled, "Attach", api.Attach{}}, {controlled, "Phase", api.Phase{}},
		{controlled, "SetPolicy", api.Policy{}}, {controlled, "NewNetwork", api.NewNetwork{}}, {controlled, "Network", api.Network{}},
		{controlled, "Status", api.Status{}}, {controlled, "Receipt", api.Receipt{}}, {controlled, "Report", api.Report{}},
		{controlled, "Verify", api.Verify{}}, {controlled, "Verification", api.Verification{}}, {controlled, "Probe", api.Probe{}},
		{controlled, "Switch", api.Switch{}}, {controlled, "Packets", api.Packets{}}, {controlled, "Traffic", tally.Phase{}}, {controlled, "Attempt", tally.Attempt{}},
		{shared.Components.Schemas, "Flow", control.Flow{}}, {shared.Components.Schemas, "Explanation", control.Explanation{}},
	} {
		got := slices.Sorted(maps.Keys(row.schemas[row.name].Value.Properties))
		if want := slices.Sorted(slices.Values(fields(row.v))); !slices.Equal(got, want) {
			t.Errorf("%s has the fields %q, %T has %q", row.name, got, row.v, want)
		}
	}
}

// What is described as one of some words has the words of the programs.
func TestWordsAreDescribed(t *testing.T) {
	common, err := openapi3.NewLoader().LoadFromFile(filepath.Join("api", "common.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var phases []string
	for phase := range policy.PhaseCount {
		phases = append(phases, policy.Phase(phase).String())
	}
	failure := common.Components.Schemas["Failure"].Value.Properties["error"].Value.Properties
	for what, row := range map[string]struct {
		described *openapi3.SchemaRef
		want      []string
	}{
		"codes":  {failure["code"], constants(t, "../control/errors.go", "Code")},
		"phases": {common.Components.Schemas["Phase"], phases},
		"states of sessions": {description(t, "control").Components.Schemas["Session"].Value.Properties["state"],
			constants(t, "../control/types.go", "SessionState")},
		"states of containers": {description(t, "sluice").Components.Schemas["Status"].Value.Properties["state"],
			constants(t, "../controller/api/types.go", "State")},
		"verdicts of probes": {description(t, "sluice").Components.Schemas["Probe"].Value.Properties["verdict"],
			constants(t, "../controller/api/verify.go", "Verdict")},
	} {
		var got []string
		for _, v := range row.described.Value.Enum {
			got = append(got, v.(string))
		}
		slices.Sort(got)
		slices.Sort(row.want)
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: described are %q, there are %q", what, got, row.want)
		}
	}
}

// A description that has another field, or less, is noticed.
func TestDescriptionsAreCompared(t *testing.T) {
	d := description(t, "sluice")
	schema := d.Components.Schemas["Receipt"].Value
	for _, row := range []struct {
		change string
		ok     bool
	}{{`"phase":"run"`, true}, {`"phase":"later"`, false}, {`"flows_cut":-1`, false}, {`"ms":"3"`, false}, {`"digest":"1"`, false}} {
		text, err := json.Marshal(receipt)
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := errors.Join(json.Unmarshal(text, &v), json.Unmarshal([]byte("{"+row.change+"}"), &v)); err != nil {
			t.Fatal(err)
		}
		if err := schema.VisitJSON(v, openapi3.EnableJSONSchema2020()); (err == nil) != row.ok {
			t.Errorf("%s: %v", row.change, err)
		}
	}
	if text, err := json.Marshal(full); err != nil || bytes.Contains(text, []byte("null")) {
		t.Errorf("the status has a field without a value: %s, %v", text, err)
	}
}
