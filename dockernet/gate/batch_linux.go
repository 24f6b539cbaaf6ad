package gate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/dockernet/gate/wire"
)

// batch collects changes of the gate's table.
type batch struct{ wire.Batch }

func (b *batch) counters(names []string) {
	for _, n := range names {
		b.AddCounter(theTable, n)
	}
}

// add makes chains, without their rules. Those that are there stay.
func (b *batch) add(chains []chain) {
	for i := range chains {
		b.AddChain(kernelChain(&chains[i]))
	}
}

// replace gives chains other rules.
func (b *batch) replace(chains []chain) error {
	for i := range chains {
		b.FlushChain(&nftables.Chain{Table: theTable, Name: chains[i].name})
	}
	return b.rules(chains)
}

// rules adds the rules of chains.
func (b *batch) rules(chains []chain) error {
	for _, ch := range chains {
		to := &nftables.Chain{Table: theTable, Name: ch.name}
		for _, r := range ch.rules {
			exprs, err := compile(r)
			if err != nil {
				return err
			}
			b.AddRule(to, exprs)
		}
	}
	return nil
}

func kernelChain(ch *chain) *nftables.Chain {
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
		b.FlushChain(&nftables.Chain{Table: theTable, Name: name})
	}
	for _, name := range n.chains {
		b.DelChain(&nftables.Chain{Table: theTable, Name: name})
	}
	for _, name := range n.sets {
		b.DelSet(theTable, name)
	}
}

// sets makes sets and fills them.
func (b *batch) sets(sets []set) {
	for i := range sets {
		s := &sets[i]
		k := &wire.Set{Table: theTable, Name: s.name, IPv6: s.family == ipv6, WithPort: s.withPort, Interval: s.interval}
		b.AddSet(k)
		elements := make([]wire.Element, len(s.elements))
		for n, e := range s.elements {
			elements[n] = wire.Element{First: e.first, Last: e.last, Port: e.port}
		}
		b.AddElements(k, elements)
	}
}

// verify reads back how many elements the sets have.
func verify(c *wire.Conn, sets []set) error {
	nft, err := c.Read()
	if err != nil {
		return err
	}
	for i := range sets {
		s := &sets[i]
		got, err := nft.GetSetElements(&nftables.Set{Table: theTable, Name: s.name})
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
func existing(c *wire.Conn) (n objects, err error) {
	nft, err := c.Read()
	if err != nil {
		return n, err
	}
	chains, err := nft.ListChainsOfTableFamily(nftables.TableFamilyINet)
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
	sets, err := nft.GetSets(theTable)
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

func readCounters(c *wire.Conn) (map[string]Count, error) {
	nft, err := c.Read()
	if err != nil {
		return nil, err
	}
	list, err := nft.GetNamedObjects(theTable)
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
