package cut

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Messages and attributes of conntrack's netlink, linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	ctStats  = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5

	ctaStatsEntries = 1

	ctaTupleOriginal = 1
	ctaTupleReply    = 2
	ctaMark          = 8
	ctaID            = 12
	ctaZone          = 18
	ctaFilter        = 25

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Source, ctaIPv4Destination = 1, 2
	ctaIPv6Source, ctaIPv6Destination = 3, 4

	ctaProtoNumber, ctaProtoSource, ctaProtoDestination = 1, 2, 3
	// Id, type and code of ICMP, and of ICMPv6.
	ctaProtoICMP, ctaProtoICMPv6 = 4, 7

	ctaFilterOriginal, ctaFilterReply = 1, 2
	// filterSource is the flag for a tuple's source address (CTA_FILTER_F_CTA_IP_SRC of nf_internals.h).
	filterSource = 1 << 0

	familyBytes = 4 // nfgenmsg
)

// entry is a connection as conntrack knows it.
type entry struct {
	protocol uint8
	original flow // of the first packet
	reply    flow // of the answers to it, after address translation
	onHost   bool
	mark     uint32

	// The rest is valid for as long as the message that it was read from.
	family                    uint8
	originalTuple, replyTuple []byte
	id, zone                  []byte // nil if they are not known
}

// parse reads an entry. One that it does not understand is an error, since it could be one that has to go.
func parse(b []byte) (e entry, err error) {
	if len(b) < familyBytes {
		return e, errShort
	}
	e.family = b[0]
	for kind, value := range attributes(b[familyBytes:]) {
		switch kind {
		case ctaTupleOriginal:
			e.originalTuple = value
		case ctaTupleReply:
			e.replyTuple = value
		case ctaMark:
			if len(value) != 4 {
				return e, errShort
			}
			e.mark = binary.BigEndian.Uint32(value)
		case ctaID:
			e.id = value
		case ctaZone:
			e.zone = value
		}
	}
	e.original, e.protocol = parseTuple(e.originalTuple)
	e.reply, _ = parseTuple(e.replyTuple)
	return e, e.check()
}

// masked reports whether answers go to another address than the first packet came from. They reach nobody without the
// entry.
func (e *entry) masked() bool { return e.reply.destination.Addr() != e.original.source.Addr() }

// exact names this entry and, as far as its id is known, no later one.
func (e *entry) exact() []byte {
	b := e.packets()
	if e.id != nil {
		b = attribute(b, ctaID, e.id)
	}
	if e.zone != nil {
		b = attribute(b, ctaZone, e.zone)
	}
	return b
}

// packets and answers name the entry that the connection's packets, or the answers to them, belong to in whatever
// namespace.
func (e *entry) packets() []byte { return nested(family(e.family), ctaTupleOriginal, e.originalTuple) }
func (e *entry) answers() []byte { return nested(family(e.family), ctaTupleOriginal, e.replyTuple) }

// parseTuple returns ports of 0 for protocols without them.
func parseTuple(b []byte) (f flow, protocol uint8) {
	var source, destination netip.Addr
	var ports [2]uint16
	for kind, value := range attributes(b) {
		switch kind {
		case ctaTupleIP:
			for kind, value := range attributes(value) {
				a, ok := netip.AddrFromSlice(value)
				switch {
				case !ok:
				case kind == ctaIPv4Source || kind == ctaIPv6Source:
					source = a
				case kind == ctaIPv4Destination || kind == ctaIPv6Destination:
					destination = a
				}
			}
		case ctaTupleProto:
			for kind, value := range attributes(value) {
				switch {
				case kind == ctaProtoNumber && len(value) == 1:
					protocol = value[0]
				case (kind == ctaProtoSource || kind == ctaProtoDestination) && len(value) == 2:
					ports[kind-ctaProtoSource] = binary.BigEndian.Uint16(value)
				}
			}
		}
	}
	return flow{netip.AddrPortFrom(source, ports[0]), netip.AddrPortFrom(destination, ports[1])}, protocol
}

func family(f uint8) []byte { return []byte{f, unix.NFNETLINK_V0, 0, 0} }

func familyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// request names the entry that a packet belongs to, in whichever direction it goes.
func request(protocol uint8, f flow) []byte {
	return nested(family(familyOf(f.source.Addr())), ctaTupleOriginal, tupleOf(protocol, f))
}

func tupleOf(protocol uint8, f flow) []byte {
	proto := attribute(nil, ctaProtoNumber, []byte{protocol})
	proto = attribute(proto, ctaProtoSource, binary.BigEndian.AppendUint16(nil, f.source.Port()))
	proto = attribute(proto, ctaProtoDestination, binary.BigEndian.AppendUint16(nil, f.destination.Port()))
	return nested(addressesOf(f), ctaTupleProto, proto)
}

func addressesOf(f flow) []byte {
	source, destination := uint16(ctaIPv4Source), uint16(ctaIPv4Destination)
	if f.source.Addr().Is6() {
		source, destination = ctaIPv6Source, ctaIPv6Destination
	}
	ip := attribute(nil, source, f.source.Addr().AsSlice())
	ip = attribute(ip, destination, f.destination.Addr().AsSlice())
	return nested(nil, ctaTupleIP, ip)
}

// entries looks up the entry that each socket's packets belong to, nil for none.
func (c *conn) entries(sockets []socket) ([]*entry, error) {
	requests := make([][]byte, len(sockets))
	for i, s := range sockets {
		requests[i] = request(s.protocol, s.flow)
	}
	return c.lookUp(requests)
}

// lookUp looks up the entry that each request names, nil for none. Of each its flows are valid.
func (c *conn) lookUp(requests [][]byte) ([]*entry, error) {
	found := make([]*entry, len(requests))
	err := c.ask(ctGet, 0, requests, func(i int, a answer) error {
		switch {
		case a.errno == unix.ENOENT:
			return nil
		case a.errno != 0:
			return a.errno
		}
		e, err := parse(a.body)
		found[i] = &e
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up conntrack entries: %w", err)
	}
	return found, nil
}

// count asks how many entries the namespace has.
func (c *conn) count() (n int, err error) {
	err = c.ask(ctStats, 0, [][]byte{family(unix.AF_UNSPEC)}, func(_ int, a answer) error {
		if a.errno != 0 {
			return a.errno
		}
		if len(a.body) < familyBytes {
			return errShort
		}
		for kind, value := range attributes(a.body[familyBytes:]) {
			if kind == ctaStatsEntries && len(value) == 4 {
				n = int(binary.BigEndian.Uint32(value))
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count conntrack entries: %w", err)
	}
	return n, nil
}

// all calls each with every entry of the namespace. An entry is valid during the call.
//
// However few there are, this takes about 35 ns for each slot of the kernel's one table, whose locks are taken one
// after the other: 9 ms with the usual 262,144 (net.netfilter.nf_conntrack_buckets).
func (c *conn) all(each func(entry)) error { return c.list(family(unix.AF_UNSPEC), each) }

// from is like all, for those that began with a packet from one of the addresses.
func (c *conn) from(addresses []netip.Addr, each func(entry)) error {
	return c.with(addresses, ctaTupleOriginal, func(e *entry) netip.Addr { return e.original.source.Addr() }, each)
}

// into is like all, for those that are answered from one of the addresses.
func (c *conn) into(addresses []netip.Addr, each func(entry)) error {
	return c.with(addresses, ctaTupleReply, func(e *entry) netip.Addr { return e.reply.source.Addr() }, each)
}

// with is like all, for those of which one tuple has one of the addresses for its source.
func (c *conn) with(addresses []netip.Addr, tuple uint16, source func(*entry) netip.Addr, each func(entry)) error {
	var ipv6 bool
	for _, a := range addresses {
		if !a.Is4() {
			ipv6 = true
			continue
		}
		ip := nested(nil, ctaTupleIP, attribute(nil, ctaIPv4Source, a.AsSlice()))
		var filter []byte
		for kind, of := range map[uint16]uint16{ctaFilterOriginal: ctaTupleOriginal, ctaFilterReply: ctaTupleReply} {
			flags := uint32(0)
			if of == tuple {
				flags = filterSource
			}
			filter = attribute(filter, kind, binary.NativeEndian.AppendUint32(nil, flags))
		}
		payload := nested(nested(family(unix.AF_INET), tuple, ip), ctaFilter, filter)
		err := c.list(payload, func(e entry) {
			// Kernels before 5.8 know no filter and send everything.
			if source(&e) == a {
				each(e)
			}
		})
		if err != nil {
			return err
		}
	}
	if !ipv6 {
		return nil
	}
	// The kernel's filter compares IPv6 addresses the wrong way round and sends what does not match
	// (ctnetlink_filter_match_tuple, 5.8 to 6.18 at least), so that only the family is left to filter by.
	return c.list(family(unix.AF_INET6), func(e entry) {
		if slices.Contains(addresses, source(&e)) {
			each(e)
		}
	})
}

func (c *conn) list(payload []byte, each func(entry)) error {
	err := c.dump(ctGet, payload, func(b []byte) error {
		e, err := parse(b)
		if err == nil {
			each(e)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list conntrack entries: %w", err)
	}
	return nil
}

// remove deletes entries and returns how many there were.
func (c *conn) remove(requests [][]byte) (int, error) {
	n, err := c.perform(ctDelete, requests)
	if err != nil {
		return n, fmt.Errorf("delete conntrack entries: %w", err)
	}
	return n, nil
}
