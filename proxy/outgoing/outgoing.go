// Package outgoing connects the proxy's own sockets where something must know of them before they send: the rules of a
// network namespace that the proxy shares with those it serves, see [Sockets].
package outgoing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Announcer is told of the proxy's connections. Its methods may be called by any number of goroutines, event loops among
// them, so they must be quick.
type Announcer interface {
	// Open comes before the first packet to a server, from a port that the socket is bound to. After an error there is no
	// packet.
	Open(to netip.AddrPort, from uint16) error
	// Opened comes once for each Open without an error: when a TCP connection has begun, or could not; when a UDP socket
	// has been closed.
	Opened(to netip.AddrPort, from uint16) error
}

// Sockets makes sockets known before they send. Their ports are bound before it is known where they go, so each has one of
// the namespace's own: no more than some 28,000 can be open or in TIME_WAIT (ip_local_port_range in ip(7)). A nil *Sockets
// connects as anybody does, at no cost.
type Sockets struct {
	Announcer Announcer
	// Mark is that of all sockets (SO_MARK in socket(7), which needs CAP_NET_ADMIN), or 0.
	Mark uint32
}

// Connect is connect(2) for a new TCP socket that does not wait.
func (s *Sockets) Connect(fd int, to netip.AddrPort) error {
	if s == nil {
		return connect(fd, to)
	}
	from, err := s.open(fd, to)
	if err != nil {
		return err
	}
	connected := connect(fd, to)
	if err := s.Announcer.Opened(to, from); err != nil {
		return fmt.Errorf("connect to %v: %w", to, err)
	}
	return connected
}

// DialTCP connects as [net.Dialer.DialContext] does.
func (s *Sockets) DialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	c, release, err := s.dial(ctx, "tcp", to)
	if failed := release(); err == nil && failed != nil {
		c.Close()
		return nil, fmt.Errorf("connect to %v: %w", to, failed)
	}
	return c, err
}

// DialUDP connects a socket to one server. The caller calls release after it has closed the socket.
func (s *Sockets) DialUDP(to netip.AddrPort) (c *net.UDPConn, release func() error, err error) {
	conn, release, err := s.dial(context.Background(), "udp", to)
	if err != nil {
		return nil, nil, errors.Join(err, release())
	}
	return conn.(*net.UDPConn), release, nil
}

// dial returns a function that takes back all that was announced, also with an error.
func (s *Sockets) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, func() error, error) {
	var dialer net.Dialer
	if s == nil {
		c, err := dialer.DialContext(ctx, network, to.String())
		return c, func() error { return nil }, err
	}
	var ports []uint16 // more than one if the dialer tries again, which it does where a socket met itself
	dialer.ControlContext = func(_ context.Context, _, _ string, raw syscall.RawConn) error {
		var from uint16
		var failed error
		if err := raw.Control(func(fd uintptr) { from, failed = s.open(int(fd), to) }); err != nil {
			return err
		}
		if failed == nil {
			ports = append(ports, from)
		}
		return failed
	}
	c, err := dialer.DialContext(ctx, network, to.String())
	return c, func() (err error) {
		for _, from := range ports {
			err = errors.Join(err, s.Announcer.Opened(to, from))
		}
		return err
	}, err
}

// open prepares a socket that has not been bound.
func (s *Sockets) open(fd int, to netip.AddrPort) (from uint16, err error) {
	if s.Mark != 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(s.Mark)); err != nil {
			return 0, fmt.Errorf("mark a socket for %v: %w", to, err)
		}
	}
	unspecified := unix.Sockaddr(&unix.SockaddrInet4{})
	if to.Addr().Is6() {
		unspecified = &unix.SockaddrInet6{}
	}
	if err := unix.Bind(fd, unspecified); err != nil {
		return 0, fmt.Errorf("bind a socket for %v: %w", to, err)
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("port of a socket for %v: %w", to, err)
	}
	switch a := local.(type) {
	case *unix.SockaddrInet4:
		from = uint16(a.Port)
	case *unix.SockaddrInet6:
		from = uint16(a.Port)
	}
	return from, s.Announcer.Open(to, from)
}
