package docker

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func archive(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := []byte("content of " + h.Name)
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestExtract checks that files arrive under the new name, and that nothing is written or followed outside of it.
func TestExtract(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := archive(t,
		tar.Header{Name: "out/", Typeflag: tar.TypeDir, Mode: 0o700},
		tar.Header{Name: "out/a.txt", Typeflag: tar.TypeReg, Mode: 0o4755},
		tar.Header{Name: "out/sub/b.txt", Typeflag: tar.TypeReg, Mode: 0o200},
		tar.Header{Name: "out/link", Typeflag: tar.TypeSymlink, Linkname: outside},
		tar.Header{Name: "out/link", Typeflag: tar.TypeReg},
		tar.Header{Name: "out/up", Typeflag: tar.TypeSymlink, Linkname: ".."},
		tar.Header{Name: "out/up/outside", Typeflag: tar.TypeReg},
		tar.Header{Name: "out/../../outside", Typeflag: tar.TypeReg},
		tar.Header{Name: "../outside", Typeflag: tar.TypeReg},
		tar.Header{Name: outside, Typeflag: tar.TypeReg},
		tar.Header{Name: "output/x", Typeflag: tar.TypeReg},
		tar.Header{Name: "out/hard", Typeflag: tar.TypeLink, Linkname: "../outside"},
		tar.Header{Name: "out/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
	)
	to := filepath.Join(dir, "results", "here")
	if err := extract(in, "out", to); err != nil {
		t.Fatal(err)
	}
	var found []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			found = append(found, rel+" "+info.Mode().String())
		}
		return err
	})
	want := []string{"outside -rw-------", "results/here/a.txt -rwxr-xr-x", "results/here/link -rw-r--r--",
		"results/here/sub/b.txt -rw-r--r--", "results/here/up/outside -rw-r--r--"}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("got %q, %v; want %q", found, err, want)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "untouched" {
		t.Errorf("outside: %q, %v", text, err)
	}
}

// TestExtractDoesNotFollow checks that a link which stands at the place already is replaced, not written through.
func TestExtractDoesNotFollow(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "file")
	if err := os.Symlink(outside, to); err != nil {
		t.Fatal(err)
	}
	if err := extract(archive(t, tar.Header{Name: "f", Typeflag: tar.TypeReg}), "f", to); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(to); err != nil || string(text) != "content of f" {
		t.Errorf("got %q, %v", text, err)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "untouched" {
		t.Errorf("outside: %q, %v", text, err)
	}
}

// TestExtractNothing checks that a link in place of what was asked for is no artifact.
func TestExtractNothing(t *testing.T) {
	in := archive(t, tar.Header{Name: "f", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"})
	if err := extract(in, "f", filepath.Join(t.TempDir(), "f")); err == nil || err.Error() != "is neither a file nor a directory" {
		t.Errorf("got %v", err)
	}
}

func TestExtractCutOff(t *testing.T) {
	in := archive(t, tar.Header{Name: "f", Typeflag: tar.TypeReg})
	in.Truncate(520)
	if err := extract(in, "f", filepath.Join(t.TempDir(), "f")); err == nil {
		t.Error("an archive that is cut off is no artifact")
	}
}
