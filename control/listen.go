package control

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Listen binds a unix socket at path with mode 0660 and makes its directory, mode 0750, if there is none. network is
// "unix" or "unixpacket". A socket that a dead process left is replaced; one on which somebody listens is not, and
// neither is anything that is not a socket. Closing the listener removes the socket.
func Listen(network, path string) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("directory of the socket: %w", err)
	}
	if err := os.Mkdir(dir, 0o750); err != nil {
		if info, statErr := os.Stat(dir); statErr != nil || !info.IsDir() {
			return nil, fmt.Errorf("directory of the socket: %w", err)
		}
	}
	// Two that start at once must not both take the socket for dead, or the second would remove the first one's.
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(network, path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		l.Close()
		return nil, fmt.Errorf("mode of the socket: %w", err)
	}
	return l, nil
}

// lock takes an advisory lock on the directory, for the time of binding only.
func lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("directory of the socket: %w", err)
	}
	for range 100 {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w: another process binds a socket there", dir, err)
	}
	return func() { f.Close() }, nil
}

func removeStale(network, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("old socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket (%v): remove it or choose another directory", path, info.Mode().Type())
	}
	c, err := net.DialTimeout(network, path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("%s: another process listens there; stop it or choose another directory", path)
	}
	// Only a refused connection proves that nobody listens: a full queue or a socket of another type is somebody's.
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s may be in use: %w; stop its process or choose another directory", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("old socket: %w", err)
	}
	return nil
}

// OnlyPeers is a listener that hands on connections from root, the own user and uids only (see [CheckPeer]) and
// closes the others with a warning to log.
func OnlyPeers(l net.Listener, log *slog.Logger, uids ...uint32) net.Listener {
	return &peerListener{l, log, func(c *net.UnixConn) error { return CheckPeer(c, uids...) }}
}

// OnlyGroup is [OnlyPeers] for the members of a group (see [CheckPeerGroup]).
func OnlyGroup(l net.Listener, log *slog.Logger, gid uint32) net.Listener {
	return &peerListener{l, log, func(c *net.UnixConn) error { return CheckPeerGroup(c, gid) }}
}

type peerListener struct {
	net.Listener
	log   *slog.Logger
	check func(*net.UnixConn) error
}

func (l *peerListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			c.Close()
			return nil, fmt.Errorf("accept: %s is not a unix socket", l.Addr())
		}
		if err := l.check(u); err != nil {
			l.log.Warn("control connection refused", "error", err)
			c.Close()
			continue
		}
		return c, nil
	}
}
