package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Table is the content of a table, or a part of it.
type Table struct {
	ID
	Counters []string
	Sets     []Set
	Chains   []Chain
}

// ID names a table. Family is inet, netdev, bridge or arp.
type ID struct{ Family, Name string }

func (id ID) String() string { return id.Family + " " + id.Name }

// Set has elements of one type. With Interval set they are ranges.
type Set struct {
	Name     string
	Type     Type
	Interval bool
	Elements []Element
}

// Type is that of a set's elements.
type Type uint8

const (
	Address4 Type = iota + 1
	Address6
	Address4Port
	Address6Port
	InterfaceName
	// Those of addresses with the port of a destination and that of a source.
	Address4Ports
	Address6Ports
)

func (t Type) String() string {
	return [...]string{Address4: "ipv4_addr", Address6: "ipv6_addr", Address4Port: "ipv4_addr . inet_service",
		Address6Port: "ipv6_addr . inet_service", InterfaceName: "ifname",
		Address4Ports: "ipv4_addr . inet_service . inet_service", Address6Ports: "ipv6_addr . inet_service . inet_service"}[t]
}

func (t Type) withPort() bool { return t == Address4Port || t == Address6Port || t.withSource() }

func (t Type) withSource() bool { return t == Address4Ports || t == Address6Ports }

// Element is a range of addresses with both ends, with a port where the set has ports and another one where it has ports
// of sources, or the name of an interface.
type Element struct {
	First, Last  netip.Addr
	Port, Source uint16
	Name         string
}

// Chain is a base chain if it has a Hook.
type Chain struct {
	Name  string
	Hook  *Hook
	Rules []Rule
	// Kind and Protocol are what all packets are that come here, if set. Rules do not test it again. Where Kind is IPv6 in a
	// table of family netdev, the second header is taken to follow the first one: rules have to refuse extension headers.
	Kind     Kind
	Protocol Word
}

// Hook is where packets enter a chain. Device is for tables of family netdev. What comes to the end of the chain is
// accepted if Accept is set, and dropped otherwise.
type Hook struct {
	Type, At, Device string
	Priority         int
	Accept           bool
}

func (h *Hook) String() string {
	device, policy := "", "drop"
	if h.Device != "" {
		device = fmt.Sprintf(" device %q", h.Device)
	}
	if h.Accept {
		policy = "accept"
	}
	return fmt.Sprintf("type %s hook %s%s priority %d; policy %s;", h.Type, h.At, device, h.Priority, policy)
}

// String is the table as nft reads it, but for comments, which stand for rules that nft has no words for.
func (t *Table) String() string {
	w := new(strings.Builder)
	fmt.Fprintf(w, "table %v {\n", t.ID)
	for _, c := range t.Counters {
		fmt.Fprintf(w, "\tcounter %s {\n\t}\n", c)
	}
	for i := range t.Sets {
		t.Sets[i].write(w)
	}
	for i := range t.Chains {
		t.Chains[i].write(w)
	}
	w.WriteString("}\n")
	return w.String()
}

// fixed reports whether the kernel is told how many elements the set has. Then it makes a hash table that does not grow
// (nft_set_hash.c): it takes less room, and can be read back. While a table grows, a dump of it, which goes on by the
// number of elements that it has sent, leaves some out and has others twice.
func (s *Set) fixed() bool { return !s.Interval && s.Type != InterfaceName && len(s.Elements) > 0 }

func (s *Set) write(w *strings.Builder) {
	fmt.Fprintf(w, "\tset %s {\n\t\ttype %v\n", s.Name, s.Type)
	if s.Interval {
		w.WriteString("\t\tflags interval\n")
	}
	if s.fixed() {
		fmt.Fprintf(w, "\t\tsize %d\n", len(s.Elements))
	}
	if len(s.Elements) > 0 {
		w.WriteString("\t\telements = {")
		for i, e := range s.Elements {
			if i > 0 {
				w.WriteByte(',')
			}
			w.WriteString(" " + e.text(s.Type))
		}
		w.WriteString(" }\n")
	}
	w.WriteString("\t}\n")
}

func (e *Element) text(t Type) string {
	if t == InterfaceName {
		return fmt.Sprintf("%q", e.Name)
	}
	if t.withSource() {
		return fmt.Sprintf("%s . %d . %d", e.addresses(), e.Port, e.Source)
	}
	if t.withPort() {
		return fmt.Sprintf("%s . %d", e.addresses(), e.Port)
	}
	return e.addresses()
}

// addresses writes the range as nft does: an address, a prefix or a range.
func (e *Element) addresses() string {
	if e.First == e.Last {
		return e.First.String()
	}
	for bits := range e.First.BitLen() {
		if p := netip.PrefixFrom(e.First, bits); p.Masked() == p && LastOf(p) == e.Last {
			return p.String()
		}
	}
	return e.First.String() + "-" + e.Last.String()
}

// LastOf returns the last address of a network.
func LastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

func (c *Chain) write(w *strings.Builder) {
	fmt.Fprintf(w, "\tchain %s {\n", c.Name)
	if c.Hook != nil {
		fmt.Fprintf(w, "\t\t%v\n", c.Hook)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(w, "\t\t%v\n", r)
	}
	w.WriteString("\t}\n")
}

// Reachable returns what packets can meet: chains from the base chains on, each before those that lead to it, with the
// sets and counters that their rules have.
func (t *Table) Reachable() *Table {
	r := &Table{ID: t.ID}
	seen := make(map[string]bool)
	var visit func(name string)
	visit = func(name string) {
		i := slices.IndexFunc(t.Chains, func(c Chain) bool { return c.Name == name })
		if seen[name] || i < 0 {
			return
		}
		seen[name] = true
		for _, rule := range t.Chains[i].Rules {
			for _, p := range rule {
				switch p := p.(type) {
				case Verdict:
					visit(p.chain)
				case Count:
					seen[p.Counter] = true
				case In:
					seen[p.Set] = true
				}
			}
		}
		r.Chains = append(r.Chains, t.Chains[i])
	}
	for i := range t.Chains {
		if t.Chains[i].Hook != nil {
			visit(t.Chains[i].Name)
		}
	}
	for _, c := range t.Counters {
		if seen[c] {
			r.Counters = append(r.Counters, c)
		}
	}
	for _, s := range t.Sets {
		if seen[s.Name] {
			r.Sets = append(r.Sets, s)
		}
	}
	return r
}

// Put gives a chain other rules, or adds it.
func (t *Table) Put(c Chain) {
	if i := slices.IndexFunc(t.Chains, func(old Chain) bool { return old.Name == c.Name }); i >= 0 {
		t.Chains[i] = c
	} else {
		t.Chains = append(t.Chains, c)
	}
}

// Objects are the names of chains and sets that a table has.
type Objects struct{ Chains, Sets []string }

// Objects returns those of the table.
func (t *Table) Objects() (o Objects) {
	for _, c := range t.Chains {
		o.Chains = append(o.Chains, c.Name)
	}
	for _, s := range t.Sets {
		o.Sets = append(o.Sets, s.Name)
	}
	return o
}

// Counter is what a counter has seen.
type Counter struct{ Packets, Bytes uint64 }
