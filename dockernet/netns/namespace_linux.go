package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is an open network namespace, which lives at least until [Namespace.Close]. Its methods may be called by
// any number of goroutines.
type Namespace struct {
	file    *os.File
	id      ID
	current bool // this process's own: there is nothing to enter
}

// Open opens the network namespace that path leads to: an engine's SandboxKey, or a file below /proc/PID/ns. It is
// refused, with [ErrHost], if it is this process's or that of process 1.
//
// A path may change its meaning between the moment when somebody read it and this call. So check, if there is one, is
// called when the namespace is open: it asks again whether the container is still the one that was meant, and its
// error closes the namespace and is returned. A process id that was used again is found out in that way.
func Open(path string, check func() error) (*Namespace, error) {
	file, id, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	if check != nil {
		if err := check(); err != nil {
			file.Close()
			return nil, fmt.Errorf("open network namespace %s: %w", path, err)
		}
	}
	return &Namespace{file: file, id: id}, nil
}

func open(path string) (*os.File, ID, error) {
	// O_NONBLOCK: a path that leads to a FIFO must not hang.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, ID{}, err
	}
	file := os.NewFile(uintptr(fd), path)
	id, err := inspect(fd)
	if err == nil && isHost(id) {
		err = ErrHost
	}
	if err != nil {
		file.Close()
		return nil, ID{}, err
	}
	return file, id, nil
}

// inspect refuses what is not a network namespace.
func inspect(fd int) (ID, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return ID{}, err
	}
	// ioctl_nsfs(2)
	if fs.Type != unix.NSFS_MAGIC {
		return ID{}, errors.New("not a namespace: use the container's SandboxKey")
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return ID{}, err
	}
	if kind != unix.CLONE_NEWNET {
		return ID{}, errors.New("a namespace, but not of the network: use the container's SandboxKey")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return ID{}, err
	}
	return ID{Device: st.Dev, Inode: st.Ino}, nil
}

// isHost reports whether id is the namespace of this process's main thread, which never changes it (see Do), or that
// of process 1. Where /proc does not show the latter, this process may not enter namespaces either.
func isHost(id ID) bool {
	for _, path := range []string{"/proc/self/ns/net", "/proc/1/ns/net"} {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && id == (ID{Device: st.Dev, Inode: st.Ino}) {
			return true
		}
	}
	return false
}

// ID returns the namespace's identity.
func (n *Namespace) ID() ID { return n.id }

// Check returns [ErrChanged] if path does not lead to this namespace any more.
func (n *Namespace) Check(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("network namespace %s: %w: %w", path, ErrChanged, err)
	}
	if now := (ID{Device: st.Dev, Inode: st.Ino}); now != n.id {
		return fmt.Errorf("network namespace %s: %w: it was %v and is %v", path, ErrChanged, n.id, now)
	}
	return nil
}

// Do runs f on a thread inside the namespace and returns its error. The thread ends with f, so nothing is left in the
// namespace but what f made there: sockets stay in it, on whatever thread they are used. Goroutines that f starts run
// outside of it.
//
// In the namespace of [Current] it just calls f.
func (n *Namespace) Do(f func() error) error {
	if n.current {
		return f()
	}
	return OnOwnThread(func() error {
		raw, err := n.file.SyscallConn()
		if err != nil {
			return fmt.Errorf("enter network namespace %v: %w", n.id, err)
		}
		var setErr error
		if err := raw.Control(func(fd uintptr) { setErr = unix.Setns(int(fd), unix.CLONE_NEWNET) }); err != nil {
			setErr = err
		}
		if setErr != nil {
			return fmt.Errorf("enter network namespace %v: %w", n.id, setErr)
		}
		return f()
	})
}

// OnOwnThread runs f on a thread that ends with it, so that f may change what belongs to the thread, and returns f's
// error.
func OnOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		err := errors.New("the function has ended its goroutine")
		defer func() { result <- err }() // also after runtime.Goexit, which a failing test calls
		runtime.LockOSThread()           // never unlocked, which is why the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot end: Go would keep it for good, wherever f has left it. While this
			// goroutine holds it, the next one gets another.
			err = OnOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		err = f()
	}()
	return <-result
}

// Close lets go of the namespace. It disappears with the last process, socket and descriptor that belongs to it.
func (n *Namespace) Close() error { return n.file.Close() }
