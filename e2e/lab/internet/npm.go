package internet

import (
	"bytes"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// npmPackages is how many packages of the npm registry "labpkg" depends on.
const npmPackages = 40

// serveNPM adds a registry of npm packages (https://github.com/npm/registry/blob/main/docs/responses/package-metadata.md):
// "labpkg" and what it depends on, lab-0 to lab-39. The files lie on the same host, as they do on the real one.
func serveNPM(mux *http.ServeMux) {
	depends := map[string]string{}
	for i := range npmPackages {
		depends[fmt.Sprint("lab-", i)] = "1.0.0"
	}
	archive := func(name string) ([]byte, map[string]any) {
		manifest := map[string]any{"name": name, "version": "1.0.0", "main": "index.js"}
		if name == "labpkg" {
			manifest["dependencies"] = depends
		}
		text, err := json.Marshal(manifest)
		must(err)
		return tarball(entry{"package/package.json", string(text), 0o644},
			entry{"package/index.js", fmt.Sprintf("module.exports = %q\n", name), 0o644}), manifest
	}
	known := func(name string) bool { return name == "labpkg" || depends[name] != "" }
	mux.HandleFunc("GET /npm/{name}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		if !known(name) {
			http.NotFound(w, r)
			return
		}
		body, manifest := archive(name)
		sum := sha512.Sum512(body)
		manifest["dist"] = map[string]string{
			"tarball":   fmt.Sprintf("%s://%s/npm/%s/-/%s-1.0.0.tgz", scheme(r), r.Host, name, name),
			"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{
			"name": name, "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": manifest},
		})
	})
	mux.HandleFunc("GET /npm/{name}/-/{file}", func(w http.ResponseWriter, r *http.Request) {
		name, ok := strings.CutSuffix(r.PathValue("file"), "-1.0.0.tgz")
		if !ok || !known(name) {
			http.NotFound(w, r)
			return
		}
		body, _ := archive(name)
		http.ServeContent(w, r, "", mirrored, bytes.NewReader(body))
	})
}
