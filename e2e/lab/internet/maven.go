package internet

import (
	"archive/zip"
	"bytes"
	"crypto/sha1"
	"fmt"
	"net/http"
	"strings"
)

// mavenArtifacts is how many artifacts of the group "lab" the repository has beside "parent".
const mavenArtifacts = 40

// serveMaven adds a repository of Maven's layout (https://maven.apache.org/repository/layout.html) under /maven/, for Maven
// and for Gradle: lab:parent:1.0, which takes the versions of its dependencies from lab:lab-0:1.0 to lab:lab-39:1.0.
func serveMaven(mux *http.ServeMux) {
	files := map[string][]byte{}
	add := func(name, packaging, more string) {
		at := fmt.Sprintf("/maven/lab/%s/1.0/%s-1.0.", name, name)
		files[at+"pom"] = fmt.Appendf(nil, `<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>`+
			"<groupId>lab</groupId><artifactId>%s</artifactId><version>1.0</version><packaging>%s</packaging>%s</project>\n", name, packaging, more)
		var jar bytes.Buffer
		must(zip.NewWriter(&jar).Close())
		files[at+"jar"] = jar.Bytes()
	}
	var imports strings.Builder
	for i := range mavenArtifacts {
		name := fmt.Sprint("lab-", i)
		add(name, "pom", "")
		fmt.Fprintf(&imports, "<dependency><groupId>lab</groupId><artifactId>%s</artifactId><version>1.0</version><type>pom</type><scope>import</scope></dependency>", name)
	}
	add("parent", "pom", "<dependencyManagement><dependencies>"+imports.String()+"</dependencies></dependencyManagement>")
	mux.HandleFunc("GET /maven/", func(w http.ResponseWriter, r *http.Request) {
		path, isSum := strings.CutSuffix(r.URL.Path, ".sha1")
		body, ok := files[path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if isSum {
			body = fmt.Appendf(nil, "%x", sha1.Sum(body))
		}
		http.ServeContent(w, r, "", mirrored, bytes.NewReader(body))
	})
}
