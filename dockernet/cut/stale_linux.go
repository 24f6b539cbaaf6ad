package cut

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// end is where a socket is, and whom it is connected to, if anybody.
type end struct {
	protocol      uint8
	local, remote netip.AddrPort
}

// ends are those of all sockets of the namespace that something can be sent to.
func (c *conn) ends() (map[end]bool, error) {
	all := make(map[end]bool)
	each := func(protocol uint8) func([]byte) error {
		return func(b []byte) error {
			if len(b) < messageBytes {
				return errShort
			}
			s := socket{family: b[0], id: [idBytes]byte(b[4:])}
			e := end{protocol, s.end(0), s.end(1)}
			if e.remote.Port() == 0 {
				e.remote = netip.AddrPort{}
			}
			all[e] = true
			return nil
		}
	}
	if err := c.streams(0, each(unix.IPPROTO_TCP)); err != nil {
		return nil, err
	}
	return all, c.datagrams(each(unix.IPPROTO_UDP))
}

// stale are entries that lead to where no socket is.
type stale struct {
	sockets  map[end]bool // nil to look for none
	requests [][]byte     // to delete them
}

// look takes an entry of what does not leave the namespace.
func (s *stale) look(e *entry) {
	redirected := e.reply.source != e.original.destination
	if s.sockets == nil || !redirected || e.protocol != unix.IPPROTO_TCP && e.protocol != unix.IPPROTO_UDP {
		return
	}
	at := e.reply.source
	for _, socket := range []end{
		{e.protocol, at, e.reply.destination},
		{e.protocol, at, netip.AddrPort{}},
		{e.protocol, netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port()), netip.AddrPort{}},
		{e.protocol, netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port()), netip.AddrPort{}},
	} {
		if s.sockets[socket] {
			return
		}
	}
	s.requests = append(s.requests, e.exact())
}
