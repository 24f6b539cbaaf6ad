package nft

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// Rule is tried from left to right: its tests, and what to do if they all hold.
type Rule []Part

// Part is one of this package's types that are made for rules.
type Part interface{ String() string }

// Test compares a field with a value.
type Test struct {
	Field *Field
	Not   bool
	Value Value
}

// Is and Not are the two kinds of Test.
func Is(f *Field, v Value) Test  { return Test{Field: f, Value: v} }
func Not(f *Field, v Value) Test { return Test{Field: f, Not: true, Value: v} }

// Value of a field, one of the types below that has the field's size.
type Value interface{ String() string }

type (
	// Number is any number.
	Number uint32
	// Hex is a number that prints as hexadecimal digits.
	Hex uint32
	// Word is a number that has a name, see words.
	Word string
	// Network is of an address.
	Network netip.Prefix
	// Hardware is an Ethernet address.
	Hardware [6]byte
	// Bytes are those of a field without a name.
	Bytes []byte
	// AnyOf is that one at least of these bits is set.
	AnyOf []Word
	// Range is from one number to another, with both.
	Range struct{ First, Last Number }
)

func (n Number) String() string { return fmt.Sprint(uint32(n)) }
func (h Hex) String() string    { return fmt.Sprintf("0x%x", uint32(h)) }
func (w Word) String() string   { return string(w) }
func (r Range) String() string  { return fmt.Sprintf("%v-%v", r.First, r.Last) }
func (b Bytes) String() string  { return "0x" + hex.EncodeToString(b) }
func (a AnyOf) String() string  { return join(a, ",") }
func (n Network) String() string {
	if p := netip.Prefix(n); !p.IsSingleIP() {
		return p.String()
	}
	return netip.Prefix(n).Addr().String()
}

func (h Hardware) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", h[0], h[1], h[2], h[3], h[4], h[5])
}

// Single is a network of one address.
func Single(a netip.Addr) Network { return Network(netip.PrefixFrom(a, a.BitLen())) }

func join(list []Word, separator string) string {
	parts := make([]string, len(list))
	for i, w := range list {
		parts[i] = string(w)
	}
	return strings.Join(parts, separator)
}

// words are the numbers behind names: ethertypes, protocols, ICMP types, TCP flags and what conntrack says.
var words = map[Word]uint32{
	"ip": 0x0800, "arp": 0x0806, "ip6": 0x86dd, // of EtherType
	"ipv4": 2, "ipv6": 10, // of Family
	"icmp": 1, "igmp": 2, "tcp": 6, "udp": 17, "ipv6-icmp": 58,
	"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64,
	"dnat":  1 << 5, // IPS_DST_NAT, of CTStatus
	"local": 2,      // RTN_LOCAL, of FibDestination
	"fin":   1, "syn": 2, "rst": 4, "ack": 16,
	"echo-request":        8,
	"nd-neighbor-solicit": 135, "nd-neighbor-advert": 136,
}

// Values that share their name with another one.
const (
	Echo6    = Number(128) // ICMPv6's echo request
	Original = Number(0)   // conntrack's direction of what began
	Replied  = Number(1)   // and of what answers
)

func (t Test) String() string {
	if t.Not {
		return fmt.Sprintf("%v != %v", t.Field, t.Value)
	}
	return fmt.Sprintf("%v %v", t.Field, t.Value)
}

// Masked compares some bits of a field. Words, if given, are what nft calls the bits of Mask.
type Masked struct {
	Field *Field
	Mask  uint32
	Words []Word
	Not   bool
	Value Value
}

func (m Masked) String() string {
	op, mask := "==", fmt.Sprintf("0x%x", m.Mask)
	if m.Not {
		op = "!="
	}
	if m.Words != nil {
		mask = "(" + join(m.Words, " | ") + ")"
	}
	return fmt.Sprintf("%v & %s %s %v", m.Field, mask, op, m.Value)
}

// Above compares a number of the host's byte order.
type Above struct {
	Field *Field
	Value Number
}

func (a Above) String() string { return fmt.Sprintf("%v > %v", a.Field, a.Value) }

// In looks fields up in a set.
type In struct {
	Fields []*Field
	Set    string
	Not    bool
}

func (i In) String() string {
	parts := make([]string, len(i.Fields))
	for n, f := range i.Fields {
		parts[n] = f.String()
	}
	op := ""
	if i.Not {
		op = "!= "
	}
	return strings.Join(parts, " . ") + " " + op + "@" + i.Set
}

// What rules do.
type (
	// Verdict is accept, drop, return, or jump or goto with a chain.
	Verdict struct{ word, chain string }
	// Count is one more in a counter of the table.
	Count struct{ Counter string }
	// Limit holds as long as packets do not come too fast: so many a second, after so many at once.
	Limit struct {
		Rate  uint64
		Burst uint32
	}
	// Log sends packets to an NFLOG group, or as many bytes of them as Snaplen says. The kernel takes a Prefix of up
	// to 127 bytes.
	Log struct {
		Prefix  string
		Group   uint16
		Snaplen uint32
	}
	// SetMark clears the bits of Clear and then sets those of Set in the packet's mark.
	SetMark struct{ Clear, Set uint32 }
	// SetCTMark gives a connection a mark.
	SetCTMark uint32
	// Redirect leads a connection to a port of this host.
	Redirect struct{ Port uint16 }
	// Reject answers with a reset, or else with ICMP "administratively prohibited" of either family.
	Reject struct{ TCP bool }
)

func (v Verdict) String() string {
	if v.chain == "" {
		return v.word
	}
	return v.word + " " + v.chain
}

// Chain returns the chain that a jump or goto leads to, or "".
func (v Verdict) Chain() string { return v.chain }

func (c Count) String() string { return fmt.Sprintf("counter name %q", c.Counter) }
func (l Limit) String() string {
	return fmt.Sprintf("limit rate %d/second burst %d packets", l.Rate, l.Burst)
}
func (l Log) String() string {
	return fmt.Sprintf("log prefix %q group %d snaplen %d", l.Prefix, l.Group, l.Snaplen)
}

func (r Redirect) String() string { return fmt.Sprintf("redirect to :%d", r.Port) }
func (r Reject) String() string {
	if r.TCP {
		return "reject with tcp reset"
	}
	return "reject with icmpx admin-prohibited"
}

func (m SetCTMark) String() string { return fmt.Sprintf("ct mark set 0x%x", uint32(m)) }

func (m SetMark) String() string {
	s := "meta mark set meta mark"
	if clear := m.Clear &^ m.Set; clear != 0 {
		s += fmt.Sprintf(" & 0x%x", ^clear)
	}
	if m.Set != 0 {
		s += fmt.Sprintf(" | 0x%x", m.Set)
	}
	return s
}

var (
	Accept = Verdict{word: "accept"}
	Drop   = Verdict{word: "drop"}
	Return = Verdict{word: "return"}
)

func Jump(chain string) Verdict { return Verdict{"jump", chain} }
func Goto(chain string) Verdict { return Verdict{"goto", chain} }

// fields of a rule's tests.
func (r Rule) fields() (list []*Field) {
	for _, p := range r {
		switch p := p.(type) {
		case Test:
			list = append(list, p.Field)
		case Masked:
			list = append(list, p.Field)
		case In:
			list = append(list, p.Fields...)
		}
	}
	return list
}

// String is the rule as nft reads it, or a comment if nft has no words for it.
func (r Rule) String() string {
	parts := make([]string, len(r))
	for i, p := range r {
		parts[i] = p.String()
	}
	comment := ""
	for _, f := range r.fields() {
		if f.silent {
			comment = "# "
		}
	}
	return comment + strings.Join(parts, " ")
}
