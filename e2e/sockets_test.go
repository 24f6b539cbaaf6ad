package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"sluice/e2e/lab/client"
)

// socket is a running server's, with what docs/api says of it.
type socket struct {
	*testing.T
	described *openapi3.T
	client    http.Client
	asked     map[string]bool // operations
}

func openSocket(t *testing.T, description, path string) *socket {
	t.Helper()
	loader := openapi3.NewLoader()
	loader.IsExternalRefsAllowed = true
	d, err := loader.LoadFromFile(filepath.Join("..", "docs", "api", description+".openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s := &socket{T: t, described: d, asked: map[string]bool{}}
	s.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	return s
}

// open sends the request of an operation, "METHOD /path", for an id, and wants status 200.
func (s *socket) open(operation, id, query, body string) io.ReadCloser {
	s.Helper()
	s.asked[operation] = true
	method, path, _ := strings.Cut(operation, " ")
	req, err := http.NewRequestWithContext(s.Context(), method, "http://localhost"+strings.ReplaceAll(path, "{id}", id)+query, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.Fatalf("%s: %v", operation, err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		s.Fatalf("%s: %s %s", operation, resp.Status, text)
	}
	return resp.Body
}

// ask wants a body as described, which it returns.
func (s *socket) ask(operation, id, query, body string) (answer any) {
	s.Helper()
	r := s.open(operation, id, query, body)
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		s.Fatalf("%s: %v", operation, err)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		s.Fatalf("%s: %s: %v", operation, text, err)
	}
	method, path, _ := strings.Cut(operation, " ")
	schema := s.described.Paths.Value(path).GetOperation(method).Responses.Status(http.StatusOK).Value.Content.Get("application/json").Schema.Value
	if err := schema.VisitJSON(answer, openapi3.EnableJSONSchema2020()); err != nil {
		s.Errorf("%s answers %s: %v", operation, text, err)
	}
	return answer
}

// metrics wants metrics as Prometheus reads them.
func (s *socket) metrics() {
	s.Helper()
	r := s.open("GET /metrics", "", "", "")
	defer r.Close()
	if problems, err := promlint.New(r).Lint(); err != nil || len(problems) > 0 {
		s.Errorf("metrics: %v, %v", problems, err)
	}
}

// event wants the next line of a stream of events to be a record as its schema says, and returns it.
func (s *socket) event(stream *bufio.Scanner) map[string]any {
	s.Helper()
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "docs", "schema", "audit.schema.json"))
	if err != nil {
		s.Fatal(err)
	}
	if !stream.Scan() {
		s.Fatalf("the stream of events ends: %v", stream.Err())
	}
	record, err := jsonschema.UnmarshalJSON(bytes.NewReader(stream.Bytes()))
	if err != nil {
		s.Fatal(err)
	}
	if err := schema.Validate(record); err != nil {
		s.Errorf("the record %s: %v", stream.Bytes(), err)
	}
	return record.(map[string]any)
}

// complete wants every operation that is described to have been asked, but for some.
func (s *socket) complete(others ...string) {
	s.Helper()
	for path, item := range s.described.Paths.Map() {
		for method := range item.Operations() {
			if operation := method + " " + path; s.asked[operation] == slices.Contains(others, operation) {
				s.Errorf("%s was asked: %v; it is among those that are not: %v", operation, s.asked[operation], !s.asked[operation])
			}
		}
	}
}

// TestSocketsAreAsDescribed compares what a controller and its proxy answer with docs/api, while a container is looked
// after. The package docs does the same with errors, and in every detail, without an engine.
func TestSocketsAreAsDescribed(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	const name = "e2e-described"
	if _, err := docker("run", "--detach", "--name", name, client.Tag, "sleep", "600"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := docker("rm", "--force", name); err != nil {
			t.Error(err)
		}
	}()
	s := openSocket(t, "sluice", theController.socket())
	following := s.open("GET /v1/events", "", "", "")
	defer following.Close()
	s.ask("POST /v1/containers", "", "", `{"container": "`+name+`", "policy": {"run_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["web.test"]}}}`)
	s.ask("PUT /v1/containers/{id}/phase", name, "", `{"phase": "run"}`)
	s.ask("GET /v1/containers/{id}/explain", name, "?target=web.test:443", "")
	if _, err := docker("exec", name, "curl", "-sS", "https://evil.test/"); err == nil {
		t.Error("evil.test was reached")
	}
	for stream := bufio.NewScanner(following); ; {
		if e := s.event(stream); e["verdict"] == "refuse" && e["target"] == "evil.test" {
			break
		}
	}
	s.ask("GET /v1/containers/{id}/report", name, "", "")
	s.ask("POST /v1/containers/{id}/verify", name, "", "{}")
	s.metrics()

	sockets, err := filepath.Glob(filepath.Join(filepath.Dir(theController.socket()), "proxy", "*", "control.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("sockets of proxies: %q, %v", sockets, err)
	}
	p := openSocket(t, "control", sockets[0])
	p.ask("GET /v1/health", "", "", "")
	sessions := p.ask("GET /v1/sessions", "", "", "").([]any)
	if len(sessions) == 0 {
		t.Fatal("the proxy has no session")
	}
	id := sessions[0].(map[string]any)["id"].(string)
	p.ask("GET /v1/sessions/{id}", id, "", "")
	p.ask("GET /v1/sessions/{id}/flows", id, "", "")
	p.ask("GET /v1/sessions/{id}/explain", id, "?target=web.test:443", "")
	p.metrics()
	// The controller asks the others itself, and gets the records.
	p.complete("PUT /v1/sessions/{id}", "DELETE /v1/sessions/{id}", "DELETE /v1/sessions/{id}/listeners", "GET /v1/events")

	s.ask("GET /v1/containers", "", "", "")
	s.ask("GET /v1/containers/{id}", name, "", "")
	s.ask("GET /v1/containers/{id}/flows", name, "", "")
	s.ask("PUT /v1/containers/{id}/policy", name, "", `{"policy": "no-network"}`)
	s.ask("POST /v1/networks", "", "", `{"name": "`+name+`"}`)
	s.ask("GET /v1/networks", "", "", "")
	s.ask("DELETE /v1/networks/{id}", name, "", "")
	s.ask("DELETE /v1/containers/{id}", name, "", "")
	s.complete()
}
