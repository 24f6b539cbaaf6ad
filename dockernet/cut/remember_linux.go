package cut

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// Messages and attributes to make an entry, linux/netfilter/nfnetlink_conntrack.h, with flags and a state of
// nf_conntrack_common.h and nf_conntrack_tcp.h.
const (
	ctNew = unix.NFNL_SUBSYS_CTNETLINK << 8

	ctaStatus    = 3
	ctaProtoInfo = 4
	ctaTimeout   = 7

	ctaProtoInfoTCP                                    = 1
	ctaTCPState, ctaTCPFlagsOriginal, ctaTCPFlagsReply = 1, 4, 5

	statusOpen     = 1<<1 | 1<<2 | 1<<3 // answered, assured, confirmed
	tcpEstablished = 3
	// tcpLiberal: the entry knows no window, so it takes every number.
	tcpLiberal = 1 << 3

	// rememberedSeconds is what the kernel gives connections that are open (nf_conntrack_tcp_timeout_established), from their
	// next packet on.
	rememberedSeconds = 5 * 24 * 60 * 60
)

// Remember tells the conntrack of a namespace, which may not have looked at anything until now, of TCP connections into the
// container that the host's alone knows. It is for before the first rules are there, which need to know who has opened
// them. host is the namespace of the container's bridges, nil for the one that this process runs in.
func Remember(ns, host *netns.Namespace) error {
	c := &cutter{Spec: new(Spec), own: make(map[netip.Addr]bool)}
	defer c.close()
	var open listed
	err := ns.Do(func() (err error) {
		if err = c.enterConntrack(); err != nil {
			return err
		}
		if c.diag, err = dial(unix.NETLINK_SOCK_DIAG); err != nil {
			return err
		}
		return c.diag.streams(1<<stateListen, open.of(unix.IPPROTO_TCP))
	})
	if err != nil {
		return fmt.Errorf("remember connections in network namespace %v: %w", ns.ID(), err)
	}
	sockets := deleteLocal(open.connected, c.local)
	if len(sockets) == 0 {
		return nil
	}
	known, err := c.inside.entries(sockets)
	if err != nil {
		return fmt.Errorf("remember connections in network namespace %v: %w", ns.ID(), err)
	}
	if err := onHost(host)(c.enterHost); err != nil {
		return fmt.Errorf("remember connections: host: %w", err)
	}
	found, err := c.host.entries(sockets)
	if err != nil {
		return fmt.Errorf("remember connections: host: %w", err)
	}
	var requests [][]byte
	for i, s := range sockets {
		if e := found[i]; known[i] == nil && e != nil && e.original != s.flow {
			requests = append(requests, opened(flow{s.destination, s.source}))
		}
	}
	err = c.inside.ask(ctNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, requests, func(_ int, a answer) error {
		if a.errno != 0 && !errors.Is(a.errno, unix.EEXIST) {
			return a.errno
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remember connections in network namespace %v: make conntrack entries: %w", ns.ID(), err)
	}
	return nil
}

// opened is the request to make the entry of a TCP connection that is open.
func opened(f flow) []byte {
	number := func(b []byte, kind uint16, n uint32) []byte {
		return attribute(b, kind, binary.BigEndian.AppendUint32(nil, n))
	}
	flags := []byte{tcpLiberal, tcpLiberal} // and which of them count
	tcp := attribute(nil, ctaTCPState, []byte{tcpEstablished})
	tcp = attribute(attribute(tcp, ctaTCPFlagsOriginal, flags), ctaTCPFlagsReply, flags)
	b := nested(family(familyOf(f.source.Addr())), ctaTupleOriginal, tupleOf(unix.IPPROTO_TCP, f))
	b = nested(b, ctaTupleReply, tupleOf(unix.IPPROTO_TCP, flow{f.destination, f.source}))
	b = number(number(b, ctaStatus, statusOpen), ctaTimeout, rememberedSeconds)
	return nested(b, ctaProtoInfo, nested(nil, ctaProtoInfoTCP, tcp))
}
