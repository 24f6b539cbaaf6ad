package netns

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Socket is a listening socket inside a namespace, which is open as long as it is.
type Socket struct {
	// File is non-blocking, closed on exec, and not known to Go's poller: who only holds it is not woken by clients. It is
	// closed by the last [Socket.Close].
	File *os.File
	Port uint16

	shares *atomic.Int32 // how often it was shared
}

// Share returns the socket for somebody else, who closes it too.
func (s Socket) Share() Socket {
	s.shares.Add(1)
	return s
}

// Close lets go of the socket. It must be called once by everybody who has it, and not at all for the zero Socket.
func (s Socket) Close() error {
	if s.shares.Add(-1) >= 0 {
		return nil
	}
	return s.File.Close()
}

// Sockets are what a session listens on: one TCP and one UDP socket a family, on loopback addresses and ports that the
// kernel chose. TCP6 and UDP6 are the zero Socket where the namespace has no ::1.
type Sockets struct {
	TCP4, UDP4, TCP6, UDP6 Socket
}

// Close closes what is open.
func (s *Sockets) Close() error {
	var errs []error
	for _, one := range []Socket{s.TCP4, s.UDP4, s.TCP6, s.UDP6} {
		if one.File != nil {
			errs = append(errs, one.Close())
		}
	}
	*s = Sockets{}
	return errors.Join(errs...)
}

// backlog is how many clients may wait while no sidecar accepts. The namespace's net.core.somaxconn, 4096 by
// default, bounds it.
const backlog = 1 << 16

// Listen opens the sockets of a session inside the namespace, all of them or none.
//
// TCP sockets pass TCP_NODELAY and keep-alive on to what is accepted from them (tcp(7)). UDP sockets need no option
// to answer from the address that was asked: it is the redirect that gives answers that address. What that address
// was, no option tells (IP_RECVORIGDSTADDR shows the socket's own).
func (n *Namespace) Listen() (*Sockets, error) {
	s := new(Sockets)
	err := n.Do(func() error {
		any4 := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
		var err error
		if s.TCP4, err = listenTCP(unix.AF_INET, any4); err != nil {
			return err
		}
		if s.UDP4, err = listen(unix.AF_INET, unix.SOCK_DGRAM, any4, "UDP"); err != nil {
			return err
		}
		any6 := &unix.SockaddrInet6{Addr: [16]byte{15: 1}}
		if s.TCP6, err = listenTCP(unix.AF_INET6, any6); errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil // no ::1
		} else if err != nil {
			return err
		}
		s.UDP6, err = listen(unix.AF_INET6, unix.SOCK_DGRAM, any6, "UDP")
		return err
	})
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("listen in network namespace %v: %w", n.id, err)
	}
	return s, nil
}

func listenTCP(family int, any unix.Sockaddr) (Socket, error) {
	s, err := listen(family, unix.SOCK_STREAM, any, "TCP")
	if err != nil {
		return Socket{}, err
	}
	err = control(s.File, func(fd int) error {
		for _, o := range []struct{ level, name, value int }{
			{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 60},  // seconds of silence
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15}, // seconds between probes
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4},
		} {
			if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
				return fmt.Errorf("socket option %d: %w", o.name, err)
			}
		}
		if err := unix.Listen(fd, backlog); err != nil {
			return fmt.Errorf("listen on TCP port %d: %w", s.Port, err)
		}
		return nil
	})
	if err != nil {
		s.Close()
		return Socket{}, err
	}
	return s, nil
}

// listen opens a socket of the calling thread's namespace and binds it to a port that the kernel chooses.
func listen(family, kind int, any unix.Sockaddr, protocol string) (Socket, error) {
	// Blocking at first: os.NewFile gives a non-blocking socket to Go's poller, which would wake this process at
	// every client of the sidecar.
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Socket{}, fmt.Errorf("open %s socket: %w", protocol, err)
	}
	s := Socket{File: os.NewFile(uintptr(fd), protocol+" listener"), shares: new(atomic.Int32)}
	if s.Port, err = bind(fd, family, any); err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		s.Close()
		return Socket{}, fmt.Errorf("bind %s socket to loopback: %w", protocol, err)
	}
	return s, nil
}

func bind(fd, family int, any unix.Sockaddr) (uint16, error) {
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return 0, err
		}
	}
	if err := unix.Bind(fd, any); err != nil {
		return 0, err
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		return uint16(a.Port), nil
	case *unix.SockaddrInet6:
		return uint16(a.Port), nil
	}
	return 0, fmt.Errorf("unknown address %T", bound)
}

// control runs f with the file's descriptor, whose mode stays as it is.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
