package cut

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Socket diagnostics, linux/sock_diag.h and linux/inet_diag.h; sock_diag(7) describes the reading part.
const (
	tcpDiagGetSock   = 18
	sockDiagByFamily = 20
	sockDestroy      = 21

	// The states of sockets, include/net/tcp_states.h.
	stateFinWait2 = 5
	stateTimeWait = 6
	stateClose    = 7
	stateListen   = 10
	stateBound    = 13 // TCP_BOUND_INACTIVE: those that are bound and nothing else

	oldRequestBytes = 4 + idBytes + 8 // inet_diag_req, with the states
	oldStatesOffset = 4 + idBytes

	requestBytes = 8 + idBytes      // inet_diag_req_v2
	idBytes      = 48               // inet_diag_sockid
	inodeOffset  = 4 + idBytes + 16 // in inet_diag_msg, whose last field it is
	messageBytes = inodeOffset + 4

	diagMark = 15 // INET_DIAG_MARK, which the kernel tells whoever has CAP_NET_ADMIN
)

// socket is one inside the namespace that has a remote address.
type socket struct {
	protocol uint8
	family   uint8
	id       [idBytes]byte // with the cookie, so that it can mean no other socket
	flow
}

// flow is what the container's packets of a connection carry, or those of the other side.
type flow struct{ source, destination netip.AddrPort }

// sockets lists those that have a remote address and are not loopback's, and tells whether there are others that take
// datagrams from anyone. The walks through the kernel's tables are made at the same time: that of UDP has two listeners
// of every container on its way.
func (c *cutter) sockets() (connected []socket, receivers bool, err error) {
	streams, datagrams := listed{spared: c.Spared}, listed{spared: c.Spared}
	ended := make(chan error, 1)
	go func() { ended <- c.udp.datagrams(datagrams.of(unix.IPPROTO_UDP)) }()
	err = c.diag.streams(1<<stateListen, streams.of(unix.IPPROTO_TCP))
	err = errors.Join(err, <-ended)
	return append(streams.connected, datagrams.connected...), datagrams.receivers, err
}

// listed are the sockets of a protocol.
type listed struct {
	connected []socket
	receivers bool
	spared    *Spared
}

// of takes a message about each.
func (l *listed) of(protocol uint8) func([]byte) error {
	return func(b []byte) error {
		if len(b) < messageBytes {
			return errShort
		}
		s := socket{protocol: protocol, family: b[0], id: [idBytes]byte(b[4:])}
		s.source, s.destination = s.end(0), s.end(1)
		switch {
		case l.spared.socket(markOf(b)):
		case s.source.Addr().IsLoopback() || s.destination.Addr().IsLoopback():
		case s.destination.Port() == 0:
			l.receivers = l.receivers || protocol == unix.IPPROTO_UDP
		case b[1] == stateFinWait2 && binary.NativeEndian.Uint32(b[inodeOffset:]) == 0:
			// Nobody has it: it is in TIME_WAIT under another name, takes no data and cannot be destroyed.
		default:
			l.connected = append(l.connected, s)
		}
		return nil
	}
}

// markOf is the mark of the socket that a message is about, 0 if it has none.
func markOf(b []byte) uint32 {
	for kind, value := range attributes(b[messageBytes:]) {
		if kind == diagMark && len(value) == 4 {
			return binary.NativeEndian.Uint32(value)
		}
	}
	return 0
}

// streams lists sockets of TCP, but for those in some states and those that nothing can be sent to.
func (c *conn) streams(without uint32, each func([]byte) error) error {
	// The older request lists both families in one walk of the kernel's table, which has 262,144 slots and more.
	request := make([]byte, oldRequestBytes)
	binary.NativeEndian.PutUint32(request[oldStatesOffset:], ^(without | 1<<stateTimeWait | 1<<stateClose | 1<<stateBound))
	if err := c.dump(tcpDiagGetSock, request, each); err != nil {
		return fmt.Errorf("list TCP sockets: %w", err)
	}
	return nil
}

// datagrams lists all sockets of UDP.
func (c *conn) datagrams(each func([]byte) error) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, requestBytes)
		request[0], request[1] = family, unix.IPPROTO_UDP
		binary.NativeEndian.PutUint32(request[4:], ^uint32(0))
		if err := c.dump(sockDiagByFamily, request, each); err != nil {
			return fmt.Errorf("list UDP sockets: %w", err)
		}
	}
	return nil
}

// end returns the local (0) or the remote (1) end.
func (s *socket) end(which int) netip.AddrPort {
	port := binary.BigEndian.Uint16(s.id[2*which:])
	address := s.id[4+16*which:]
	if s.family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(address)), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(address)).Unmap(), port)
}

// destroy ends sockets: TCP sends a reset, and the application gets ECONNABORTED.
func (c *conn) destroy(sockets []socket) (int, error) {
	requests := make([][]byte, len(sockets))
	for i, s := range sockets {
		r := make([]byte, 8, requestBytes)
		r[0], r[1] = s.family, s.protocol
		binary.NativeEndian.PutUint32(r[4:], ^uint32(0))
		requests[i] = append(r, s.id[:]...)
	}
	n, err := c.perform(sockDestroy, requests)
	if err == unix.EOPNOTSUPP {
		err = fmt.Errorf("%w: the kernel is built without INET_DIAG_DESTROY", err)
	}
	if err != nil {
		return n, fmt.Errorf("destroy sockets: %w", err)
	}
	return n, nil
}
