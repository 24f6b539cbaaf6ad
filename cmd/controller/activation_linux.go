package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"sluice/control"
)

// firstFD is the descriptor of the first socket that systemd hands over.
const firstFD = 3

// listen returns the socket that systemd has opened at path for this process (sd_listen_fds(3)), and otherwise makes one.
// Closing systemd's does not remove it: callers wait in its queue for the next process.
func listen(path string) (*net.UnixListener, error) {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return control.Listen("unix", path)
	}
	l, err := activated(path, os.Getenv("LISTEN_FDS"))
	if err != nil {
		return nil, fmt.Errorf("socket from systemd: %w", err)
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil { // they are for this process alone
			return nil, err
		}
	}
	return l, nil
}

func activated(path, count string) (*net.UnixListener, error) {
	if count != "1" {
		return nil, fmt.Errorf("%q descriptors were handed over: write one ListenStream= into the socket's unit", count)
	}
	unix.CloseOnExec(firstFD)
	file := os.NewFile(firstFD, path)
	if file == nil {
		return nil, errors.New("there is no descriptor")
	}
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok || u.Addr().String() != path {
		l.Close()
		return nil, fmt.Errorf("it is bound to %s, and --socket is %s: name the same in both units", l.Addr(), path)
	}
	return u, nil
}
