package gate

import (
	"fmt"
	"net/netip"
	"strings"
)

// A ruleset is written down in the types of this file first. They print as nft reads them, and a Gate turns them into
// what the kernel takes.

// table is the content of the gate's table, or a part of it.
type table struct {
	counters []string
	sets     []set
	chains   []chain
}

// set has addresses of one family, each with a port if withPort is set. With interval set, elements are ranges.
type set struct {
	name     string
	family   family
	withPort bool
	interval bool
	elements []element
}

type element struct {
	span
	port uint16
}

// chain has a hook if it is a base chain.
type chain struct {
	name  string
	hook  *hook
	rules []rule
}

type hook struct {
	kind     string // "filter" or "nat"
	at       string // "output", "input", "forward", "postrouting"
	priority int
	accept   bool // what comes to the end
}

// rule is tried from left to right: its tests, and what to do if they all hold.
type rule []part

// part is one of the types below.
type part interface{ String() string }

// field is a piece of a packet or of what the kernel knows about it.
type field uint8

const (
	nfproto field = iota
	l4proto
	oifname
	iifname
	length // of the packet from its IP header on, in bytes
	fibSource
	fibDestination
	ctState
	ctStatus
	ctDirection
	ipSource
	ipDestination
	ipFragment
	ipHeaderLength
	ipProtocol
	ip6Source
	ip6Destination
	ip6Next
	ip6HopLimit
	tcpSource
	tcpPort
	tcpFlags
	tcpOffset
	udpSource
	udpPort
	icmpType
	icmp6Type
)

var fieldNames = [...]string{
	nfproto:        "meta nfproto",
	l4proto:        "meta l4proto",
	oifname:        "oifname",
	iifname:        "iifname",
	length:         "meta length",
	fibSource:      "fib saddr type",
	fibDestination: "fib daddr type",
	ctState:        "ct state",
	ctStatus:       "ct status",
	ctDirection:    "ct direction",
	ipSource:       "ip saddr",
	ipDestination:  "ip daddr",
	ipFragment:     "ip frag-off",
	ipHeaderLength: "ip hdrlength",
	ipProtocol:     "ip protocol",
	ip6Source:      "ip6 saddr",
	ip6Destination: "ip6 daddr",
	ip6Next:        "ip6 nexthdr",
	ip6HopLimit:    "ip6 hoplimit",
	tcpSource:      "tcp sport",
	tcpPort:        "tcp dport",
	tcpFlags:       "tcp flags",
	tcpOffset:      "tcp doff",
	udpSource:      "udp sport",
	udpPort:        "udp dport",
	icmpType:       "icmp type",
	icmp6Type:      "icmpv6 type",
}

func (f field) String() string { return fieldNames[f] }

// source and destination of a packet of the family.
func (f family) destination() field {
	if f == ipv4 {
		return ipDestination
	}
	return ip6Destination
}

func (f family) source() field {
	if f == ipv4 {
		return ipSource
	}
	return ip6Source
}

// test compares a field with a value.
type test struct {
	field field
	not   bool
	value value
}

// value of a field, of the type that the field has.
type value interface{ String() string }

type (
	number  uint32                       // any number
	word    string                       // a number that has a name, see words
	name    string                       // of an interface
	network netip.Prefix                 // of an address
	anyOf   []word                       // of these bits, one at least
	between struct{ first, last number } // both ends inside
)

func (n number) String() string  { return fmt.Sprint(uint32(n)) }
func (w word) String() string    { return string(w) }
func (n name) String() string    { return `"` + string(n) + `"` }
func (b between) String() string { return fmt.Sprintf("%v-%v", b.first, b.last) }
func (n network) String() string {
	if p := netip.Prefix(n); !p.IsSingleIP() {
		return p.String()
	}
	return netip.Prefix(n).Addr().String()
}

func (a anyOf) String() string { return join(a, ",") }

func join(list []word, separator string) string {
	parts := make([]string, len(list))
	for i, w := range list {
		parts[i] = string(w)
	}
	return strings.Join(parts, separator)
}

// words are the numbers behind names: of protocols, ICMP types, kinds of addresses (RTN_ in rtnetlink(7)) and what
// conntrack says.
var words = map[string]uint32{
	"ipv4": 2, "ipv6": 10,
	"icmp": 1, "igmp": 2, "tcp": 6, "udp": 17, "ipv6-icmp": 58,
	"local":    2,
	"original": 0, "reply": 1,
	"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64,
	"dnat": 1 << 5, // IPS_DST_NAT
	"fin":  1, "syn": 2, "rst": 4,
	"echo-request": 8,
}

// Types of ICMPv6 (RFC 4443 §4.1, RFC 2710 §3, RFC 3810 §5.2, RFC 4861 §4). nft's names for them have hyphens, which it
// takes for ranges, and the echo request has the name that ICMP's has.
const (
	echo6             number = 128
	membershipQuery   number = 130
	membershipReport2 number = 143
	routerSearch      number = 133
	neighbourSearch   number = 135
	neighbourAnswer   number = 136
)

func (t test) String() string {
	if t.not {
		return fmt.Sprintf("%v != %v", t.field, t.value)
	}
	return fmt.Sprintf("%v %v", t.field, t.value)
}

// masked compares some bits of a field. words, if given, are what nft calls the bits of mask.
type masked struct {
	field field
	mask  uint32
	words []word
	not   bool
	value value
}

func (m masked) String() string {
	op, mask := "==", fmt.Sprint(m.mask)
	if m.not {
		op = "!="
	}
	if m.words != nil {
		mask = "(" + join(m.words, " | ") + ")"
	}
	return fmt.Sprintf("%v & %s %s %v", m.field, mask, op, m.value)
}

// above compares a number of the host's byte order.
type above struct {
	field field
	value number
}

func (a above) String() string { return fmt.Sprintf("%v > %v", a.field, a.value) }

// in looks fields up in a set.
type in struct {
	fields []field
	set    string
}

func (i in) String() string {
	parts := make([]string, len(i.fields))
	for n, f := range i.fields {
		parts[n] = f.String()
	}
	return strings.Join(parts, " . ") + " @" + i.set
}

// hidden compares the IPv4 address that an IPv6 one hides with a prefix, or looks it up in a set, with a port if port
// is not nil. nft has no words for it.
type hidden struct {
	form   *form
	prefix netip.Prefix
	port   *field
	set    string
}

func (h hidden) String() string {
	key := fmt.Sprintf("%s in ip6 daddr", h.form.name)
	if h.set == "" {
		return key + " " + network(h.prefix).String()
	}
	if h.port != nil {
		key += " . " + h.port.String()
	}
	return key + " @" + h.set
}

// isISATAP holds for addresses of the last of the forms.
type isISATAP struct{}

func (isISATAP) String() string {
	f := &forms[len(forms)-1]
	return fmt.Sprintf("ip6 daddr & %v == %v", netip.AddrFrom16(f.mask), netip.AddrFrom16(f.value))
}

// shortLocalNAT64 holds for the addresses that are [unreadable].
type shortLocalNAT64 struct{}

func (shortLocalNAT64) String() string {
	return "ip6 daddr " + unreadable.String() + " but no /96 of it"
}

// What rules do.
type (
	verdict struct {
		word  string // accept, drop, return, jump, goto
		chain string
	}
	count struct{ counter string }
	// log sends packets to an NFLOG group.
	log struct {
		prefix string
		group  uint16
	}
	redirect struct{ port uint16 }
	reject   struct{ tcp bool } // by a reset, or else by ICMP "administratively prohibited" of either family
)

// Limits of what is logged of each phase, and how much of a packet: the headers and what a reader could recognise.
const (
	logRate, logBurst = 20, 100 // packets, a second and at once
	logBytes          = 160
)

func (v verdict) String() string {
	if v.chain == "" {
		return v.word
	}
	return v.word + " " + v.chain
}
func (c count) String() string { return fmt.Sprintf("counter name %q", c.counter) }
func (l log) String() string {
	return fmt.Sprintf("limit rate %d/second burst %d packets log prefix %q group %d snaplen %d",
		logRate, logBurst, l.prefix, l.group, logBytes)
}
func (r redirect) String() string { return fmt.Sprintf("redirect to :%d", r.port) }
func (r reject) String() string {
	if r.tcp {
		return "reject with tcp reset"
	}
	return "reject with icmpx admin-prohibited"
}

var (
	accept = verdict{word: "accept"}
	drop   = verdict{word: "drop"}
	back   = verdict{word: "return"}
)

func jump(chain string) verdict { return verdict{"jump", chain} }
func to(chain string) verdict   { return verdict{"goto", chain} }

func is(f field, v value) test  { return test{field: f, value: v} }
func not(f field, v value) test { return test{field: f, not: true, value: v} }

func (r rule) String() string {
	parts := make([]string, len(r))
	comment := ""
	for i, p := range r {
		parts[i] = p.String()
		switch p.(type) {
		case hidden, shortLocalNAT64:
			comment = "# " // nft cannot say this
		}
	}
	return comment + strings.Join(parts, " ")
}

func (e element) text(withPort bool) string {
	if withPort {
		return fmt.Sprintf("%v . %d", e.span, e.port)
	}
	return e.span.String()
}

func (s *set) write(w *strings.Builder) {
	kind, flags := "ipv4_addr", ""
	if s.family == ipv6 {
		kind = "ipv6_addr"
	}
	if s.withPort {
		kind += " . inet_service"
	}
	if s.interval {
		flags = "\t\tflags interval\n"
	}
	fmt.Fprintf(w, "\tset %s {\n\t\ttype %s\n%s", s.name, kind, flags)
	if len(s.elements) > 0 {
		w.WriteString("\t\telements = {")
		for i, e := range s.elements {
			if i > 0 {
				w.WriteByte(',')
			}
			w.WriteString(" " + e.text(s.withPort))
		}
		w.WriteString(" }\n")
	}
	w.WriteString("\t}\n")
}

func (c *chain) write(w *strings.Builder) {
	fmt.Fprintf(w, "\tchain %s {\n", c.name)
	if h := c.hook; h != nil {
		policy := "drop"
		if h.accept {
			policy = "accept"
		}
		fmt.Fprintf(w, "\t\ttype %s hook %s priority %d; policy %s;\n", h.kind, h.at, h.priority, policy)
	}
	for _, r := range c.rules {
		fmt.Fprintf(w, "\t\t%v\n", r)
	}
	w.WriteString("\t}\n")
}

// String is the table as nft reads it, but for comments, which stand for rules that nft has no words for.
func (t *table) String() string {
	w := new(strings.Builder)
	fmt.Fprintf(w, "table inet %s {\n", tableName)
	for _, c := range t.counters {
		fmt.Fprintf(w, "\tcounter %s {\n\t}\n", c)
	}
	for i := range t.sets {
		t.sets[i].write(w)
	}
	for i := range t.chains {
		t.chains[i].write(w)
	}
	w.WriteString("}\n")
	return w.String()
}

// tableName is that of the gate's table, of family inet.
const tableName = "sluice"
