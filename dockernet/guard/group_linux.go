package guard

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sluice/dockernet/nft"
)

// groupSize is how many ports share a table. For every message of a batch the kernel goes through the list of all
// tables (nft_table_lookup), some 70 us beside two thousand, so they should be few. For every change of rules it checks
// all rules of the same table (nft_table_validate), so these should be few too, and what somebody else does to a table
// hits all of its ports.
const groupSize = 16

// tablePrefix is what the names of the ports' tables start with. The rest is a number.
const tablePrefix = hostName + "_"

// group is a table that some ports share. Each has chains and counters of its own, whose names begin with the port's.
// Sets and other chains are named by what they hold, and all ports that need the same one have it.
type group struct {
	id     nft.ID
	number int

	ports  map[string]bool // guarded by the host's mu, as is the next
	closed bool            // takes no more ports: who knows what somebody else, or an earlier process, has done to it

	mu     sync.Mutex     // guards shared and what the kernel has of it; taken before any of the host's
	shared map[string]int // how many generations need a set or a chain
}

func groupID(number int) nft.ID {
	return nft.ID{Family: "netdev", Name: tablePrefix + strconv.Itoa(number)}
}

// groupNumber is that of a table of ports.
func groupNumber(table string) (int, bool) {
	digits, ok := strings.CutPrefix(table, tablePrefix)
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n > 0
}

func newGroup(number int) *group {
	return &group{id: groupID(number), number: number, ports: make(map[string]bool), shared: make(map[string]int)}
}

// join gives a port a place in a table.
func (h *Host) join(port string) *group {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found *group
	for _, g := range h.groups {
		if !g.closed && !g.ports[port] && len(g.ports) < groupSize && (found == nil || g.number < found.number) {
			found = g
		}
	}
	if found == nil {
		h.lastGroup++
		found = newGroup(h.lastGroup)
		h.groups[found.id.Name] = found
	}
	found.ports[port] = true
	return found
}

// close lets a table take no more ports.
func (h *Host) close(g *group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g.closed = true
}

// leave takes a port out of a table, which may hold anything of it. The table itself goes with its last port.
func (h *Host) leave(g *group, port string) error {
	return h.takeOut(g, port, nft.Objects{}, func(c *nft.Conn, b *nft.Batch) error {
		chains, err := c.Chains(g.id.Family)
		if err != nil {
			return err
		}
		var own []string
		for _, name := range chains[g.id.Name] {
			if strings.HasPrefix(name, port+"/") {
				own = append(own, name)
			}
		}
		b.Delete(g.id, nft.Objects{Chains: own})
		return nil
	})
}

// takeOut deletes the table if it is the last port, or else what the function adds to a batch. The port's generations
// need nothing more of what is shared.
func (h *Host) takeOut(g *group, port string, shared nft.Objects, own func(*nft.Conn, *nft.Batch) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	h.mu.Lock()
	last := len(g.ports) == 1 && g.ports[port]
	if last {
		delete(h.groups, g.id.Name) // nobody joins it any more
	}
	h.mu.Unlock()
	err := h.with(func(c *nft.Conn) error {
		b := new(nft.Batch)
		if last {
			b.DeleteTable(g.id)
		} else if err := own(c, b); err != nil {
			return err
		}
		return c.Send(b)
	})
	if err == nil {
		g.drop(shared)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		delete(g.ports, port)
	case last:
		h.groups[g.id.Name] = g
	}
	return err
}

// full is what something of the port is called in the table that it shares.
func (p *Port) full(name string) string { return p.name + "/" + name }

// named gives chains the names that they have in the table, with all that they lead to. names says which, where they
// are shared.
func (p *Port) named(names map[string]string, chains ...nft.Chain) []nft.Chain {
	full := func(name string) string {
		if n, ok := names[name]; ok {
			return n
		}
		return p.full(name)
	}
	list := slices.Clone(chains)
	for i := range list {
		list[i].Name = full(list[i].Name)
		list[i].Rules = make([]nft.Rule, len(chains[i].Rules))
		for j, r := range chains[i].Rules {
			rule := slices.Clone(r)
			for k, part := range rule {
				switch part := part.(type) {
				case nft.Verdict:
					switch to := part.Chain(); part {
					case nft.Jump(to):
						rule[k] = nft.Jump(full(to))
					case nft.Goto(to):
						rule[k] = nft.Goto(full(to))
					}
				case nft.Count:
					if !slices.Contains(tableCounters, part.Counter) {
						rule[k] = nft.Count{Counter: p.full(part.Counter)}
					}
				case nft.In:
					part.Set = full(part.Set)
					rule[k] = part
				}
			}
			list[i].Rules[j] = rule
		}
	}
	return list
}

// content is what a generation needs in a table.
type content struct {
	names  map[string]string // of what is shared, by the names that the rules have for it
	own    []nft.Chain       // with their names in the table, as the next two
	shared []nft.Chain
	sets   []nft.Set
}

// content finds what of the rules is shared.
func (p *Port) content(r *rules) (*content, error) {
	c := &content{names: make(map[string]string)}
	seen := make(map[string]bool)
	for _, s := range r.Needed() {
		local := s.Name
		s.Name = contentName(&s)
		if c.names[local] = s.Name; !seen[s.Name] {
			c.sets = append(c.sets, s)
		}
		seen[s.Name] = true
	}
	// A chain comes after those that it leads to, for their names are a part of what it is.
	done := make(map[string]bool)
	var visit func(name string) error
	visit = func(name string) error {
		i := slices.IndexFunc(r.Chains, func(ch nft.Chain) bool { return ch.Name == name })
		if done[name] || i < 0 || r.own[name] {
			return nil
		}
		done[name] = true
		for _, name := range r.Chains[i].Uses() {
			if err := visit(name); err != nil {
				return err
			}
		}
		ch := p.named(c.names, r.Chains[i])[0]
		compiled, err := nft.Compiled(r.ID, &ch)
		if err != nil {
			return err
		}
		ch.Name = fmt.Sprintf("rules_%x", hash(append(compiled, byte(ch.Kind))))
		if c.names[name] = ch.Name; !seen[ch.Name] {
			c.shared = append(c.shared, ch)
		}
		seen[ch.Name] = true
		return nil
	}
	for i := range r.Chains {
		if err := visit(r.Chains[i].Name); err != nil {
			return nil, err
		}
	}
	for i := range r.Chains {
		if r.own[r.Chains[i].Name] {
			c.own = append(c.own, p.named(c.names, r.Chains[i])...)
		}
	}
	return c, nil
}

// hash is short enough for a name, and too long for two that are equal.
func hash(b []byte) []byte {
	h := sha256.Sum256(b)
	return h[:16]
}

func (p *Port) counters(names ...string) []string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = p.full(n)
	}
	return list
}

// contentName is the same for sets that hold the same.
func contentName(s *nft.Set) string {
	b := fmt.Appendf(nil, "%v %v\n", s.Type, s.Interval)
	for _, e := range s.Elements {
		b = append(append(b, e.First.AsSlice()...), e.Last.AsSlice()...)
		b = binary.BigEndian.AppendUint16(b, e.Port)
	}
	return fmt.Sprintf("set_%x", hash(b))
}

// missing returns what of the shared things the table does not have. The group must be locked until it is made and
// kept.
func (g *group) missing(c *content) (chains []nft.Chain, sets []nft.Set) {
	for _, ch := range c.shared {
		if g.shared[ch.Name] == 0 {
			chains = append(chains, ch)
		}
	}
	for _, s := range c.sets {
		if g.shared[s.Name] == 0 {
			sets = append(sets, s)
		}
	}
	return chains, sets
}

// keep counts what a generation needs.
func (g *group) keep(o nft.Objects) {
	for _, n := range slices.Concat(o.Chains, o.Sets) {
		g.shared[n]++
	}
}

// unneeded returns what nobody needs any more without some generations, which need this.
func (g *group) unneeded(o nft.Objects) (list nft.Objects) {
	without := make(map[string]int)
	last := func(n string) bool {
		without[n]++
		return without[n] == g.shared[n]
	}
	for _, n := range o.Chains {
		if last(n) {
			list.Chains = append(list.Chains, n)
		}
	}
	for _, n := range o.Sets {
		if last(n) {
			list.Sets = append(list.Sets, n)
		}
	}
	return list
}

// drop counts it as not needed any more.
func (g *group) drop(o nft.Objects) {
	for _, n := range slices.Concat(o.Chains, o.Sets) {
		if g.shared[n]--; g.shared[n] <= 0 {
			delete(g.shared, n)
		}
	}
}

// findGroups takes what an earlier process has left in the kernel.
func (h *Host) findGroups(chains map[string][]string) {
	for table, list := range chains {
		number, ok := groupNumber(table)
		if !ok {
			continue
		}
		g := newGroup(number)
		g.closed = true
		h.lastGroup = max(h.lastGroup, number)
		h.groups[table] = g
		for _, c := range list {
			port, _, ok := strings.Cut(c, "/")
			if ok && !g.ports[port] {
				g.ports[port] = true
				h.found[port] = append(h.found[port], g)
			}
		}
	}
}

// errLeft is in the error if rules that are not in force any more are still there.
var errLeft = errors.New("older rules are still there, beside those in force")
