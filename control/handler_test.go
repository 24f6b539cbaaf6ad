package control

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

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

func TestBrowsersAreRefused(t *testing.T) {
	h := Handler(&fakeBackend{})
	for _, row := range []struct {
		name, header, value string
		want                int
	}{
		{"plain", "Accept", "*/*", 200},
		{"origin", "Origin", "https://evil.test", 403},
		{"null-origin", "Origin", "null", 403},
		{"referer", "Referer", "https://evil.test/", 403},
		{"fetch-metadata", "Sec-Fetch-Site", "same-origin", 403},
		{"client-host", "Host", "sluice", 200},
		{"curl-host", "Host", "localhost", 200},
		{"foreign-host", "Host", "evil.test", 403},
		{"host-with-port", "Host", "localhost:80", 403},
		{"address-host", "Host", "127.0.0.1", 403},
		{"no-host", "Host", "", 403},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, r := range routes {
				if r.path == "/v1/events" && row.want == 200 {
					continue // never ends
				}
				path := strings.ReplaceAll(r.path, "{id}", "s1") + "?target=a"
				req := httptest.NewRequest(r.method, "http://localhost"+path, strings.NewReader("{}"))
				if row.header == "Host" {
					req.Host = row.value
				} else {
					req.Header.Set(row.header, row.value)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, req)
				refused := w.Code == http.StatusForbidden
				if refused != (row.want == 403) {
					t.Errorf("%s %s: got %d: %s", r.method, path, w.Code, w.Body)
				}
			}
		})
	}
}

func TestRequests(t *testing.T) {
	for _, row := range []struct {
		name, method, path, body string
		want                     int
		text                     string
	}{
		{"no-path", "GET", "/", "", 404, "no path"},
		{"old-version", "GET", "/v0/health", "", 404, "no path"},
		{"wrong-method", "POST", "/v1/sessions/s1", "{}", 405, "POST is not for /v1/sessions/{id}"},
		{"delete-all", "DELETE", "/v1/sessions", "", 405, "GET is"},
		{"no-session", "GET", "/v1/sessions/s1", "", 404, "no session"},
		{"no-target", "GET", "/v1/sessions/s1/explain", "", 400, "?target="},
		{"no-set", "DELETE", "/v1/sessions/s1/listeners", "", 400, "?keep="},
		{"no-session-to-drop", "DELETE", "/v1/sessions/s1/listeners?keep=0", "", 404, "no session"},
		{"empty-body", "PUT", "/v1/sessions/s1", "", 400, "not JSON"},
		{"not-json", "PUT", "/v1/sessions/s1", "phase: run", 400, "not JSON"},
		{"array", "PUT", "/v1/sessions/s1", "[]", 400, "want a JSON object"},
		{"null", "PUT", "/v1/sessions/s1", "null", 400, "want a JSON object"},
		{"null-field", "PUT", "/v1/sessions/s1", `{"phase":null}`, 400, `"phase": null`},
		{"null-policies", "PUT", "/v1/sessions/s1", `{"policies":null}`, 400, `want a JSON object`},
		{"unknown-field", "PUT", "/v1/sessions/s1", `{"phaze":"run"}`, 400, `"phaze": unknown field`},
		{"other-case", "PUT", "/v1/sessions/s1", `{"Phase":"run"}`, 400, `"Phase": unknown field`},
		{"repeated", "PUT", "/v1/sessions/s1", `{"phase":"run","phase":"baseline"}`, 400, `"phase": repeated`},
		{"repeated-escaped", "PUT", "/v1/sessions/s1", `{"phase":"run","\u0070hase":"baseline"}`, 400, `"phase": repeated`},
		{"repeated-policy", "PUT", "/v1/sessions/s1", `{"policies":{"run":"public","run":"no-network"}}`, 400, `"run": repeated`},
		{"trailing", "PUT", "/v1/sessions/s1", `{} {}`, 400, "bytes after"},
		{"cut-off", "PUT", "/v1/sessions/s1", `{"phase":"run"`, 400, "not JSON"},
		{"bad-utf8", "PUT", "/v1/sessions/s1", "{\"phase\":\"\xff\"}", 400, "not UTF-8"},
		{"negative-generation", "PUT", "/v1/sessions/s1", `{"generation":-1}`, 400, "generation"},
		{"fine", "PUT", "/v1/sessions/s1", ` {"phase":"run"} `, 200, `"phase":"run"`},
		{"empty-object", "PUT", "/v1/sessions/s1", `{}`, 200, `"session":"s1"`},
		{"no-sessions", "GET", "/v1/sessions", "", 200, "[]"},
	} {
		t.Run(row.name, func(t *testing.T) {
			req := httptest.NewRequest(row.method, "http://localhost"+row.path, strings.NewReader(row.body))
			w := httptest.NewRecorder()
			Handler(&fakeBackend{}).ServeHTTP(w, req)
			if w.Code != row.want || !strings.Contains(strings.ReplaceAll(w.Body.String(), `\"`, `"`), row.text) {
				t.Errorf("got %d %s, want %d and %s", w.Code, w.Body, row.want, row.text)
			}
		})
	}
}

func TestBodyLimit(t *testing.T) {
	c := serve(t, &fakeBackend{})
	size := maxBodyBytes + 1
	body := `{"phase":"` + strings.Repeat("x", size-12) + `"}`
	answer := rawRequest(t, c, fmt.Sprintf("PUT /v1/sessions/s1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", size, body))
	if !strings.HasPrefix(answer, "HTTP/1.1 413 ") || !strings.Contains(answer, "too-large") {
		t.Errorf("got %.200s, want 413", answer)
	}
}
