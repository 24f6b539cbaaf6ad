package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers: most values go into the first one. A key of several fields is in one piece: each follows the one
// before (nft_payload.c, nft_set_pipapo.c), in units of 4 bytes.
const (
	register     = unix.NFT_REG_1
	afterAddress = unix.NFT_REG32_01 // behind an IPv4 address
	afterIPv6    = unix.NFT_REG_2    // behind an IPv6 address
	// Behind a port that follows them.
	afterPort, afterIPv6Port = unix.NFT_REG32_02, unix.NFT_REG32_05
)

// ipv6HeaderBytes is how long the first header is, RFC 8200 §3.
const ipv6HeaderBytes = 40

// compiler turns one rule into expressions.
type compiler struct {
	exprs  []expr.Any
	sets   map[string]uint32 // ids of the sets of this batch
	family string            // of the table
	kind   Kind              // that the chain or the rule has tested for
	proto  Word              // too
	// frames6: all are frames of IPv6, whose second header is looked for where the first one ends, so that rules have to
	// refuse extension headers. The kernel's own idea of where it is, and of which protocol, can be had by a sender: of a
	// first header in memory that they share (PACKET_TX_RING), ipv6_find_hdr reads the kind of the next one from elsewhere.
	frames6 bool
}

// compile turns a rule of a chain into the expressions that it is for the kernel. sets are the ids of sets that are
// made in the same batch, by name.
func compile(id ID, ch *Chain, r Rule, sets map[string]uint32) ([]expr.Any, error) {
	c := &compiler{sets: sets, family: id.Family, kind: ch.Kind, proto: ch.Protocol, frames6: id.Family == "netdev" && ch.Kind == IPv6}
	for _, p := range r {
		if err := c.part(p); err != nil {
			return nil, fmt.Errorf("table %v, chain %s, rule %v: %w", id, ch.Name, r, err)
		}
	}
	return c.exprs, nil
}

func (c *compiler) add(e ...expr.Any) { c.exprs = append(c.exprs, e...) }

func (c *compiler) part(p Part) error {
	switch p := p.(type) {
	case Test:
		return c.test(p)
	case Masked:
		return c.masked(p)
	case Above:
		if !p.Field.native || p.Field.size == 1 {
			return fmt.Errorf("%v is no number of the host's byte order", p.Field)
		}
		c.load(p.Field, register)
		c.add(&expr.Byteorder{SourceRegister: register, DestRegister: register, Op: expr.ByteorderHton, Len: p.Field.size, Size: p.Field.size},
			&expr.Cmp{Op: expr.CmpOpGt, Register: register, Data: binary.BigEndian.AppendUint32(nil, uint32(p.Value))[4-p.Field.size:]})
	case In:
		c.key(p.Fields)
		c.add(&expr.Lookup{SourceRegister: register, SetName: p.Set, SetID: c.sets[p.Set], Invert: p.Not})
	case Verdict:
		kinds := map[string]expr.VerdictKind{"accept": expr.VerdictAccept, "drop": expr.VerdictDrop,
			"return": expr.VerdictReturn, "jump": expr.VerdictJump, "goto": expr.VerdictGoto}
		kind, ok := kinds[p.word]
		if !ok {
			return fmt.Errorf("verdict %q is unknown", p.word)
		}
		c.add(&expr.Verdict{Kind: kind, Chain: p.chain})
	case Count:
		c.add(&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: p.Counter})
	case Limit:
		c.add(&expr.Limit{Type: expr.LimitTypePkts, Rate: p.Rate, Unit: expr.LimitTimeSecond, Burst: p.Burst})
	case Log:
		c.add(&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
			Group: p.Group, Data: []byte(p.Prefix), Snaplen: p.Snaplen})
	case SetMark:
		c.load(Mark, register)
		c.add(&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4,
			Mask: Mark.bytes(Number(^(p.Clear | p.Set))), Xor: Mark.bytes(Number(p.Set))},
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register})
	case SetCTMark:
		c.add(&expr.Immediate{Register: register, Data: CTMark.bytes(Number(p))},
			&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: register})
	case Redirect:
		c.add(&expr.Immediate{Register: register, Data: binary.BigEndian.AppendUint16(nil, p.Port)},
			&expr.Redir{RegisterProtoMin: register, RegisterProtoMax: register})
	case Reject:
		if p.TCP {
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
func (c *compiler) load(f *Field, to uint32) {
	c.need(f)
	c.read(f, to)
}

func (c *compiler) read(f *Field, to uint32) {
	payload := func(base expr.PayloadBase, at uint32) {
		c.add(&expr.Payload{DestRegister: to, Base: base, Offset: at + f.offset, Len: f.size})
	}
	if c.frames6 && f == Protocol {
		f = IP6Next
	}
	switch f.base {
	case inMeta:
		c.add(&expr.Meta{Key: expr.MetaKey(f.key), Register: to})
	case inCT:
		c.add(&expr.Ct{Key: expr.CtKey(f.key), Register: to})
	case inRoute:
		c.add(&expr.Rt{Register: to, Key: expr.RtKey(f.key)})
	case inFib:
		c.add(&expr.Fib{Register: to, FlagSADDR: f.key == unix.NFTA_FIB_F_SADDR, FlagDADDR: f.key == unix.NFTA_FIB_F_DADDR, ResultADDRTYPE: true})
	case inLink:
		payload(expr.PayloadBaseLLHeader, 0)
	case inNetwork:
		payload(expr.PayloadBaseNetworkHeader, 0)
	case inTransport:
		if c.frames6 {
			payload(expr.PayloadBaseNetworkHeader, ipv6HeaderBytes)
		} else {
			payload(expr.PayloadBaseTransportHeader, 0)
		}
	}
	switch {
	case f.bits != 0:
		c.add(&expr.Bitwise{SourceRegister: to, DestRegister: to, Len: 1, Mask: []byte{f.bits}, Xor: []byte{0}})
	case f.flipped:
		all := []byte{0xff, 0xff, 0xff, 0xff}
		c.add(&expr.Bitwise{SourceRegister: to, DestRegister: to, Len: 4, Mask: all, Xor: all})
	}
}

// need tests for what the field needs, unless that is known.
func (c *compiler) need(f *Field) {
	if f.kind != AnyKind && f.kind != c.kind {
		c.kind = f.kind
		of, word := etherProtocol, Word(f.kind.String())
		if c.family == "inet" {
			of, word = Family, map[Kind]Word{IPv4: "ipv4", IPv6: "ipv6"}[f.kind]
		}
		c.read(of, register)
		c.add(&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: of.bytes(word.number())})
	}
	if f.proto != "" && f.proto != c.proto {
		c.proto = f.proto
		c.read(Protocol, register)
		c.add(&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: Protocol.bytes(f.proto.number())})
	}
}

// and keeps the bits of the mask in the first register.
func (c *compiler) and(mask []byte) {
	c.add(&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))})
}

func operator(not bool) expr.CmpOp {
	if not {
		return expr.CmpOpNeq
	}
	return expr.CmpOpEq
}

func (c *compiler) test(t Test) error {
	if v, ok := t.Value.(Network); ok {
		return c.network(t, netip.Prefix(v))
	}
	c.load(t.Field, register)
	switch v := t.Value.(type) {
	case Range:
		first, last := t.Field.bytes(v.First), t.Field.bytes(v.Last)
		if t.Field.native {
			return fmt.Errorf("%v cannot be compared by size", t.Field)
		}
		if t.Not {
			c.add(&expr.Range{Op: expr.CmpOpNeq, Register: register, FromData: first, ToData: last})
		} else {
			c.add(&expr.Cmp{Op: expr.CmpOpGte, Register: register, Data: first},
				&expr.Cmp{Op: expr.CmpOpLte, Register: register, Data: last})
		}
		return nil
	case AnyOf:
		mask := Number(0)
		for _, w := range v {
			mask |= w.number()
		}
		c.and(t.Field.bytes(mask))
		return c.compare(t.Field, !t.Not, make([]byte, t.Field.size))
	}
	data, err := valueOf(t.Field, t.Value)
	if err != nil {
		return err
	}
	if w, ok := t.Value.(Word); ok && !t.Not {
		c.learn(t.Field, w)
	}
	return c.compare(t.Field, t.Not, data)
}

func (c *compiler) network(t Test, p netip.Prefix) error {
	address, mask := p.Masked().Addr().AsSlice(), maskOf(p)
	if len(address) != int(t.Field.size) {
		return fmt.Errorf("%v has %d bytes and cannot be compared with %v", t.Field, t.Field.size, t.Value)
	}
	c.need(t.Field)
	if t.Field.flipped { // what it is compared with can be inverted as well
		plain := *t.Field
		plain.flipped = false
		t.Field = &plain
		for i := range address {
			address[i] = ^address[i] & mask[i]
		}
	}
	if bytes := p.Bits() / 8; bytes > 0 && p.Bits()%8 == 0 {
		// Whole bytes need no mask, which is less for the kernel to keep and to do, above all if they are 1, 2 or 4
		// (nft_payload.c). nft does so too, and could not show other parts of an address.
		part := *t.Field
		part.size = uint32(bytes)
		c.read(&part, register)
		return c.compare(&part, t.Not, address[:bytes])
	}
	c.read(t.Field, register)
	c.and(mask)
	return c.compare(t.Field, t.Not, address)
}

// learn keeps in mind what a test that held has shown.
func (c *compiler) learn(f *Field, w Word) {
	switch f {
	case EtherType, Family:
		for _, k := range []Kind{IPv4, IPv6, ARP} {
			if w == Word(k.String()) || f == Family && w == map[Kind]Word{IPv4: "ipv4", IPv6: "ipv6"}[k] {
				c.kind = k
			}
		}
	case Protocol, IPProtocol, IP6Next:
		c.proto = w
	}
}

func (c *compiler) masked(m Masked) error {
	c.load(m.Field, register)
	c.and(m.Field.bytes(Number(m.Mask)))
	data, err := valueOf(m.Field, m.Value)
	if err != nil {
		return err
	}
	return c.compare(m.Field, m.Not, data)
}

func (c *compiler) compare(f *Field, not bool, data []byte) error {
	if len(data) != int(f.size) {
		return fmt.Errorf("%v has %d bytes and cannot be compared with %d", f, f.size, len(data))
	}
	c.add(&expr.Cmp{Op: operator(not), Register: register, Data: data})
	return nil
}

func valueOf(f *Field, v Value) ([]byte, error) {
	switch v := v.(type) {
	case Number:
		return f.bytes(v), nil
	case Hex:
		return f.bytes(Number(v)), nil
	case Word:
		if _, ok := words[v]; !ok {
			return nil, fmt.Errorf("%q is unknown", v)
		}
		return f.bytes(v.number()), nil
	case Hardware:
		return v[:], nil
	case Bytes:
		return v, nil
	}
	return nil, fmt.Errorf("%v cannot be compared with a %T", f, v)
}

func nameBytes(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func maskOf(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// key loads what a set is asked for.
func (c *compiler) key(fields []*Field) {
	for _, f := range fields {
		// What a field needs is tested in the first register, so it comes before the first field is there.
		c.need(f)
	}
	to := uint32(register)
	for _, f := range fields {
		c.read(f, to)
		switch {
		case f.size == 16:
			to = afterIPv6
		case to == register:
			to = afterAddress
		case to == afterIPv6:
			to = afterIPv6Port
		default:
			to = afterPort
		}
	}
}

func (w Word) number() Number { return Number(words[w]) }

// bytes returns the number as it stands in a register for the field.
func (f *Field) bytes(n Number) []byte {
	switch {
	case f.bits == 0xf0:
		return []byte{byte(n) << 4}
	case f.size == 1:
		return []byte{byte(n)}
	case f.size == 2 && f.native:
		return binary.NativeEndian.AppendUint16(nil, uint16(n))
	case f.size == 2:
		return binary.BigEndian.AppendUint16(nil, uint16(n))
	case f.native:
		return binaryutil.NativeEndian.PutUint32(uint32(n))
	default:
		return binary.BigEndian.AppendUint32(nil, uint32(n))
	}
}
