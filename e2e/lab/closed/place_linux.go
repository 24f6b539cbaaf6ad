package closed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// baseDir has a directory for each lab, numbered from 1. It is on disk, since images are unpacked below it.
	baseDir = "/var/lib/sluice-lab"
	// maxLabs bounds how many labs run side by side.
	maxLabs = 16
)

// takePlace removes the labs of dead processes and takes the lowest free number. The lab's directory exists and is
// locked by this process from then on; the lock goes with the process, however it ends.
func takePlace() (*Lab, error) {
	var taken *Lab
	for n := 1; n <= maxLabs; n++ {
		l := newLab(n)
		_, err := os.Stat(l.dir)
		if taken != nil && err != nil {
			continue // nobody's
		}
		locked, err := l.tryLock()
		if err != nil {
			return nil, err
		}
		if !locked {
			continue // somebody runs it
		}
		if err := l.clear(); err != nil {
			return nil, fmt.Errorf("remove what is left of an earlier lab: %w", err)
		}
		if taken == nil {
			taken = l
		} else if err := l.unlock(); err != nil {
			return nil, err
		}
	}
	if taken == nil {
		return nil, fmt.Errorf("%d labs run already, and more are not allowed; see %s", maxLabs, baseDir)
	}
	return taken, nil
}

func newLab(n int) *Lab {
	name := "sluice-lab-" + strconv.Itoa(n)
	return &Lab{name: name, dir: filepath.Join(baseDir, strconv.Itoa(n))}
}

// tryLock makes the lab's directory and locks it. It reports false if another process has it.
func (l *Lab) tryLock() (bool, error) {
	if err := os.MkdirAll(l.dir, 0o711); err != nil {
		return false, err
	}
	lock, err := os.OpenFile(l.dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // its owner has just removed it
	}
	if err != nil {
		return false, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return false, fmt.Errorf("lock %s: %w", l.dir, err)
	}
	// What was locked may have been removed and made again in between.
	held, err1 := lock.Stat()
	named, err2 := os.Stat(l.dir)
	if err1 != nil || err2 != nil || !os.SameFile(held, named) {
		lock.Close()
		return false, nil
	}
	l.lock = lock
	return true, nil
}

// unlock removes the lab's directory, which must be empty, and gives the place up.
func (l *Lab) unlock() error {
	err := os.Remove(l.dir)
	l.lock.Close()
	os.Remove(baseDir) // fails while another lab is there
	return err
}

// remove ends and removes everything of the lab and gives the place up.
func (l *Lab) remove() error {
	if err := l.clear(); err != nil {
		l.lock.Close()
		return fmt.Errorf("remove %s: %w", l.name, err)
	}
	return l.unlock()
}

// clear leaves of the lab nothing but its empty, locked directory. It relies on nothing that the process which made
// the lab knew, so it works after a kill too.
func (l *Lab) clear() error {
	if err := l.killProcesses(); err != nil {
		return err
	}
	if err := unmountBelow(l.dir); err != nil {
		return err
	}
	l.removeCgroups()
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(l.dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// unmountBelow unmounts everything below dir, the last mounted first (proc_pid_mountinfo(5): the fifth field is the
// mount point, with blanks as \040).
func unmountBelow(dir string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		fields := strings.Fields(lines[i])
		if len(fields) < 5 || !strings.HasPrefix(fields[4], dir+"/") {
			continue
		}
		if err := unix.Unmount(fields[4], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", fields[4], err)
		}
	}
	return nil
}
