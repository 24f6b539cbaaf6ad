package daytona

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sluice/policy/provider"
)

const key = "dtn_secret"

// server answers one call and keeps it.
func server(t *testing.T, status int, answer string) (url string, got *http.Request, body *string) {
	t.Helper()
	got, body = new(http.Request), new(string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		*got, *body = *r, string(text)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s.URL, got, body
}

func client(t *testing.T, url string) *Client {
	t.Helper()
	t.Setenv("DAYTONA_API_URL", url)
	t.Setenv("DAYTONA_API_KEY", key)
	c, err := FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestApply(t *testing.T) {
	yes, no := true, false
	for _, row := range []struct {
		name         string
		want         provider.Daytona
		body, answer string
	}{
		{"no-network", provider.Daytona{BlockAll: &yes}, `{"networkBlockAll":true}`, `{"id":"s1","networkBlockAll":true}`},
		{"public", provider.Daytona{BlockAll: &no}, `{"networkBlockAll":false}`, `{"id":"s1","networkBlockAll":false,"networkAllowList":null}`},
		{"domains", provider.Daytona{Domains: "a.test,*.b.test"}, `{"domainAllowList":"a.test,*.b.test"}`, `{"networkBlockAll":false,"domainAllowList":"*.b.test, a.test"}`},
		{"networks", provider.Daytona{Networks: "192.0.2.0/24"}, `{"networkAllowList":"192.0.2.0/24"}`, `{"networkAllowList":"192.0.2.0/24","domainAllowList":""}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			url, got, body := server(t, 200, row.answer)
			if err := client(t, url+"/api/").Apply(t.Context(), "s1", row.want); err != nil {
				t.Fatal(err)
			}
			if got.Method != "POST" || got.URL.Path != "/api/sandbox/s1/network-settings" || got.Header.Get("Authorization") != "Bearer "+key ||
				got.Header.Get("Content-Type") != "application/json" || *body != row.body {
				t.Errorf("got %s %s %v %s; want the body %s", got.Method, got.URL, got.Header, *body, row.body)
			}
		})
	}
}

func TestApplyFails(t *testing.T) {
	yes := true
	for _, row := range []struct {
		name    string
		sandbox string
		status  int
		answer  string
		want    string
	}{
		{"key", "s1", 401, `{"message":"bad key dtn_secret"}`, `sandbox s1: Daytona answers 401 Unauthorized ({"message":"bad key xxxxx"}): check the key in the environment`},
		{"unknown", "s1", 404, "", "sandbox s1: Daytona answers 404 Not Found: there is no such sandbox, or this Daytona cannot change the network of a running one: upgrade it, then try one task"},
		{"lacks-the-call", "s1", 405, "", "upgrade it, then try one task"},
		{"redirect", "s1", 307, "", "Daytona answers 307"},
		{"broken", "s1", 500, "\x1b[31m" + strings.Repeat("x", 500), "xxx...): nothing is known to have changed"},
		{"not-confirmed", "s1", 200, `{"networkBlockAll":false}`, "Daytona confirms other settings than those asked for"},
		{"old-list-stays", "s1", 200, `{"networkBlockAll":true,"domainAllowList":"a.test"}`, "Daytona confirms other settings than those asked for"},
		{"key-in-list", "s1", 200, `{"networkBlockAll":true,"domainAllowList":"dtn_secret` + strings.Repeat("a", 500) + `"}`, `asked for (blocked true, domains "xxxxxaaa`},
		{"no-json", "s1", 200, `<html>`, "what is in force is not known"},
		{"id", "../s1", 200, "", `"../s1" is no id of a sandbox`},
	} {
		t.Run(row.name, func(t *testing.T) {
			url, _, _ := server(t, row.status, row.answer)
			err := client(t, url).Apply(t.Context(), row.sandbox, provider.Daytona{BlockAll: &yes})
			if err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), key) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
	url, _, _ := server(t, 200, "")
	c := client(t, url)
	c.url = "http://127.0.0.1:1"
	if err := c.Apply(t.Context(), "s1", provider.Daytona{BlockAll: &yes}); err == nil || !strings.Contains(err.Error(), "what is in force is not known") || strings.Contains(err.Error(), key) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestFromEnvironment(t *testing.T) {
	for _, row := range []struct{ name, url, key, jwt, organization, want string }{
		{"nothing", "", "", "", "", "DAYTONA_API_KEY is not set"},
		{"jwt-alone", "", "", "j", "", "DAYTONA_API_KEY is not set"},
		{"plain", "http://api.test", key, "", "", "DAYTONA_API_URL is not https"},
		{"no-url", "api", key, "", "", "DAYTONA_API_URL is not the URL of an API"},
		{"user", "https://u:p@api.test", key, "", "", "DAYTONA_API_URL is not the URL of an API"},
		{"default", "", key, "", "", ""},
		{"jwt", "", "", "j", "o", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Setenv("DAYTONA_API_URL", row.url)
			t.Setenv("DAYTONA_API_KEY", row.key)
			t.Setenv("DAYTONA_JWT_TOKEN", row.jwt)
			t.Setenv("DAYTONA_ORGANIZATION_ID", row.organization)
			c, err := FromEnvironment()
			switch {
			case row.want == "" && (err != nil || c.url != DefaultURL):
				t.Errorf("got %+v, %v", c, err)
			case row.want != "" && (err == nil || !strings.HasPrefix(err.Error(), row.want) || strings.Contains(err.Error(), "u:p")):
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
}
