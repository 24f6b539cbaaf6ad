package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"sluice/e2e/lab/client"
)

// socket is a running server's, with what docs/api says of it.
type socket struct {
	*testing.T
	described *openapi3.T
	client    http.Client
}

func openSocket(t *testing.T, description, path string) *socket {
	t.Helper()
	loader := openapi3.NewLoader()
	loader.IsExternalRefsAllowed = true
	d, err := loader.LoadFromFile(filepath.Join("..", "docs", "api", description+".openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s := &socket{T: t, described: d}
	s.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	return s
}

// ask wants status 200 and a body as described, which it returns.
func (s *socket) ask(operation, id, query, body string) (answer any) {
	s.Helper()
	method, path, _ := strings.Cut(operation, " ")
	req, err := http.NewRequestWithContext(s.Context(), method, "http://localhost"+strings.ReplaceAll(path, "{id}", id)+query, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.Fatalf("%s: %v", operation, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		s.Fatalf("%s: %s %s %v", operation, resp.Status, text, err)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		s.Fatalf("%s: %s: %v", operation, text, err)
	}
	schema := s.described.Paths.Value(path).GetOperation(method).Responses.Status(http.StatusOK).Value.Content.Get("application/json").Schema.Value
	if err := schema.VisitJSON(answer, openapi3.EnableJSONSchema2020()); err != nil {
		s.Errorf("%s answers %s: %v", operation, text, err)
	}
	return answer
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
	s.ask("POST /v1/containers", "", "", `{"container": "`+name+`", "policy": {"run_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["web.test"]}}}`)
	s.ask("PUT /v1/containers/{id}/phase", name, "", `{"phase": "run"}`)
	s.ask("GET /v1/containers/{id}/explain", name, "?target=web.test:443", "")

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

	s.ask("GET /v1/containers", "", "", "")
	s.ask("GET /v1/containers/{id}", name, "", "")
	s.ask("GET /v1/containers/{id}/flows", name, "", "")
	s.ask("PUT /v1/containers/{id}/policy", name, "", `{"policy": "no-network"}`)
	s.ask("POST /v1/networks", "", "", `{"name": "`+name+`"}`)
	s.ask("GET /v1/networks", "", "", "")
	s.ask("DELETE /v1/networks/{id}", name, "", "")
	s.ask("DELETE /v1/containers/{id}", name, "", "")
}
