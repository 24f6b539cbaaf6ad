package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	leftOut, err := extract(in, "out", to)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"out/link: a symbolic link", "out/up: a symbolic link", "out/../../outside: a name that leads elsewhere",
		"../outside: a name that leads elsewhere", outside + ": a name that leads elsewhere", "output/x: a name that leads elsewhere",
		"out/hard: a hard link", "out/null: a device"}; !slices.Equal(leftOut, want) {
		t.Errorf("left out %q, want %q", leftOut, want)
	}
	var found []string
	err = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
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
	if _, err := extract(archive(t, tar.Header{Name: "f", Typeflag: tar.TypeReg}), "f", to); err != nil {
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
	if _, err := extract(in, "f", filepath.Join(t.TempDir(), "f")); err == nil || err.Error() != "is neither a file nor a directory" {
		t.Errorf("got %v", err)
	}
}

func TestExtractCutOff(t *testing.T) {
	in := archive(t, tar.Header{Name: "f", Typeflag: tar.TypeReg})
	in.Truncate(520)
	if _, err := extract(in, "f", filepath.Join(t.TempDir(), "f")); err == nil {
		t.Error("an archive that is cut off is no artifact")
	}
}

// TestExtractBesideOthers checks that nothing of an earlier run stands beside an artifact.
func TestExtractBesideOthers(t *testing.T) {
	out := func() *bytes.Buffer {
		return archive(t, tar.Header{Name: "out/", Typeflag: tar.TypeDir}, tar.Header{Name: "out/a", Typeflag: tar.TypeReg})
	}
	to := filepath.Join(t.TempDir(), "results")
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := extract(out(), "out", to); err != nil {
		t.Errorf("an empty directory: %v", err)
	}
	err := MakeRoom(to)
	if _, again := extract(out(), "out", to); err == nil || again == nil || again.Error() != err.Error() || !strings.Contains(err.Error(), to+" is not empty") {
		t.Errorf("what is full: %v; %v", err, again)
	}
	file := filepath.Join(to, "a")
	if err := MakeRoom(file); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of an earlier run is still there: %v", err)
	}
}

// TestExtractManyLeftOut checks that a task cannot make a list without end.
func TestExtractManyLeftOut(t *testing.T) {
	entries := []tar.Header{{Name: "out/", Typeflag: tar.TypeDir}}
	for range maxLeftOut + 3 {
		entries = append(entries, tar.Header{Name: "out/pipe", Typeflag: tar.TypeFifo})
	}
	leftOut, err := extract(archive(t, entries...), "out", filepath.Join(t.TempDir(), "out"))
	if err != nil || len(leftOut) != maxLeftOut+1 || leftOut[0] != "out/pipe: a pipe" || leftOut[maxLeftOut] != "and 3 more" {
		t.Errorf("%d left out, the last %q, error %v", len(leftOut), leftOut[len(leftOut)-1], err)
	}
}
