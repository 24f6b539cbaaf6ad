package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Batch collects changes. Its zero value is empty. What is wrong with one of them is the error of [Conn.Send].
type Batch struct {
	messages []netlink.Message
	bytes    int
	err      error
	sets     map[string]uint32 // the number of each set that it makes, by table and name
}

// Len is the number of changes.
func (b *Batch) Len() int { return len(b.messages) }

// attributes is a list of netlink attributes as it is sent.
type attributes []byte

func (a attributes) add(kind uint16, data []byte) attributes {
	a = a.head(kind, len(data))
	return append(append(a, data...), make([]byte, -len(data)&3)...)
}

func (a attributes) head(kind uint16, length int) attributes {
	a = binary.NativeEndian.AppendUint16(a, uint16(unix.SizeofNlAttr+length))
	return binary.NativeEndian.AppendUint16(a, kind)
}

func (a attributes) text(kind uint16, s string) attributes { return a.add(kind, append([]byte(s), 0)) }

func (a attributes) number(kind uint16, n uint32) attributes {
	return binary.BigEndian.AppendUint32(a.head(kind, 4), n)
}

func (a attributes) nest(kind uint16, inner attributes) attributes {
	return a.add(kind|unix.NLA_F_NESTED, inner)
}

// header is struct nfgenmsg.
func header(family byte, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, 0}, resource)
}

func (b *Batch) add(t *nftables.Table, kind uint16, flags netlink.HeaderFlags, a attributes) {
	data := append(header(byte(t.Family), 0), a...)
	b.messages = append(b.messages, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   data,
	})
	b.bytes += unix.SizeofNlMsghdr + len(data)
}

// AddTable makes a table, or leaves the one that is there.
func (b *Batch) AddTable(t *nftables.Table) {
	a := attributes(nil).text(unix.NFTA_TABLE_NAME, t.Name).number(unix.NFTA_TABLE_FLAGS, 0)
	b.add(t, unix.NFT_MSG_NEWTABLE, netlink.Create, a)
}

// DelTable deletes a table with all that is in it.
func (b *Batch) DelTable(t *nftables.Table) {
	b.add(t, unix.NFT_MSG_DELTABLE, 0, attributes(nil).text(unix.NFTA_TABLE_NAME, t.Name))
}

// AddCounter makes a named counter, or leaves the one that is there, with what it has counted.
func (b *Batch) AddCounter(t *nftables.Table, name string) {
	a := attributes(nil).text(unix.NFTA_OBJ_TABLE, t.Name).text(unix.NFTA_OBJ_NAME, name).
		number(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER).nest(unix.NFTA_OBJ_DATA, nil)
	b.add(t, unix.NFT_MSG_NEWOBJ, netlink.Create, a)
}

// AddChain makes a chain, or leaves the one that is there. It is a base chain if it has a hook.
func (b *Batch) AddChain(c *nftables.Chain) {
	a := chainName(c)
	if c.Hooknum != nil && c.Priority != nil {
		h := attributes(nil).number(unix.NFTA_HOOK_HOOKNUM, uint32(*c.Hooknum)).number(unix.NFTA_HOOK_PRIORITY, uint32(*c.Priority))
		if c.Device != "" {
			h = h.text(unix.NFTA_HOOK_DEV, c.Device)
		}
		a = a.nest(unix.NFTA_CHAIN_HOOK, h)
	}
	if c.Policy != nil {
		a = a.number(unix.NFTA_CHAIN_POLICY, uint32(*c.Policy))
	}
	if c.Type != "" {
		a = a.text(unix.NFTA_CHAIN_TYPE, string(c.Type))
	}
	b.add(c.Table, unix.NFT_MSG_NEWCHAIN, netlink.Create, a)
}

func chainName(c *nftables.Chain) attributes {
	return attributes(nil).text(unix.NFTA_CHAIN_TABLE, c.Table.Name).text(unix.NFTA_CHAIN_NAME, c.Name)
}

// DelChain deletes a chain, which must be empty by then and that nothing leads to.
func (b *Batch) DelChain(c *nftables.Chain) { b.add(c.Table, unix.NFT_MSG_DELCHAIN, 0, chainName(c)) }

// FlushChain deletes the rules of a chain.
func (b *Batch) FlushChain(c *nftables.Chain) {
	a := attributes(nil).text(unix.NFTA_RULE_TABLE, c.Table.Name).text(unix.NFTA_RULE_CHAIN, c.Name)
	b.add(c.Table, unix.NFT_MSG_DELRULE, 0, a)
}

// AddRule adds a rule at the end of a chain. Lookups in sets of the same batch find them by their names.
func (b *Batch) AddRule(c *nftables.Chain, exprs []expr.Any) {
	var list attributes
	for _, e := range exprs {
		if l, ok := e.(*expr.Lookup); ok && l.SetID == 0 {
			l.SetID = b.sets[setKey(c.Table, l.SetName)]
		}
		data, err := expr.Marshal(byte(c.Table.Family), e)
		if err != nil && b.err == nil {
			b.err = fmt.Errorf("chain %s: %w", c.Name, err)
		}
		list = list.nest(unix.NFTA_LIST_ELEM, data)
	}
	a := attributes(nil).text(unix.NFTA_RULE_TABLE, c.Table.Name).text(unix.NFTA_RULE_CHAIN, c.Name).
		nest(unix.NFTA_RULE_EXPRESSIONS, list)
	b.add(c.Table, unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, a)
}

func setKey(t *nftables.Table, name string) string {
	return fmt.Sprintf("%d/%s/%s", t.Family, t.Name, name)
}

// Set is a set to be made: the addresses of one IP version, or those with a port each.
type Set struct {
	Table *nftables.Table
	Name  string
	// IPv6 is set for addresses of 16 bytes, or else they have 4.
	IPv6 bool
	// WithPort is set if each address goes with a port.
	WithPort bool
	// Interval is set if there are ranges of addresses. Without ports, they must not touch each other.
	Interval bool
}

// Kinds of data, as nft(8) knows them (its include/datatype.h). A key of two has six bits for each.
const (
	typeIPv4, typeIPv6, typePort = 7, 8, 13
	typeBits                     = 6
	// fieldLength is NFTA_SET_FIELD_LEN of nf_tables.h.
	fieldLength = 1
)

// AddSet makes an empty set.
func (b *Batch) AddSet(s *Set) {
	kind, length := uint32(typeIPv4), uint32(4)
	if s.IPv6 {
		kind, length = typeIPv6, 16
	}
	flags, description := uint32(0), attributes(nil)
	if s.WithPort {
		parts := attributes(nil)
		for _, n := range []uint32{length, 2} {
			parts = parts.nest(unix.NFTA_LIST_ELEM, attributes(nil).number(fieldLength, n))
		}
		description = description.nest(nftables.NFTA_SET_DESC_CONCAT, parts)
		flags |= nftables.NFT_SET_CONCAT
		kind, length = kind<<typeBits|typePort, length+4
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if b.sets == nil {
		b.sets = make(map[string]uint32)
	}
	id := uint32(len(b.sets) + 1)
	b.sets[setKey(s.Table, s.Name)] = id
	a := attributes(nil).text(unix.NFTA_SET_TABLE, s.Table.Name).text(unix.NFTA_SET_NAME, s.Name).
		number(unix.NFTA_SET_FLAGS, flags).number(unix.NFTA_SET_KEY_TYPE, kind).number(unix.NFTA_SET_KEY_LEN, length).
		number(unix.NFTA_SET_ID, id)
	if description != nil {
		a = a.nest(unix.NFTA_SET_DESC, description)
	}
	b.add(s.Table, unix.NFT_MSG_NEWSET, netlink.Create, a)
}

// DelSet deletes a set with its elements. No rule may look into it by then.
func (b *Batch) DelSet(t *nftables.Table, name string) {
	b.add(t, unix.NFT_MSG_DELSET, 0, attributes(nil).text(unix.NFTA_SET_TABLE, t.Name).text(unix.NFTA_SET_NAME, name))
}

// maxElements bounds the list of elements in one message in bytes: its length is a number of 16 bits.
const maxElements = 1<<16 - 1<<8

// AddElements fills a set that the batch makes, in as many messages as it takes.
func (b *Batch) AddElements(s *Set, elements []Element) {
	var list, one attributes
	send := func() {
		if len(list) == 0 {
			return
		}
		a := attributes(nil).text(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name).text(unix.NFTA_SET_ELEM_LIST_SET, s.Name).
			number(unix.NFTA_SET_ELEM_LIST_SET_ID, b.sets[setKey(s.Table, s.Name)]).nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)
		b.add(s.Table, unix.NFT_MSG_NEWSETELEM, netlink.Create, a)
		list = list[:0]
	}
	for i := range elements {
		one = s.element(one[:0], &elements[i])
		if len(list)+len(one) > maxElements {
			send()
		}
		list = append(list, one...)
	}
	send()
}
