package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// apply runs one command line against a provider that answers as given, and returns what it was sent.
func apply(t *testing.T, status int, answer string, args ...string) (sent, out string, code int) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		sent = r.Method + " " + r.URL.Path + " " + r.Header.Get("Authorization") + " " + string(body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	t.Setenv("DAYTONA_API_URL", s.URL)
	t.Setenv("DAYTONA_API_KEY", "secret")
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), append([]string{"apply"}, args...), strings.NewReader(""), &stdout, &stderr)
	return sent, stdout.String() + stderr.String(), code
}

func TestApplyDaytona(t *testing.T) {
	const params = `{"run_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["a.test"]}}`
	sent, out, code := apply(t, 200, `{"domainAllowList": "a.test"}`, "--provider", "daytona", "--sandbox", "s1", "--env-params", params)
	if want := `POST /sandbox/s1/network-settings Bearer secret {"domainAllowList":"a.test"}`; sent != want || code != exitDone {
		t.Errorf("sent %s, code %d: %s", sent, code, out)
	}
	if want := "s1: phase run is in force: {\"domain_allow_list\":\"a.test\"}\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	for _, row := range []struct {
		name, want string
		status     int
		args       []string
	}{
		{"refused-by-daytona", "daytona: sandbox s1: Daytona answers 405 Method Not Allowed: this Daytona cannot change the network of a running sandbox: upgrade it", 405, []string{"--provider", "daytona", "--sandbox", "s1", "--env-params", params}},
		{"not-exact", "daytona enforces no ports", 200, []string{"--provider", "daytona", "--sandbox", "s1", "--env-params", `{"run_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["a.test:443"]}}`}},
		{"docker", "a container of docker is switched by sluice phase", 200, []string{"--sandbox", "s1"}},
		{"no-sandbox", `required flag(s) "sandbox" not set`, 200, []string{"--provider", "daytona"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, out, code := apply(t, row.status, "", row.args...)
			if code == exitDone || !strings.Contains(out, row.want) || strings.Contains(out, "secret") {
				t.Errorf("code %d: %s", code, out)
			}
		})
	}
}

// TestApplyModal checks what sluice-modal is given and how its failure is told.
func TestApplyModal(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	args := []string{"--provider", "modal", "--sandbox", "sb-1", "--env-params", `{"run_network_policy": "no-network"}`}
	if _, out, code := apply(t, 200, "", args...); code != exitFailed || !strings.Contains(out, "sluice-modal is neither beside this program nor in PATH") {
		t.Errorf("not installed: code %d: %s", code, out)
	}
	program := filepath.Join(dir, modalProgram)
	record := filepath.Join(dir, "record")
	write := func(script string) {
		t.Helper()
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(`read settings; echo "$1 $settings" >` + record + "\n")
	if _, out, code := apply(t, 200, "", args...); code != exitDone {
		t.Fatalf("code %d: %s", code, out)
	}
	got, err := os.ReadFile(record)
	if want := `sb-1 {"outbound_domain_allowlist":[],"outbound_cidr_allowlist":[]}` + "\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	write("echo 'no such sandbox' >&2; exit 1\n")
	if _, out, code := apply(t, 200, "", args...); code != exitFailed || !strings.Contains(out, "modal: no such sandbox") {
		t.Errorf("code %d: %s", code, out)
	}
}
