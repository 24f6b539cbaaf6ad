package nft

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// Batch collects changes of tables that the kernel makes in one transaction, see [Conn.Send].
type Batch struct {
	changes []func(*nftables.Conn) error
	bytes   int // about how long it is
	ids     map[ID]map[string]uint32
	lastID  uint32
}

// About how many bytes a message has that is not about elements.
const messageBytes = 512

func (b *Batch) change(f func(*nftables.Conn)) {
	b.changes = append(b.changes, func(c *nftables.Conn) error { f(c); return nil })
	b.bytes += messageBytes
}

func (id ID) kernel() *nftables.Table {
	families := map[string]nftables.TableFamily{"inet": nftables.TableFamilyINet, "netdev": nftables.TableFamilyNetdev,
		"bridge": nftables.TableFamilyBridge, "arp": nftables.TableFamilyARP}
	return &nftables.Table{Name: id.Name, Family: families[id.Family]}
}

// AddTable makes a table, if it is not there.
func (b *Batch) AddTable(id ID) {
	b.change(func(c *nftables.Conn) { c.AddTable(id.kernel()) })
}

// DeleteTable deletes a table with all that is in it, also if there is none.
func (b *Batch) DeleteTable(id ID) {
	b.AddTable(id) // so that deleting it cannot fail
	b.change(func(c *nftables.Conn) { c.DelTable(id.kernel()) })
}

// AddCounters makes counters. Those that are there go on.
func (b *Batch) AddCounters(id ID, names ...string) {
	for _, n := range names {
		b.change(func(c *nftables.Conn) {
			c.AddObj(&nftables.NamedObj{Table: id.kernel(), Name: n, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
		})
	}
}

// AddChains makes chains, without their rules. Those that are there stay. A base chain sees packets at once: until the
// transaction ends, with its rules, they get what the chain's policy says.
func (b *Batch) AddChains(id ID, chains ...Chain) {
	for i := range chains {
		b.change(func(c *nftables.Conn) { c.AddChain(chains[i].kernel(id)) })
	}
}

func (ch *Chain) kernel(id ID) *nftables.Chain {
	k := &nftables.Chain{Table: id.kernel(), Name: ch.Name}
	if h := ch.Hook; h != nil {
		hooks := map[string]*nftables.ChainHook{
			"ingress": nftables.ChainHookIngress, "prerouting": nftables.ChainHookPrerouting, "input": nftables.ChainHookInput,
			"forward": nftables.ChainHookForward, "output": nftables.ChainHookOutput, "postrouting": nftables.ChainHookPostrouting,
		}
		if id.Family == "arp" { // NF_ARP_IN is 0
			hooks["input"] = nftables.ChainHookRef(0)
		}
		policy := nftables.ChainPolicyDrop
		if h.Accept {
			policy = nftables.ChainPolicyAccept
		}
		k.Type, k.Hooknum, k.Device, k.Policy = nftables.ChainType(h.Type), hooks[h.At], h.Device, &policy
		k.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(h.Priority))
	}
	return k
}

// Replace gives chains other rules.
func (b *Batch) Replace(id ID, chains ...Chain) {
	for _, ch := range chains {
		b.flush(id, ch.Name)
	}
	b.AddRules(id, chains...)
}

func (b *Batch) flush(id ID, chain string) {
	b.change(func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Table: id.kernel(), Name: chain}) })
}

// AddRules adds the rules of chains to what they have.
func (b *Batch) AddRules(id ID, chains ...Chain) {
	for i := range chains {
		ch := &chains[i]
		to := &nftables.Chain{Table: id.kernel(), Name: ch.Name}
		for _, r := range ch.Rules {
			b.changes = append(b.changes, func(c *nftables.Conn) error {
				exprs, err := compile(id, ch, r, b.ids[id])
				if err != nil {
					return err
				}
				c.AddRule(&nftables.Rule{Table: to.Table, Chain: to, Exprs: exprs})
				return nil
			})
			b.bytes += messageBytes
		}
	}
}

// Delete takes chains and sets away. Nothing else may refer to them any more.
func (b *Batch) Delete(id ID, o Objects) {
	for _, name := range o.Chains {
		b.flush(id, name)
	}
	for _, name := range o.Chains {
		b.change(func(c *nftables.Conn) { c.DelChain(&nftables.Chain{Table: id.kernel(), Name: name}) })
	}
	for _, name := range o.Sets {
		b.change(func(c *nftables.Conn) { c.DelSet(&nftables.Set{Table: id.kernel(), Name: name}) })
	}
}

// A message's list of elements has a length of 16 bits, which the library does not check: what does not fit is lost
// without an error. So a message takes no more than this.
const elementsBytes = 1 << 15

// AddSets makes sets and fills them. Sets that are there get these elements too.
func (b *Batch) AddSets(id ID, sets ...Set) {
	if b.ids == nil {
		b.ids = make(map[ID]map[string]uint32)
	}
	if b.ids[id] == nil {
		b.ids[id] = make(map[string]uint32)
	}
	for i := range sets {
		// The library's own numbers come from an unsynchronised counter. They mean something within a batch only.
		b.lastID++
		b.ids[id][sets[i].Name] = b.lastID
		k := sets[i].kernel(id)
		k.ID = b.lastID
		b.changes = append(b.changes, func(c *nftables.Conn) error { return c.AddSet(k, nil) })
		b.bytes += messageBytes
		b.elements(k, &sets[i], (*nftables.Conn).SetAddElements)
	}
}

// DeleteElements takes elements out of sets, where they must be.
func (b *Batch) DeleteElements(id ID, s Set) {
	b.elements(s.kernel(id), &s, (*nftables.Conn).SetDeleteElements)
}

func (b *Batch) elements(k *nftables.Set, s *Set, do func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) {
	for part := range slices.Chunk(s.kernelElements(), elementsBytes/elementBytes&^1) {
		b.changes = append(b.changes, func(c *nftables.Conn) error { return do(c, k, part) })
		b.bytes += messageBytes + len(part)*elementBytes
	}
}

func (s *Set) kernel(id ID) *nftables.Set {
	k := &nftables.Set{Table: id.kernel(), Name: s.Name, Interval: s.Interval, KeyByteOrder: binaryutil.BigEndian}
	switch s.Type {
	case Address4, Address4Port:
		k.KeyType = nftables.TypeIPAddr
	case Address6, Address6Port:
		k.KeyType = nftables.TypeIP6Addr
	case InterfaceName:
		k.KeyType, k.KeyByteOrder = nftables.TypeIFName, binaryutil.NativeEndian
	}
	if s.Type.withPort() {
		k.KeyType = nftables.MustConcatSetType(k.KeyType, nftables.TypeInetService)
		k.Concatenation = true
	}
	return k
}

// elementBytes is how long an element is in a message, at most.
const elementBytes = 2*(16+4+12) + 16

// kernelElements returns the elements of a set. A range is two elements without ports, of which the second is the
// first address behind it, and one with ports.
func (s *Set) kernelElements() []nftables.SetElement {
	list := make([]nftables.SetElement, 0, 2*len(s.Elements))
	for _, e := range s.Elements {
		switch {
		case s.Type == InterfaceName:
			list = append(list, nftables.SetElement{Key: nameBytes(e.Name)})
		case s.Type.withPort() && s.Interval:
			list = append(list, nftables.SetElement{Key: e.key(e.First), KeyEnd: e.key(e.Last)})
		case s.Type.withPort():
			list = append(list, nftables.SetElement{Key: e.key(e.First)})
		case s.Interval:
			list = append(list, nftables.SetElement{Key: e.First.AsSlice()})
			if end := e.Last.Next(); end.IsValid() {
				list = append(list, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
			}
		default:
			list = append(list, nftables.SetElement{Key: e.First.AsSlice()})
		}
	}
	return list
}

// key is an address and a port in the form of a concatenation: each field fills up units of 4 bytes.
func (e *Element) key(a netip.Addr) []byte {
	return append(a.AsSlice(), byte(e.Port>>8), byte(e.Port), 0, 0)
}
