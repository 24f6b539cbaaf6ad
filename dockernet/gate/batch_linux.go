package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// batch collects changes that the kernel makes in one transaction, in the namespace of the thread that sends it.
type batch struct {
	changes []func(*nftables.Conn) error
	ids     map[string]uint32 // of the sets that it makes, by name
	bytes   int               // about how long it is
}

func (b *batch) change(bytes int, f func(*nftables.Conn)) {
	b.changes = append(b.changes, func(c *nftables.Conn) error { f(c); return nil })
	b.bytes += bytes
}

// About how many bytes a message has that is not about elements.
const messageBytes = 512

func (b *batch) table() {
	b.change(messageBytes, func(c *nftables.Conn) { c.AddTable(theTable) })
}

func (b *batch) deleteTable() {
	b.change(messageBytes, func(c *nftables.Conn) { c.DelTable(theTable) })
}

func (b *batch) counters(names []string) {
	for _, n := range names {
		b.change(messageBytes, func(c *nftables.Conn) {
			c.AddObj(&nftables.NamedObj{Table: theTable, Name: n, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
		})
	}
}

// add makes chains, without their rules. Those that are there stay.
func (b *batch) add(chains []chain) {
	for _, ch := range chains {
		b.change(messageBytes, func(c *nftables.Conn) { c.AddChain(kernelChain(ch)) })
	}
}

// replace gives chains other rules.
func (b *batch) replace(chains []chain) {
	for _, ch := range chains {
		b.change(messageBytes, func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Table: theTable, Name: ch.name}) })
	}
	b.rules(chains)
}

// rules adds the rules of chains.
func (b *batch) rules(chains []chain) {
	for _, ch := range chains {
		to := &nftables.Chain{Table: theTable, Name: ch.name}
		for _, r := range ch.rules {
			b.bytes += messageBytes
			b.changes = append(b.changes, func(c *nftables.Conn) error {
				exprs, err := compile(r, b.ids)
				if err != nil {
					return err
				}
				c.AddRule(&nftables.Rule{Table: theTable, Chain: to, Exprs: exprs})
				return nil
			})
		}
	}
}

func kernelChain(ch chain) *nftables.Chain {
	k := &nftables.Chain{Table: theTable, Name: ch.name}
	if h := ch.hook; h != nil {
		hooks := map[string]*nftables.ChainHook{
			"input": nftables.ChainHookInput, "output": nftables.ChainHookOutput,
			"forward": nftables.ChainHookForward, "postrouting": nftables.ChainHookPostrouting,
		}
		policy := nftables.ChainPolicyDrop
		if h.accept {
			policy = nftables.ChainPolicyAccept
		}
		k.Type, k.Hooknum, k.Policy = nftables.ChainType(h.kind), hooks[h.at], &policy
		k.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(h.priority))
	}
	return k
}

// delete takes chains and sets away. Nothing else may refer to them any more.
func (b *batch) delete(n objects) {
	for _, name := range n.chains {
		b.change(messageBytes, func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Table: theTable, Name: name}) })
	}
	for _, name := range n.chains {
		b.change(messageBytes, func(c *nftables.Conn) { c.DelChain(&nftables.Chain{Table: theTable, Name: name}) })
	}
	for _, name := range n.sets {
		b.change(messageBytes, func(c *nftables.Conn) { c.DelSet(&nftables.Set{Table: theTable, Name: name}) })
	}
}

// A message's list of elements has a length of 16 bits, which the library does not check: what does not fit is lost
// without an error. So a message takes no more than this.
const elementsBytes = 1 << 15

// sets makes sets and fills them.
func (b *batch) sets(sets []set) error {
	b.ids = make(map[string]uint32)
	for i, s := range sets {
		// The library's own numbers come from an unsynchronised counter. They mean something within a batch only.
		id := uint32(i + 1)
		b.ids[s.name] = id
		k := kernelSet(&s)
		k.ID = id
		b.changes = append(b.changes, func(c *nftables.Conn) error { return c.AddSet(k, nil) })
		b.bytes += messageBytes
		elements, each := kernelElements(&s)
		for part := range slices.Chunk(elements, elementsBytes/each&^1) {
			b.changes = append(b.changes, func(c *nftables.Conn) error { return c.SetAddElements(k, part) })
			b.bytes += messageBytes + len(part)*each
		}
	}
	return nil
}

func kernelSet(s *set) *nftables.Set {
	kind := nftables.TypeIPAddr
	if s.family == ipv6 {
		kind = nftables.TypeIP6Addr
	}
	if s.withPort {
		kind = nftables.MustConcatSetType(kind, nftables.TypeInetService)
	}
	return &nftables.Set{Table: theTable, Name: s.name, KeyType: kind, Concatenation: s.withPort, Interval: s.interval,
		KeyByteOrder: binaryutil.BigEndian}
}

// kernelElements returns the elements of a set and how long one is in a message, at most. A range is two elements
// without ports, of which the second is the first address behind it, and one with ports.
func kernelElements(s *set) (list []nftables.SetElement, bytes int) {
	list = make([]nftables.SetElement, 0, 2*len(s.elements))
	for _, e := range s.elements {
		switch {
		case s.withPort && s.interval:
			list = append(list, nftables.SetElement{Key: e.key(e.first), KeyEnd: e.key(e.last)})
		case s.withPort:
			list = append(list, nftables.SetElement{Key: e.key(e.first)})
		case s.interval:
			list = append(list, nftables.SetElement{Key: e.first.AsSlice()})
			if end := e.last.Next(); end.IsValid() {
				list = append(list, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
			}
		default:
			list = append(list, nftables.SetElement{Key: e.first.AsSlice()})
		}
	}
	return list, 2*(16+4+12) + 16
}

// key is an address and a port in the form of a concatenation: each field fills up units of 4 bytes.
func (e element) key(a netip.Addr) []byte {
	return append(a.AsSlice(), byte(e.port>>8), byte(e.port), 0, 0)
}

// kernel is a connection to the nftables of one namespace.
//
// It stays open between changes: to close a socket of this protocol waits until the kernel has taken apart what earlier
// changes have removed, which takes the grace period of RCU, some 15 ms, and holds up the next change for as long
// (nft_rcv_nl_event in net/netfilter/nf_tables_api.c).
type kernel struct {
	conn   *nftables.Conn
	socket *netlink.Conn // the same
	write  int           // bytes of the socket's buffers
	read   int
}

// Buffers of the socket. The kernel answers every message before the batch is done, so all the answers must fit.
const (
	minBuffer   = 1 << 18
	answerBytes = 1 << 10
)

// timeout bounds how long the kernel may take to answer.
const timeout = 30 * time.Second

// connect opens a connection to the namespace.
func connect(ns *netns.Namespace) (*kernel, error) {
	k := new(kernel)
	err := ns.Do(func() (err error) {
		k.conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
			k.socket = c
			return nil
		}))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return k, nil
}

func (k *kernel) close() { _ = k.conn.CloseLasting() }

// prepare makes the connection ready for an exchange with so many bytes each way.
func (k *kernel) prepare(write, read int) error {
	if write = max(write, minBuffer); write > k.write {
		if err := k.socket.SetWriteBuffer(write); err != nil {
			return fmt.Errorf("enlarge netlink buffer: %w", err)
		}
		k.write = write
	}
	if read = max(read, minBuffer); read > k.read {
		if err := k.socket.SetReadBuffer(read); err != nil {
			return fmt.Errorf("enlarge netlink buffer: %w", err)
		}
		k.read = read
	}
	return k.socket.SetDeadline(time.Now().Add(timeout))
}

// send makes the changes, all or none.
func (k *kernel) send(b *batch) error {
	if len(b.changes) == 0 {
		return nil
	}
	if err := k.prepare(2*b.bytes, answerBytes*len(b.changes)); err != nil {
		return err
	}
	for _, f := range b.changes {
		if err := f(k.conn); err != nil {
			return err
		}
	}
	if err := k.conn.Flush(); err != nil {
		return fmt.Errorf("nftables refused the rules: %w", err)
	}
	return nil
}

// verify reads back how many elements the sets have.
func (k *kernel) verify(sets []set) error {
	if err := k.prepare(0, 0); err != nil {
		return err
	}
	for i := range sets {
		s := &sets[i]
		got, err := k.conn.GetSetElements(&nftables.Set{Table: theTable, Name: s.name})
		if err != nil {
			return fmt.Errorf("read set %s back: %w", s.name, err)
		}
		n := 0
		for _, e := range got {
			if !e.IntervalEnd {
				n++
			}
		}
		if n != len(s.elements) {
			return fmt.Errorf("set %s has %d elements of %d: the kernel has lost some", s.name, n, len(s.elements))
		}
	}
	return nil
}

// existing returns the chains and sets that the table has.
func (k *kernel) existing() (n objects, err error) {
	if err := k.prepare(0, 0); err != nil {
		return n, err
	}
	chains, err := k.conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return n, fmt.Errorf("list chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name == tableName {
			n.chains = append(n.chains, ch.Name)
		}
	}
	if len(n.chains) == 0 {
		return n, nil // and then there may be no table to ask for sets
	}
	sets, err := k.conn.GetSets(theTable)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return n, fmt.Errorf("list sets: %w", err)
	}
	for _, s := range sets {
		n.sets = append(n.sets, s.Name)
	}
	return n, nil
}

// generationOf reads the number at the end of a name.
func generationOf(name string) (generation, bool) {
	i := strings.LastIndexByte(name, '_')
	n, err := strconv.ParseUint(name[i+1:], 10, 32)
	return generation(n), err == nil && i > 0
}

func (n objects) newest() (newest generation) {
	for _, name := range append(slices.Clone(n.chains), n.sets...) {
		if g, ok := generationOf(name); ok {
			newest = max(newest, g)
		}
	}
	return newest
}

// generations returns what belongs to some generation.
func (n objects) generations() (all objects) {
	for _, name := range n.chains {
		if _, ok := generationOf(name); ok {
			all.chains = append(all.chains, name)
		}
	}
	for _, name := range n.sets {
		if _, ok := generationOf(name); ok {
			all.sets = append(all.sets, name)
		}
	}
	return all
}

func (t *table) names() (n objects) {
	for _, c := range t.chains {
		n.chains = append(n.chains, c.name)
	}
	for _, s := range t.sets {
		n.sets = append(n.sets, s.name)
	}
	return n
}

func (k *kernel) counters() (map[string]Count, error) {
	if err := k.prepare(0, 0); err != nil {
		return nil, err
	}
	list, err := k.conn.GetNamedObjects(theTable)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list counters: %w", err)
	}
	counts := make(map[string]Count)
	for _, o := range list {
		named, ok := o.(*nftables.NamedObj)
		if !ok {
			return nil, fmt.Errorf("list counters: unexpected %T", o)
		}
		if counter, ok := named.Obj.(*expr.Counter); ok {
			counts[named.Name] = Count{counter.Packets, counter.Bytes}
		}
	}
	return counts, nil
}
