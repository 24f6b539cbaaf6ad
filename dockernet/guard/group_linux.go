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
// Sets are named by what they hold, and every port whose rules need the same one has it.
type group struct {
	id     nft.ID
	number int

	ports  map[string]bool // guarded by the host's mu, as is the next
	closed bool            // takes no more ports: who knows what somebody else, or an earlier process, has done to it

	mu   sync.Mutex     // guards sets and what the kernel has of them; taken before any of the host's
	sets map[string]int // how many generations have rules that need them
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
	return &group{id: groupID(number), number: number, ports: make(map[string]bool), sets: make(map[string]int)}
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
	return h.takeOut(g, port, nil, func(c *nft.Conn, b *nft.Batch) error {
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
// need the sets no more.
func (h *Host) takeOut(g *group, port string, sets []string, own func(*nft.Conn, *nft.Batch) error) error {
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
		g.drop(sets)
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

// portOf returns whose a chain is.
func portOf(chain string) string {
	port, _, _ := strings.Cut(chain, "/")
	return port
}

// named gives chains their full names, with those of the sets.
func (p *Port) named(sets map[string]string, chains ...nft.Chain) []nft.Chain {
	list := slices.Clone(chains)
	for i := range list {
		list[i].Name = p.full(list[i].Name)
		list[i].Rules = make([]nft.Rule, len(chains[i].Rules))
		for j, r := range chains[i].Rules {
			rule := slices.Clone(r)
			for k, part := range rule {
				switch part := part.(type) {
				case nft.Verdict:
					switch to := part.Chain(); part {
					case nft.Jump(to):
						rule[k] = nft.Jump(p.full(to))
					case nft.Goto(to):
						rule[k] = nft.Goto(p.full(to))
					}
				case nft.Count:
					rule[k] = nft.Count{Counter: p.full(part.Counter)}
				case nft.In:
					part.Set = sets[part.Set]
					rule[k] = part
				}
			}
			list[i].Rules[j] = rule
		}
	}
	return list
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
	h := sha256.New()
	fmt.Fprintf(h, "%v %v\n", s.Type, s.Interval)
	var b []byte
	for _, e := range s.Elements {
		b = append(append(b[:0], e.First.AsSlice()...), e.Last.AsSlice()...)
		h.Write(binary.BigEndian.AppendUint16(b, e.Port))
	}
	return fmt.Sprintf("set_%x", h.Sum(nil)[:16])
}

// share adds sets to a batch that the table does not have yet, and returns those, and the names of all by those that
// they had. The group must be locked until [group.keep] or a failure.
func (g *group) share(b *nft.Batch, sets []nft.Set) (made []nft.Set, names map[string]string) {
	names = make(map[string]string)
	for _, s := range sets {
		local := s.Name
		s.Name = contentName(&s)
		names[local] = s.Name
		if g.sets[s.Name] == 0 && !slices.ContainsFunc(made, func(m nft.Set) bool { return m.Name == s.Name }) {
			made = append(made, s)
		}
	}
	b.AddSets(g.id, made...)
	return made, names
}

// keep counts sets that a generation's rules need.
func (g *group) keep(names []string) {
	for _, n := range names {
		g.sets[n]++
	}
}

// unneeded returns which of the sets nobody needs any more without some generations, whose sets these are.
func (g *group) unneeded(names []string) (list []string) {
	without := make(map[string]int)
	for _, n := range names {
		if without[n]++; without[n] == g.sets[n] {
			list = append(list, n)
		}
	}
	return list
}

// drop counts them as not needed any more.
func (g *group) drop(names []string) {
	for _, n := range names {
		if g.sets[n]--; g.sets[n] <= 0 {
			delete(g.sets, n)
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
			if port := portOf(c); !g.ports[port] {
				g.ports[port] = true
				h.found[port] = append(h.found[port], g)
			}
		}
	}
}

// errLeft is in the error if rules that are not in force any more are still there.
var errLeft = errors.New("older rules are still there, beside those in force")
