package audit

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// eventually waits for a condition that another goroutine brings about.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func open(t *testing.T, path string) *Writer {
	t.Helper()
	w, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestFile(t *testing.T) {
	old := syscall.Umask(0o022)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "audit.log")
	for round := range 2 { // the second one appends
		w := open(t, path)
		writeN(w, 3)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		want(t, read(t, path), 3*(round+1), 0)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestFileThatCannotBeOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "audit.log")
	if _, err := Open(path); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}

// A process that died within a line leaves half of it; ours must not be glued to that.
func TestFileThatEndsWithinALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	const torn = `{"time":"2026-01`
	if err := os.WriteFile(path, []byte(torn), 0o600); err != nil {
		t.Fatal(err)
	}
	w := open(t, path)
	writeN(w, 2)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	ours, ok := strings.CutPrefix(read(t, path), torn+"\n")
	if !ok {
		t.Fatalf("%q", ours)
	}
	want(t, ours, 2, 0)
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	w := open(t, path)
	writeN(w, 1)
	eventually(t, "first record", func() bool { return read(t, path) != "" })
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	writeN(w, 1) // may go to either
	if err := errors.Join(w.Reopen(), w.Reopen()); err != nil {
		t.Fatal(err)
	}
	writeN(w, 3)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	before, _ := count(t, read(t, path+".1"))
	after, _ := count(t, read(t, path))
	if before < 1 || after < 3 || before+after != 5 {
		t.Errorf("%d records before and %d after", before, after)
	}
	if err := w.Reopen(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("reopened when closed: %v", err)
	}
}

func TestReopenThatFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit", "audit.log")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	w := open(t, path)
	moved := filepath.Join(dir, "moved")
	if err := os.Rename(filepath.Dir(path), moved); err != nil {
		t.Fatal(err)
	}
	if err := w.Reopen(); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	writeN(w, 2)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, read(t, filepath.Join(moved, "audit.log")), 2, 0)
}

// fullDisk lets that many bytes through to its file.
type fullDisk struct {
	file *os.File
	left int
}

func (d *fullDisk) Write(b []byte) (int, error) {
	n, err := d.file.Write(b[:min(len(b), d.left)])
	d.left -= n
	if err == nil && n < len(b) {
		err = syscall.ENOSPC
	}
	return n, err
}

// A log that is renamed while half a line is in it keeps whole lines only; the line goes to the new file, which may end
// within a line of somebody else.
func TestReopenWithinALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	s, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s.Writer = &fullDisk{s.file, 150} // two lines and a half
	w := start(path, s)
	writeN(w, 5)
	eventually(t, "full disk", func() bool { return errors.Is(w.Err(), syscall.ENOSPC) })
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Reopen(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	before, _ := count(t, read(t, path+".1"))
	ours, ok := strings.CutPrefix(read(t, path), "half\n")
	if !ok {
		t.Fatalf("%q", ours)
	}
	after, _ := count(t, ours)
	if before == 0 || after == 0 || before+after != 5 {
		t.Errorf("%d records before and %d after", before, after)
	}
}

func TestCloseWithinALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	s, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s.Writer = &fullDisk{s.file, 150}
	w := start(path, s)
	writeN(w, 5)
	if err := w.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if records, _ := count(t, read(t, path)); records == 0 || uint64(records)+w.Lost() != 5 {
		t.Errorf("%d records, %d lost", records, w.Lost())
	}
}

func TestDevFull(t *testing.T) {
	w := open(t, "/dev/full")
	writeN(w, 4)
	eventually(t, "full device", func() bool { return errors.Is(w.Err(), syscall.ENOSPC) })
	if err := w.Close(); !errors.Is(err, syscall.ENOSPC) || w.Lost() != 4 {
		t.Errorf("%v, lost %d", err, w.Lost())
	}
}

// A named pipe that nobody reads fills up; closing the writer ends the write that hangs.
func TestPipeThatNobodyReads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	w := open(t, path)
	writeN(w, maxRecords)
	err := w.Close()
	if !errors.Is(err, os.ErrClosed) || w.Lost() == 0 || w.Lost() > maxRecords {
		t.Errorf("%v, lost %d", err, w.Lost())
	}
}

// Standard output whose reader has gone must not end the process by SIGPIPE.
func TestStandardOutput(t *testing.T) {
	const child = "SLUICE_AUDIT_TEST_CHILD"
	if os.Getenv(child) != "" {
		w := open(t, "-")
		writeN(w, 2)
		err := w.Close()
		if err == nil || w.Lost() != 2 {
			os.Exit(1)
		}
		os.Stderr.WriteString("survived: " + err.Error())
		os.Exit(0)
	}
	r, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	r.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestStandardOutput$")
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.Stdout = stdout
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err = cmd.Run()
	if want := "survived: close audit log -: 2 records lost: write standard output: broken pipe"; err != nil || stderr.String() != want {
		t.Errorf("%v: %q, want %q", err, stderr.String(), want)
	}
}
