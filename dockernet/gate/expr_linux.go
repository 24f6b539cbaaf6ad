package gate

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers: most values go into the first one. A key of two fields is in one piece: the second field follows the
// first (nft_payload.c, nft_set_pipapo.c), in units of 4 bytes.
const (
	register     = unix.NFT_REG_1
	afterAddress = unix.NFT_REG32_01 // behind an IPv4 address
	afterIPv6    = unix.NFT_REG_2    // behind an IPv6 address
)

// place says where a field is: in a header, or known to the kernel.
type place struct {
	load   func(to uint32) expr.Any
	bytes  int
	native bool // byte order of the host
	// mask of the bits that are the field, if they are fewer than its bytes.
	mask byte
	// needs is what has to be known before: the family, or the protocol.
	family, protocol word
}

func meta(key expr.MetaKey) func(uint32) expr.Any {
	return func(to uint32) expr.Any { return &expr.Meta{Key: key, Register: to} }
}

func ct(key expr.CtKey) func(uint32) expr.Any {
	return func(to uint32) expr.Any { return &expr.Ct{Key: key, Register: to} }
}

func header(base expr.PayloadBase, offset, length uint32) func(uint32) expr.Any {
	return func(to uint32) expr.Any {
		return &expr.Payload{DestRegister: to, Base: base, Offset: offset, Len: length}
	}
}

func networkHeader(offset, length uint32) func(uint32) expr.Any {
	return header(expr.PayloadBaseNetworkHeader, offset, length)
}

func transportHeader(offset, length uint32) func(uint32) expr.Any {
	return header(expr.PayloadBaseTransportHeader, offset, length)
}

// Offsets are those of RFC 791 §3.1, RFC 8200 §3, RFC 9293 §3.1, RFC 768, RFC 792 and RFC 4443 §2.1.
var places = [...]place{
	nfproto: {load: meta(expr.MetaKeyNFPROTO), bytes: 1},
	l4proto: {load: meta(expr.MetaKeyL4PROTO), bytes: 1},
	oifname: {load: meta(expr.MetaKeyOIFNAME), bytes: unix.IFNAMSIZ},
	iifname: {load: meta(expr.MetaKeyIIFNAME), bytes: unix.IFNAMSIZ},
	length:  {load: meta(expr.MetaKeyLEN), bytes: 4, native: true},
	fibSource: {load: func(to uint32) expr.Any {
		return &expr.Fib{Register: to, FlagSADDR: true, ResultADDRTYPE: true}
	}, bytes: 4, native: true},
	fibDestination: {load: func(to uint32) expr.Any {
		return &expr.Fib{Register: to, FlagDADDR: true, ResultADDRTYPE: true}
	}, bytes: 4, native: true},
	ctState:        {load: ct(expr.CtKeySTATE), bytes: 4, native: true},
	ctStatus:       {load: ct(expr.CtKeySTATUS), bytes: 4, native: true},
	ctDirection:    {load: ct(expr.CtKeyDIRECTION), bytes: 1},
	ipSource:       {load: networkHeader(12, 4), bytes: 4, family: "ipv4"},
	ipDestination:  {load: networkHeader(16, 4), bytes: 4, family: "ipv4"},
	ipFragment:     {load: networkHeader(6, 2), bytes: 2, family: "ipv4"},
	ipHeaderLength: {load: networkHeader(0, 1), bytes: 1, mask: 0x0f, family: "ipv4"},
	ipProtocol:     {load: networkHeader(9, 1), bytes: 1, family: "ipv4"},
	ip6Source:      {load: networkHeader(8, 16), bytes: 16, family: "ipv6"},
	ip6Destination: {load: networkHeader(24, 16), bytes: 16, family: "ipv6"},
	ip6Next:        {load: networkHeader(6, 1), bytes: 1, family: "ipv6"},
	ip6HopLimit:    {load: networkHeader(7, 1), bytes: 1, family: "ipv6"},
	tcpSource:      {load: transportHeader(0, 2), bytes: 2, protocol: "tcp"},
	tcpPort:        {load: transportHeader(2, 2), bytes: 2, protocol: "tcp"},
	tcpFlags:       {load: transportHeader(13, 1), bytes: 1, protocol: "tcp"},
	tcpOffset:      {load: transportHeader(12, 1), bytes: 1, mask: 0xf0, protocol: "tcp"},
	udpSource:      {load: transportHeader(0, 2), bytes: 2, protocol: "udp"},
	udpPort:        {load: transportHeader(2, 2), bytes: 2, protocol: "udp"},
	icmpType:       {load: transportHeader(0, 1), bytes: 1, family: "ipv4", protocol: "icmp"},
	icmp6Type:      {load: transportHeader(0, 1), bytes: 1, family: "ipv6", protocol: "ipv6-icmp"},
}

// compiler turns one rule into expressions.
type compiler struct {
	exprs  []expr.Any
	family word // that the rule has tested for
	proto  word
}

// compile turns a rule into the expressions that it is for the kernel.
func compile(r rule) ([]expr.Any, error) {
	c := new(compiler)
	for _, p := range r {
		if err := c.part(p); err != nil {
			return nil, fmt.Errorf("rule %v: %w", r, err)
		}
	}
	return c.exprs, nil
}

func (c *compiler) add(e ...expr.Any) { c.exprs = append(c.exprs, e...) }

func (c *compiler) part(p part) error {
	switch p := p.(type) {
	case test:
		return c.test(p)
	case masked:
		c.load(p.field, register)
		size := places[p.field].bytes
		mask := number(p.mask).bytes(p.field)
		c.add(&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(size), Mask: mask, Xor: make([]byte, size)})
		return c.compare(p.field, p.not, p.value)
	case above:
		place := &places[p.field]
		c.load(p.field, register)
		c.add(&expr.Byteorder{SourceRegister: register, DestRegister: register, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Cmp{Op: expr.CmpOpGt, Register: register, Data: binaryutil.BigEndian.PutUint32(uint32(p.value))})
		if !place.native || place.bytes != 4 {
			return fmt.Errorf("%v cannot be compared by size", p.field)
		}
	case in:
		c.key(p.fields)
		c.lookup(p.set)
	case hidden:
		return c.hidden(p)
	case isISATAP:
		c.need(nfproto, "ipv6", &c.family)
		c.isOf(&forms[len(forms)-1])
	case shortLocalNAT64:
		c.need(nfproto, "ipv6", &c.family)
		c.prefix(places[ip6Destination].load, unreadable)
		c.add(networkHeader(24+8, 4)(register), &expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)})
	case verdict:
		kinds := map[string]expr.VerdictKind{"accept": expr.VerdictAccept, "drop": expr.VerdictDrop,
			"return": expr.VerdictReturn, "jump": expr.VerdictJump, "goto": expr.VerdictGoto}
		c.add(&expr.Verdict{Kind: kinds[p.word], Chain: p.chain})
	case count:
		c.add(&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: p.counter})
	case log:
		c.add(&expr.Limit{Type: expr.LimitTypePkts, Rate: logRate, Unit: expr.LimitTimeSecond, Burst: logBurst},
			&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
				Group: p.group, Data: []byte(p.prefix), Snaplen: logBytes})
	case redirect:
		c.add(&expr.Immediate{Register: register, Data: binaryutil.BigEndian.PutUint16(p.port)},
			&expr.Redir{RegisterProtoMin: register, RegisterProtoMax: register})
	case reject:
		if p.tcp {
			c.add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
		} else {
			c.add(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})
		}
	default:
		return fmt.Errorf("part %T is unknown", p)
	}
	return nil
}

// load puts a field into a register, after a test that the packet has it.
func (c *compiler) load(f field, to uint32) {
	p := &places[f]
	c.need(nfproto, p.family, &c.family)
	c.need(l4proto, p.protocol, &c.proto)
	c.add(p.load(to))
	if p.mask != 0 {
		c.add(&expr.Bitwise{SourceRegister: to, DestRegister: to, Len: 1, Mask: []byte{p.mask}, Xor: []byte{0}})
	}
}

// need tests for a family or protocol, unless the rule has done so.
func (c *compiler) need(f field, want word, known *word) {
	if want == "" || *known == want {
		return
	}
	*known = want
	c.add(places[f].load(register), &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: want.number().bytes(f)})
}

func (c *compiler) test(t test) error {
	switch v := t.value.(type) {
	case network:
		if t.not {
			return fmt.Errorf("%v: a network cannot be excluded", t)
		}
		c.need(nfproto, places[t.field].family, &c.family)
		c.prefix(places[t.field].load, netip.Prefix(v))
		return nil
	case anyOf:
		mask := number(0)
		for _, w := range v {
			mask |= w.number()
		}
		c.load(t.field, register)
		c.add(&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: mask.bytes(t.field), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)})
		return nil
	case between:
		c.load(t.field, register)
		first, last := v.first.bytes(t.field), v.last.bytes(t.field)
		if t.not {
			c.add(&expr.Range{Op: expr.CmpOpNeq, Register: register, FromData: first, ToData: last})
			return nil
		}
		c.add(&expr.Cmp{Op: expr.CmpOpGte, Register: register, Data: first},
			&expr.Cmp{Op: expr.CmpOpLte, Register: register, Data: last})
		return nil
	}
	c.load(t.field, register)
	if err := c.compare(t.field, t.not, t.value); err != nil {
		return err
	}
	if w, ok := t.value.(word); ok && !t.not {
		switch t.field {
		case nfproto:
			c.family = w
		case l4proto, ipProtocol, ip6Next:
			c.proto = w
		}
	}
	return nil
}

func (c *compiler) compare(f field, not bool, v value) error {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	var data []byte
	switch v := v.(type) {
	case number:
		data = v.bytes(f)
	case word:
		data = v.number().bytes(f)
	case name:
		data = make([]byte, places[f].bytes)
		copy(data, v)
	default:
		return fmt.Errorf("%v cannot be compared with a %T", f, v)
	}
	c.add(&expr.Cmp{Op: op, Register: register, Data: data})
	return nil
}

// prefix compares an address with a prefix.
func (c *compiler) prefix(load func(uint32) expr.Any, p netip.Prefix) {
	c.add(load(register))
	address := p.Addr().AsSlice()
	if !p.IsSingleIP() {
		mask := make([]byte, len(address))
		for i := range p.Bits() {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		c.add(&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))})
	}
	c.add(&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: address})
}

// isOf tests whether the destination is of the form.
func (c *compiler) isOf(f *form) {
	c.add(places[ip6Destination].load(register),
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 16, Mask: f.mask[:], Xor: make([]byte, 16)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: f.value[:]})
}

// key loads what a set is asked for.
func (c *compiler) key(fields []field) {
	to := uint32(register)
	for _, f := range fields {
		// What a field needs is tested in the first register, so it comes before the first field is there.
		c.need(nfproto, places[f].family, &c.family)
		c.need(l4proto, places[f].protocol, &c.proto)
	}
	for _, f := range fields {
		c.load(f, to)
		to = next(places[f].bytes)
	}
}

func next(bytes int) uint32 {
	if bytes == 16 {
		return afterIPv6
	}
	return afterAddress
}

func (c *compiler) lookup(set string) {
	c.add(&expr.Lookup{SourceRegister: register, SetName: set})
}

func (c *compiler) hidden(h hidden) error {
	c.need(nfproto, "ipv6", &c.family)
	if h.port != nil {
		c.need(l4proto, places[*h.port].protocol, &c.proto)
	}
	c.isOf(h.form)
	load := networkHeader(24+uint32(h.form.offset), 4)
	if h.set == "" {
		p := h.prefix
		if h.form.flipped {
			a := p.Addr().As4()
			for i := range a {
				a[i] = ^a[i]
			}
			p = netip.PrefixFrom(netip.AddrFrom4(a), p.Bits()).Masked()
		}
		c.prefix(load, p)
		return nil
	}
	c.add(load(register))
	if h.form.flipped {
		all := []byte{0xff, 0xff, 0xff, 0xff}
		c.add(&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: all, Xor: all})
	}
	if h.port != nil {
		c.load(*h.port, afterAddress)
	}
	c.lookup(h.set)
	return nil
}

func (w word) number() number { return number(words[string(w)]) }

// bytes returns the number as it stands in a register for the field.
func (n number) bytes(f field) []byte {
	p := &places[f]
	switch {
	case p.mask == 0xf0:
		return []byte{byte(n) << 4}
	case p.bytes == 1:
		return []byte{byte(n)}
	case p.bytes == 2:
		return binary.BigEndian.AppendUint16(nil, uint16(n))
	case p.native:
		return binary.NativeEndian.AppendUint32(nil, uint32(n))
	default:
		return binary.BigEndian.AppendUint32(nil, uint32(n))
	}
}
