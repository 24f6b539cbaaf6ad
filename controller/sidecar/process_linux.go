package sidecar

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a running process by its descriptor (pidfd_open(2)), behind which no other one can come to stand.
type process struct {
	file *os.File // in Go's poller: no thread waits
	raw  syscall.RawConn
}

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	f := os.NewFile(uintptr(fd), "process")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &process{f, raw}, nil
}

// wait returns nil when the process has ended, and an error when it was abandoned or closed.
func (p *process) wait() error {
	return p.raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
}

// abandon ends wait.
func (p *process) abandon() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) }

// kill sends SIGKILL. A process that has ended is no error.
func (p *process) kill() error {
	var sent error
	if err := p.raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		return err
	}
	if sent != nil && sent != unix.ESRCH {
		return os.NewSyscallError("pidfd_send_signal", sent)
	}
	return nil
}

func (p *process) close() { p.file.Close() }
