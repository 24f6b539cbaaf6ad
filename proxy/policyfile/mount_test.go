package policyfile

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inOwnMounts runs f on a thread with mounts of its own, which end with it. Only calls that f makes itself see them,
// not those of goroutines that it starts.
func inOwnMounts(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount: run with -exec sudo")
	}
	done := make(chan error)
	go func() {
		var err error
		defer func() { done <- err }() // also when f ends by t.Fatal
		runtime.LockOSThread()         // never unlocked: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return
		}
		if err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err == nil {
			f()
		}
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func bind(t *testing.T, from, to string) {
	if err := errors.Join(unix.Mount(from, to, "", unix.MS_BIND, ""),
		unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")); err != nil {
		t.Error(err)
	}
}

// The provider's way: its directory is mounted, and it writes on its own side.
func TestMountedDirectory(t *testing.T) {
	for _, w := range writers {
		t.Run(w.name, func(t *testing.T) {
			outside, inside := t.TempDir(), t.TempDir()
			_, write := w.make(t, outside)
			if err := write(version(1, 0)); err != nil {
				t.Fatal(err)
			}
			inOwnMounts(t, func() {
				bind(t, outside, inside)
				f, _ := follow(t, filepath.Join(inside, "policy.json"))
				for n := 1000; n < 1050; n++ {
					if err := write(version(n, 0)); err != nil {
						t.Error(err)
					}
					if s := f.Fresh(t.Context()); s.Status != Current || s.Value != n {
						t.Errorf("%d was written, got %v %v %v", n, s.Status, s.Value, s.Err)
					}
				}
			})
		})
	}
}

// A file that is mounted by itself follows writes in place. Replaced outside, it would stay what it was for ever: it is
// refused, and the error says why.
func TestMountedFile(t *testing.T) {
	outside, inside := start(t), start(t)
	inOwnMounts(t, func() {
		bind(t, outside, inside)
		f, r := follow(t, inside, func(o *Options[int]) { o.Wait = 20 * time.Millisecond })
		write(t, outside, version(2, 0))
		if s := f.Fresh(t.Context()); s.Status != Current || s.Value != 2 {
			t.Errorf("got %v %v %v", s.Status, s.Value, s.Err)
		}
		write(t, outside+".new", version(3, 0))
		if err := os.Rename(outside+".new", outside); err != nil {
			t.Error(err)
		}
		if s := f.Fresh(t.Context()); s.Status != Refused || !strings.Contains(s.Err.Error(), "mount its directory") {
			t.Errorf("got %v %v %v", s.Status, s.Value, s.Err)
		}
		if got := r.String(); got != "current 2, refused 0" {
			t.Errorf("OnChange was told %v", got)
		}
	})
}
