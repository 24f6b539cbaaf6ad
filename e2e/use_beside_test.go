package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"sluice/controller/api"
)

// besideProxy uses Node.js's fetch on an internal network, where nothing but the proxy leads out: a version that can be
// told of it works, one that cannot fails at once (L-28).
func (u *user) besideProxy(t *testing.T) {
	const network, proxy, at = "use-inside", "use-proxy", "10.213.7.2"
	const atOnce = 8 // seconds: less than what fetch waits for a connection
	policy := t.TempDir()
	if err := os.Chmod(policy, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(policy, "phases.yaml"), allowlist(t, "web.test:443"), 0o644); err != nil {
		t.Fatal(err)
	}
	own := *u
	own.t, own.name = t, "use-beside"
	for _, c := range []struct{ do, undo []string }{
		{[]string{"network", "create", "--internal", "--subnet", "10.213.7.0/28", network}, []string{"network", "rm", network}},
		{[]string{"create", "--name", proxy, "--network", network, "--ip", at, "--volume", policy + ":/etc/sluice:ro", *proxyImage,
			"serve", "--policy", "/etc/sluice/phases.yaml", "--listen", ":8080", "--dns", ":53"}, []string{"rm", "--force", proxy}},
		{[]string{"network", "connect", "bridge", proxy}, nil},
		{[]string{"start", proxy}, nil},
		{append(append([]string{"run", "--detach", "--name", own.name, "--network", network, "--dns", at, "--env", "HTTPS_PROXY=http://" + at + ":8080"}, u.with...),
			"sleep", "infinity"), []string{"rm", "--force", own.name}},
	} {
		if _, err := docker(c.do...); err != nil {
			t.Fatal(err)
		}
		if c.undo != nil {
			t.Cleanup(func() {
				if _, err := docker(c.undo...); err != nil {
					t.Error(err)
				}
			})
		}
	}
	const told = "NODE_USE_ENV_PROXY=1 node 24 https://web.test/"
	own.wait("the proxy answers", func() bool {
		_, code := own.exec(useLimit, "curl -sS -m 5 https://web.test/")
		return code == 0
	})
	// Without an attachment the engine's rules drop what does not go to the proxy, and fetch waits for 10 s.
	if _, err := own.api.Attach(t.Context(), api.Attach{Container: own.name, Policy: allowlist(t, at+":8080")}); err != nil {
		t.Fatal(err)
	}
	if out, code := own.exec(useLimit, told); code != 0 || !regexp.MustCompile(`^v24.* web\.test at`).MatchString(out) {
		t.Errorf("%s: exit code %d, want 0:\n%s", told, code, out)
	}
	for _, command := range []string{"node 20 https://web.test/", "node 22 https://web.test/", "node 24 https://web.test/",
		"NODE_USE_ENV_PROXY=1 node 24 https://beside.any.test/"} {
		if out, code := own.exec(atOnce, command); code == 0 || code == 124 {
			t.Errorf("%s: exit code %d; want a failure, at once:\n%s", command, code, out)
		}
	}
}
