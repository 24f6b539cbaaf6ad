package policyfile

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// pollTime is how often the file is looked at where a change may go unnoticed: an open flow that a new policy
	// refuses is to be gone 100 ms after the write.
	pollTime = 50 * time.Millisecond
	// backstopTime is the same where inotify tells.
	backstopTime = time.Second
)

// Run notices changes while nobody asks, until ctx is done; then it returns nil and nothing of it is left. It is to be
// called once.
func (f *File[T]) Run(ctx context.Context) error {
	w := f.newWatcher()
	defer w.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		// Watches first: what changes between the two is seen by the look.
		poll := backstopTime
		if !w.watch(f.o.Path) {
			poll = pollTime
		}
		f.refresh()
		if look := f.known.Load().look; !look.IsZero() {
			poll = min(poll, max(time.Until(look), time.Millisecond))
		}
		timer.Reset(poll)
		select {
		case <-ctx.Done():
			return nil
		case <-w.woken:
		case <-timer.C:
		}
	}
}

// watcher wakes Run when something happened to the file or to its directory.
type watcher struct {
	woken chan struct{} // holds at most one token
	inner *fsnotify.Watcher
	wait  sync.WaitGroup
}

func (f *File[T]) newWatcher() *watcher {
	w := &watcher{woken: make(chan struct{}, 1)}
	inner, err := fsnotify.NewWatcher()
	if err != nil {
		// There are 128 inotify instances a user by default, and a host may run more sidecars than that.
		f.o.Logger.Info("no inotify: looking at the policy file at intervals", "every", pollTime, "error", err)
		return w
	}
	w.inner = inner
	// A goroutine of its own: the library holds a lock while it hands on some errors, and watch needs that lock.
	w.wait.Go(func() {
		events, errors := inner.Events, inner.Errors
		for events != nil || errors != nil {
			var ok bool
			select {
			case e, more := <-events:
				if ok = more; !ok {
					events = nil
				} else if !concerns(e.Name, f.o.Path) {
					continue
				}
			case _, ok = <-errors: // an overflow above all: a reason to look as well
				if !ok {
					errors = nil
				}
			}
			select {
			case w.woken <- struct{}{}:
			default:
			}
		}
	})
	return w
}

// concerns reports whether what happened to the file named may be a change of the one at path. Others may be busy in the
// same directory.
func concerns(named, path string) bool {
	return filepath.Base(named) == filepath.Base(path) || filepath.Clean(named) == filepath.Dir(path)
}

// watch watches the file and its directory, and reports whether that is enough to
// see every change.
func (w *watcher) watch(path string) bool {
	if w.inner == nil {
		return false
	}
	dir := filepath.Dir(path)
	enough := w.inner.Add(dir) == nil && isLocal(dir)
	// The file as well: a bind mount of it alone, or another hard link, is not written through this directory.
	enough = w.inner.Add(path) == nil && isLocal(path) && enough
	real, err := filepath.EvalSymlinks(path)
	if err != nil || real != path {
		// Links may be turned anywhere on their way, where nobody watches.
		return false
	}
	return enough
}

func (w *watcher) close() {
	if w.inner != nil {
		w.inner.Close()
		w.wait.Wait()
	}
}
