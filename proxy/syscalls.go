package proxy

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// System calls on sockets that do not wait return at once, so they go past the scheduler's book-keeping. That also spares
// a wake-up of the run-time's monitor thread, which comes with the first other one after the processors were idle, and costs
// more than the call.

func readSocket(fd int, b []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}

// forgetSocket throws away up to most bytes of a TCP socket without copying them (MSG_TRUNC in tcp(7)), and returns how many.
func forgetSocket(fd, most int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, uintptr(most), unix.MSG_TRUNC, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}

func writeSocket(fd int, b []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
			unix.MSG_NOSIGNAL, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}

func acceptSocket(fd int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		if errno == unix.EINTR || errno == unix.ECONNABORTED {
			continue
		}
		if errno != 0 {
			return -1, errno
		}
		return int(n), nil
	}
}

// option sets a socket option that is a number.
func option(fd, level, name int, value int32) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&value)),
		unsafe.Sizeof(value), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// shutWrite tells the peer that nothing more comes. A peer that is gone need not know.
func shutWrite(fd int) { unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0) }

// unacknowledged returns how many bytes of what was written the peer has not acknowledged; SIOCOUTQ in tcp(7).
func unacknowledged(fd int) (int, error) {
	var n int32
	if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCOUTQ, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// closeSocket closes a socket that does not linger. There is nothing to do about an error (close(2)).
func closeSocket(fd int) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// reset closes fd so that the peer sees a reset and not an end of stream.
func reset(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	closeSocket(fd)
}

// probeIdle makes the kernel probe a silent peer, so that one that is gone does not keep its tunnel for ever.
func probeIdle(fd int) error {
	for _, o := range []struct {
		level, name int
		value       int32
	}{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 60},  // seconds of silence
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15}, // seconds between probes
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4},
	} {
		if err := option(fd, o.level, o.name, o.value); err != nil {
			return err
		}
	}
	return nil
}
