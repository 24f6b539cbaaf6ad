package internet

import (
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// gitOrigin serves a small repository, lab.git, and the index of the lab's crates, index.git, from a directory of its own.
type gitOrigin struct {
	root string // holds both
	git  string // path of the program
}

// gitImport is a history of two commits in git's fast-import form. Times are fixed, so commit ids are too.
const gitImport = `commit refs/heads/main
committer Lab <lab@git.test> 1700000000 +0000
data 6
First
M 644 inline README
data 17
A lab repository

commit refs/heads/main
committer Lab <lab@git.test> 1700000060 +0000
data 7
Second
M 644 inline answer
data 3
42

`

func newGitOrigin(root string) (*gitOrigin, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, fmt.Errorf("the lab serves a git repository: %w; install git, or run scripts/setup", err)
	}
	g := &gitOrigin{root: root, git: git}
	for _, step := range []struct{ args, stdin string }{
		{"init --quiet --bare --initial-branch=main lab.git", ""},
		{"-C lab.git fast-import --quiet", gitImport},
		{"-C lab.git update-server-info", ""},
		{"init --quiet --bare --initial-branch=main index.git", ""},
		{"-C index.git fast-import --quiet", crateIndex()},
	} {
		command := exec.Command(git, strings.Fields(step.args)...)
		command.Dir, command.Env, command.Stdin = root, g.env(), strings.NewReader(step.stdin)
		if out, err := command.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("git %s: %w: %s", step.args, err, out)
		}
	}
	return g, nil
}

// env keeps the user's own configuration of git out of this.
func (g *gitOrigin) env() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.root, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
}

// smart is git's own HTTP server, which answers the smart protocol.
func (g *gitOrigin) smart() http.Handler {
	return &cgi.Handler{
		Path: g.git,
		Args: []string{"http-backend"},
		Root: "/smart",
		Dir:  g.root,
		Env:  append(g.env(), "GIT_PROJECT_ROOT="+g.root, "GIT_HTTP_EXPORT_ALL=1"),
	}
}

// dumb serves the repository's files; a client finds its way by info/refs.
func (g *gitOrigin) dumb() http.Handler {
	return http.StripPrefix("/dumb/", http.FileServer(http.Dir(filepath.Clean(g.root))))
}
