package nft

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Batch collects changes of tables that the kernel makes in one transaction, see [Conn.Send]. Its zero value is empty.
//
// The library's own way to send is not used: it has the kernel send every rule back and acknowledge every message,
// which takes more than half of the time, loses elements of lists that are too long for a message without an error,
// and numbers sets by an unsynchronised counter.
type Batch struct {
	messages []netlink.Message
	bytes    int
	err      error                    // what is wrong with a rule
	ids      map[ID]map[string]uint32 // of the sets that it makes: a rule in the same batch finds them by that
	lastID   uint32
}

// attributes are netlink attributes as they are sent (linux/netlink.h).
type attributes []byte

func (a attributes) add(kind uint16, data []byte) attributes {
	a = binary.NativeEndian.AppendUint16(a, uint16(unix.SizeofNlAttr+len(data)))
	a = binary.NativeEndian.AppendUint16(a, kind)
	a = append(a, data...)
	return append(a, make([]byte, -len(data)&(unix.NLA_ALIGNTO-1))...)
}

func (a attributes) text(kind uint16, s string) attributes {
	return a.add(kind, append([]byte(s), 0))
}

func (a attributes) number(kind uint16, n uint32) attributes {
	return a.add(kind, binary.BigEndian.AppendUint32(nil, n))
}

func (a attributes) nest(kind uint16, inner attributes) attributes {
	return a.add(unix.NLA_F_NESTED|kind, inner)
}

func (id ID) family() byte {
	return map[string]byte{"inet": unix.NFPROTO_INET, "netdev": unix.NFPROTO_NETDEV, "bridge": unix.NFPROTO_BRIDGE, "arp": unix.NFPROTO_ARP}[id.Family]
}

// add adds a message about a table, whose name is always the first attribute.
func (b *Batch) add(id ID, kind uint16, flags netlink.HeaderFlags, about func(attributes) attributes) {
	const tableName = unix.NFTA_TABLE_NAME // as NFTA_CHAIN_TABLE, NFTA_RULE_TABLE and so on
	data := attributes([]byte{id.family(), unix.NFNETLINK_V0, 0, 0}).text(tableName, id.Name)
	if about != nil {
		data = about(data)
	}
	b.messages = append(b.messages, netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | netlink.HeaderType(kind), Flags: netlink.Request | flags},
		Data:   data,
	})
	b.bytes += unix.SizeofNlMsghdr + len(data)
}

// AddTable makes a table, if it is not there.
func (b *Batch) AddTable(id ID) { b.add(id, unix.NFT_MSG_NEWTABLE, netlink.Create, nil) }

// DeleteTable deletes a table with all that is in it, also if there is none.
func (b *Batch) DeleteTable(id ID) {
	b.AddTable(id) // so that deleting it cannot fail
	b.add(id, unix.NFT_MSG_DELTABLE, 0, nil)
}

// AddCounters makes counters. Those that are there go on.
func (b *Batch) AddCounters(id ID, names ...string) {
	for _, n := range names {
		b.add(id, unix.NFT_MSG_NEWOBJ, netlink.Create, func(a attributes) attributes {
			return a.text(unix.NFTA_OBJ_NAME, n).number(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER).nest(unix.NFTA_OBJ_DATA, nil)
		})
	}
}

// hooks are the numbers of places by family, NF_INET_ in linux/netfilter.h and NF_ARP_ in linux/netfilter_arp.h.
var hooks = map[string]uint32{
	"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4,
	"netdev ingress": 0, "netdev egress": 1, "arp input": 0,
}

// AddChains makes chains, without their rules. Those that are there stay. A base chain sees packets at once: until the
// transaction ends, with its rules, they get what the chain's policy says.
func (b *Batch) AddChains(id ID, chains ...Chain) {
	for i := range chains {
		b.add(id, unix.NFT_MSG_NEWCHAIN, netlink.Create, func(a attributes) attributes {
			a = a.text(unix.NFTA_CHAIN_NAME, chains[i].Name)
			h := chains[i].Hook
			if h == nil {
				return a
			}
			number, ok := hooks[id.Family+" "+h.At]
			if !ok {
				number = hooks[h.At]
			}
			hook := attributes(nil).number(unix.NFTA_HOOK_HOOKNUM, number).number(unix.NFTA_HOOK_PRIORITY, uint32(int32(h.Priority)))
			if h.Device != "" {
				hook = hook.text(unix.NFTA_HOOK_DEV, h.Device)
			}
			policy := nftables.ChainPolicyDrop
			if h.Accept {
				policy = nftables.ChainPolicyAccept
			}
			return a.nest(unix.NFTA_CHAIN_HOOK, hook).number(unix.NFTA_CHAIN_POLICY, uint32(policy)).text(unix.NFTA_CHAIN_TYPE, h.Type)
		})
	}
}

// Replace gives chains other rules.
func (b *Batch) Replace(id ID, chains ...Chain) {
	for _, ch := range chains {
		b.flush(id, ch.Name)
	}
	b.AddRules(id, chains...)
}

func (b *Batch) flush(id ID, chain string) {
	b.add(id, unix.NFT_MSG_DELRULE, 0, func(a attributes) attributes { return a.text(unix.NFTA_RULE_CHAIN, chain) })
}

// AddRules adds the rules of chains to what they have.
func (b *Batch) AddRules(id ID, chains ...Chain) {
	for i := range chains {
		for _, r := range chains[i].Rules {
			list, err := b.rule(id, &chains[i], r)
			if err != nil {
				b.err = err
				return
			}
			b.add(id, unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, func(a attributes) attributes {
				return a.text(unix.NFTA_RULE_CHAIN, chains[i].Name).nest(unix.NFTA_RULE_EXPRESSIONS, list)
			})
		}
	}
}

func (b *Batch) rule(id ID, ch *Chain, r Rule) (list attributes, err error) {
	exprs, err := compile(id, ch, r, b.ids[id])
	if err != nil {
		return nil, err
	}
	for _, e := range exprs {
		data, err := expr.Marshal(id.family(), e)
		if err != nil {
			return nil, err
		}
		list = list.nest(unix.NFTA_LIST_ELEM, data)
	}
	return list, nil
}

// Delete takes chains and sets away. Nothing else may refer to them any more.
func (b *Batch) Delete(id ID, o Objects) {
	for _, name := range o.Chains {
		b.flush(id, name)
	}
	for _, name := range o.Chains {
		b.add(id, unix.NFT_MSG_DELCHAIN, 0, func(a attributes) attributes { return a.text(unix.NFTA_CHAIN_NAME, name) })
	}
	for _, name := range o.Sets {
		b.add(id, unix.NFT_MSG_DELSET, 0, func(a attributes) attributes { return a.text(unix.NFTA_SET_NAME, name) })
	}
}

// keys are what sets hold, as nft(8) knows it (its include/datatype.h; a key of several has six bits for each), and how
// long the parts of a key are.
var keys = map[Type]struct {
	kind  uint32
	parts []uint32
}{
	Address4: {7, []uint32{4}}, Address6: {8, []uint32{16}}, InterfaceName: {41, []uint32{unix.IFNAMSIZ}},
	Address4Port: {7<<6 | 13, []uint32{4, 2}}, Address6Port: {8<<6 | 13, []uint32{16, 2}},
	Address4Ports: {7<<12 | 13<<6 | 13, []uint32{4, 2, 2}}, Address6Ports: {8<<12 | 13<<6 | 13, []uint32{16, 2, 2}},
}

// fieldLength is NFTA_SET_FIELD_LEN of linux/netfilter/nf_tables.h.
const fieldLength = 1

// AddSets makes sets and fills them. Sets of ranges, and of names of interfaces, that are there get these elements too;
// there is no room for more in others.
func (b *Batch) AddSets(id ID, sets ...Set) {
	if b.ids == nil {
		b.ids = make(map[ID]map[string]uint32)
	}
	if b.ids[id] == nil {
		b.ids[id] = make(map[string]uint32)
	}
	for i := range sets {
		s := &sets[i]
		b.lastID++
		b.ids[id][s.Name] = b.lastID
		key, flags, length := keys[s.Type], uint32(0), uint32(0)
		var fields attributes
		for _, n := range key.parts {
			length += (n + 3) &^ 3 // each fills up units of 4 bytes
			fields = fields.nest(unix.NFTA_LIST_ELEM, attributes(nil).number(fieldLength, n))
		}
		if s.Interval {
			flags |= unix.NFT_SET_INTERVAL
		}
		if s.Type.withPort() {
			flags |= nftables.NFT_SET_CONCAT
		}
		b.add(id, unix.NFT_MSG_NEWSET, netlink.Create, func(a attributes) attributes {
			a = a.text(unix.NFTA_SET_NAME, s.Name).number(unix.NFTA_SET_FLAGS, flags).number(unix.NFTA_SET_KEY_TYPE, key.kind).
				number(unix.NFTA_SET_KEY_LEN, length).number(unix.NFTA_SET_ID, b.lastID)
			var about attributes
			if s.Type.withPort() {
				about = about.nest(nftables.NFTA_SET_DESC_CONCAT, fields)
			}
			if s.fixed() {
				about = about.number(unix.NFTA_SET_DESC_SIZE, uint32(len(s.Elements)))
			}
			if about != nil {
				a = a.nest(unix.NFTA_SET_DESC, about)
			}
			return a
		})
		b.elements(id, s, unix.NFT_MSG_NEWSETELEM)
	}
}

// AddElements puts elements into a set that is there. Those that it has stay.
func (b *Batch) AddElements(id ID, s Set) { b.elements(id, &s, unix.NFT_MSG_NEWSETELEM) }

// DeleteElements takes elements out of a set, where they must be.
func (b *Batch) DeleteElements(id ID, s Set) { b.elements(id, &s, unix.NFT_MSG_DELSETELEM) }

// elementsBytes bounds the list of elements in one message, whose length is a number of 16 bits.
const elementsBytes = 1 << 15

func (b *Batch) elements(id ID, s *Set, kind uint16) {
	var list attributes
	send := func() {
		if len(list) > 0 {
			b.add(id, kind, netlink.Create, func(a attributes) attributes {
				a = a.text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
				if set := b.ids[id][s.Name]; set != 0 {
					a = a.number(unix.NFTA_SET_ELEM_LIST_SET_ID, set)
				}
				return a.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)
			})
		}
		list = nil
	}
	for i := range s.Elements {
		if list = s.element(list, &s.Elements[i]); len(list) > elementsBytes {
			send()
		}
	}
	send()
}

// element adds what the kernel takes for an element: one, or for a range without ports two, the second of which is the
// first address behind it, if there is one.
func (s *Set) element(list attributes, e *Element) attributes {
	value := func(kind uint16, data []byte) attributes {
		return attributes(nil).nest(kind, attributes(nil).add(unix.NFTA_DATA_VALUE, data))
	}
	first, last := e.First.AsSlice(), e.Last.AsSlice()
	switch {
	case s.Type == InterfaceName:
		first = nameBytes(e.Name)
	case s.Type.withPort():
		port := []byte{byte(e.Port >> 8), byte(e.Port), 0, 0}
		if s.Type.withSource() {
			port = append(port, byte(e.Source>>8), byte(e.Source), 0, 0)
		}
		first, last = append(first, port...), append(last, port...)
	}
	one := value(unix.NFTA_SET_ELEM_KEY, first)
	if s.Interval && s.Type.withPort() {
		one = append(one, value(nftables.NFTA_SET_ELEM_KEY_END, last)...)
	}
	list = list.nest(unix.NFTA_LIST_ELEM, one)
	if behind := e.Last.Next(); s.Interval && !s.Type.withPort() && behind.IsValid() {
		list = list.nest(unix.NFTA_LIST_ELEM, value(unix.NFTA_SET_ELEM_KEY, behind.AsSlice()).
			number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END))
	}
	return list
}

// whole returns the messages between those that begin and end a batch. The last one of them is acknowledged.
func (b *Batch) whole() []netlink.Message {
	mark := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES),
		}
	}
	all := append([]netlink.Message{mark(unix.NFNL_MSG_BATCH_BEGIN)}, b.messages...)
	all[len(all)-1].Header.Flags |= netlink.Acknowledge
	return append(all, mark(unix.NFNL_MSG_BATCH_END))
}
