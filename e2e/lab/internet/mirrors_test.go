package internet

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
)

func fetch(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, answer.Status, err)
	}
	return string(body)
}

func TestMirrors(t *testing.T) {
	server, client := testWeb(t)
	for _, test := range []struct{ path, want string }{
		{"/npm/labpkg", server.URL + "/npm/labpkg/-/labpkg-1.0.0.tgz"},
		{"/npm/labpkg", fmt.Sprintf(`"lab-%d":"1.0.0"`, npmPackages-1)},
		{"/npm/labpkg/-/labpkg-1.0.0.tgz", "\x1f\x8b"},
		{"/npm/lab-0", `"integrity":"sha512-`},
		{"/maven/lab/parent/1.0/parent-1.0.pom", fmt.Sprintf("<artifactId>lab-%d<", mavenArtifacts-1)},
		{"/maven/lab/lab-0/1.0/lab-0-1.0.jar", "PK"},
		{"/maven/lab/lab-0/1.0/lab-0-1.0.jar.sha1", "b04f3ee8f5e43fa3b162981b50bb72fe1acabb33"},
		{"/crates/lab-099", "\x1f\x8b"},
		{"/page?id=a", "/page/wait"},
	} {
		if got := fetch(t, client, server.URL+test.path); !strings.Contains(got, test.want) {
			t.Errorf("%s lacks %q: %.200q", test.path, test.want, got)
		}
	}
	for _, path := range []string{"/npm/other", "/npm/lab-40", "/npm/labpkg/-/other-1.0.0.tgz", "/crates/lab-100", "/maven/lab/lab-40/1.0/lab-40-1.0.pom"} {
		answer, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s, want 404", path, answer.Status)
		}
	}
}

// TestCrateIndex: each crate stands where cargo looks for it.
func TestCrateIndex(t *testing.T) {
	git, err := newGitOrigin(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command("git", "-C", git.root+"/index.git", "ls-tree", "-r", "--name-only", "main")
	list.Env = git.env()
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Fields(string(out))
	if len(files) != Crates+1 || files[0] != "config.json" || files[1] != "la/b-/lab-000" {
		t.Errorf("the index has %d files: %.60q", len(files), files)
	}
}

// TestPageWaits: what a page waits for is answered when it says that it is done, and at once from then on.
func TestPageWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pages{done: map[string]chan struct{}{}}
		over := make(chan struct{})
		go func() { <-p.of("a"); close(over) }()
		p.end("b")
		synctest.Wait()
		select {
		case <-over:
			t.Fatal("another page's end was taken for it")
		default:
		}
		p.end("a")
		p.end("a")
		<-over
		<-p.of("a")
	})
}
