package cut

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// parseLine reads an entry from a line of /proc/net/nf_conntrack (ct_seq_show in nf_conntrack_standalone.c):
//
//	ipv4     2 udp      17 29 src=192.0.2.1 dst=192.0.2.2 sport=1 dport=2 [UNREPLIED] src=192.0.2.2 dst=192.0.2.1 sport=2 dport=1 mark=0 use=2
func parseLine(line string) (entry, error) {
	fields := strings.Fields(line)
	if len(fields) < 5 {
		return entry{}, fmt.Errorf("conntrack's line %q is too short", line)
	}
	protocol, err := strconv.ParseUint(fields[3], 10, 8)
	if err != nil {
		return entry{}, fmt.Errorf("conntrack's line %q: %w", line, err)
	}
	var tuples [2]tuple
	n := -1
	mark := uint64(0)
	for _, f := range fields[4:] {
		key, value, _ := strings.Cut(f, "=")
		if key == "mark" {
			if mark, err = strconv.ParseUint(value, 10, 32); err != nil {
				return entry{}, fmt.Errorf("conntrack's line %q: %s: %w", line, f, err)
			}
		}
		if key == "src" {
			n++
		}
		if n < 0 || n >= len(tuples) {
			continue
		}
		if err := tuples[n].set(key, value); err != nil {
			return entry{}, fmt.Errorf("conntrack's line %q: %s: %w", line, f, err)
		}
	}
	e := entry{protocol: uint8(protocol), original: tuples[0].flow(), reply: tuples[1].flow(), mark: uint32(mark)}
	if err := e.check(); err != nil {
		return entry{}, fmt.Errorf("conntrack's line %q: %w", line, err)
	}
	e.family = familyOf(e.original.source.Addr())
	e.originalTuple, e.replyTuple = tuples[0].attribute(e.protocol), tuples[1].attribute(e.protocol)
	return e, nil
}

// tuple is one direction of an entry. ICMP has a type, a code and an id in place of ports.
type tuple struct {
	source, destination netip.Addr
	ports               [2]uint16
	icmp                bool
	kind, code          uint8
	id                  uint16
}

func (t *tuple) set(key, value string) (err error) {
	number := func(bits int) (n uint64) {
		n, err = strconv.ParseUint(value, 10, bits)
		return n
	}
	switch key {
	case "src":
		t.source, err = netip.ParseAddr(value)
	case "dst":
		t.destination, err = netip.ParseAddr(value)
	case "sport":
		t.ports[0] = uint16(number(16))
	case "dport":
		t.ports[1] = uint16(number(16))
	case "type":
		t.icmp, t.kind = true, uint8(number(8))
	case "code":
		t.code = uint8(number(8))
	case "id":
		t.id = uint16(number(16))
	}
	return err
}

func (t *tuple) flow() flow {
	return flow{netip.AddrPortFrom(t.source, t.ports[0]), netip.AddrPortFrom(t.destination, t.ports[1])}
}

// attribute is the tuple as netlink has it.
func (t *tuple) attribute(protocol uint8) []byte {
	if !t.icmp {
		return tupleOf(protocol, t.flow())
	}
	// The attributes of ICMPv6 follow those of ICMP.
	first := uint16(ctaProtoICMP)
	if t.source.Is6() {
		first = ctaProtoICMPv6
	}
	proto := attribute(nil, ctaProtoNumber, []byte{protocol})
	proto = attribute(proto, first, binary.BigEndian.AppendUint16(nil, t.id))
	proto = attribute(proto, first+1, []byte{t.kind})
	proto = attribute(proto, first+2, []byte{t.code})
	return nested(addressesOf(t.flow()), ctaTupleProto, proto)
}

// check refuses what could not be understood: it could be something that has to go.
func (e *entry) check() error {
	for _, f := range []flow{e.original, e.reply} {
		if !f.source.Addr().IsValid() || !f.destination.Addr().IsValid() {
			return errors.New("a connection without addresses")
		}
	}
	return nil
}
