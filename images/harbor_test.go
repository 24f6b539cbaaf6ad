package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// harborPackage makes what [HarborTag] reads of an installed Harbor. The hashes below are those that Harbor's own
// docker_build_context_hash gives for these files.
func harborPackage(t *testing.T) (dir, context string) {
	t.Helper()
	dir = t.TempDir()
	context = filepath.Join(dir, "environments", "docker", "harbor-docker-egress-control-sidecar")
	for name, body := range map[string]string{
		"Dockerfile": "FROM x\n", "b/one": "hello", "a/z/empty": "", "a.txt": "x", "b/é": "é", "b/E": "big",
		"c/link": "-> ../b/one", "dirlink": "-> b",
	} {
		path := filepath.Join(context, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if to, link := strings.CutPrefix(body, "-> "); link {
			if err := os.Symlink(to, path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		mode := os.FileMode(0o644)
		if name == "b/one" {
			mode = 0o755
		}
		if err := os.WriteFile(path, []byte(body), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // whatever the umask is
			t.Fatal(err)
		}
	}
	return dir, context
}

func TestHarborTagOfAPackage(t *testing.T) {
	dir, context := harborPackage(t)
	for platform, want := range map[string]string{"linux/amd64": "b52d23b693e2f31f", "linux/arm64": "37c46686a83f3157"} {
		tag, known, err := HarborTag(dir, platform)
		if err != nil || tag != "harbor-prebuilt:harbor-docker-egress-control-sidecar--"+want || known {
			t.Errorf("%s: %q, known %v, %v; want the hash %s of files that are not known", platform, tag, known, err, want)
		}
	}
	before, _, err := HarborTag(dir, "linux/amd64")
	if err != nil {
		t.Fatal(err)
	}
	plain, err := harborHash(context, "linux/amd64", usualMode)
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"b/one": 0o700, "b/E": 0o600} {
		if err := os.Chmod(filepath.Join(context, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if after, _, err := HarborTag(dir, "linux/amd64"); err != nil || after == before {
		t.Errorf("with other modes %q, %v: want another name than before", after, err)
	}
	if after, err := harborHash(context, "linux/amd64", usualMode); err != nil || after != plain {
		t.Errorf("but for the modes %q, %v: want %q as before", after, err, plain)
	}
}

func TestHarborTagWithoutAPackage(t *testing.T) {
	for platform, want := range map[string]string{"linux/amd64": "9af3dc172792cee8", "linux/arm64": "e9f39ce1643ee690"} {
		tag, known, err := HarborTag("", platform)
		if err != nil || !strings.HasSuffix(tag, "-sidecar--"+want) || !known {
			t.Errorf("%s: %q, known %v, %v", platform, tag, known, err)
		}
	}
	if tag, _, err := HarborTag("", "linux/riscv64"); err == nil || !strings.Contains(err.Error(), "where Harbor is installed") {
		t.Errorf("%q, %v", tag, err)
	}
	if tag, _, err := HarborTag(t.TempDir(), "linux/amd64"); err == nil || !strings.Contains(err.Error(), "no sidecar of Harbor") {
		t.Errorf("%q, %v", tag, err)
	}
}

func TestHarborImage(t *testing.T) {
	img, err := Harbor([]byte("binary"), "harbor-prebuilt:x")
	if err != nil {
		t.Fatal(err)
	}
	r, err := img.Layers[0].open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := []string{
		"dir 755 opt/", "dir 755 opt/egress-sidecar/", "file 755 opt/egress-sidecar/entrypoint.sh 6", "dir 755 run/", "dir 755 tmp/",
		"dir 755 usr/", "dir 755 usr/bin/", "link usr/bin/test -> /opt/egress-sidecar/entrypoint.sh",
		"dir 755 usr/local/", "dir 755 usr/local/bin/", "link usr/local/bin/network-policy -> /opt/egress-sidecar/entrypoint.sh",
	}
	got := listTar(t, r)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if img.Config.User != "" || len(img.Config.Entrypoint) != 1 || img.Config.Entrypoint[0] != "/opt/egress-sidecar/entrypoint.sh" {
		t.Errorf("user %q, entry point %q", img.Config.User, img.Config.Entrypoint)
	}
}
