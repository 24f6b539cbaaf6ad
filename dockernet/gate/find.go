package gate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// finder is a way to find out whether a packet goes to some of the addresses that a policy or the container's network
// names: one rule can ask it. Few addresses are compared one by one; more of them are in a set.
//
// Sets of ranges take much room in the kernel, whatever they hold: 16 KiB without ports (an array for a thousand), and
// with ports, 25 KiB for IPv4 and 100 for IPv6 (nft_set_rbtree.c, nft_set_pipapo.c). A rule takes half a KiB.
type finder struct {
	family family
	set    string       // of addresses, or of addresses with a port each
	prefix netip.Prefix // without a set
	port   uint16       // beside prefix; 0 is every port
	ports  bool         // of the set
}

// How many rules are made instead of a set of ranges or of single addresses.
const (
	rulesForRanges  = 24
	rulesForSingles = 4
)

// tests returns what a rule asks, for the IPv4 address in an IPv6 one if form is not nil. port is the field of the port,
// which does not matter where every port is meant.
func (fd *finder) tests(form *form, port field) []part {
	var tests []part
	switch {
	case fd.set != "" && form != nil:
		h := hidden{form: form, set: fd.set}
		if fd.ports {
			h.port = &port
		}
		return []part{h}
	case fd.set != "":
		fields := []field{fd.family.destination()}
		if fd.ports {
			fields = append(fields, port)
		}
		return []part{in{fields, fd.set}}
	case form != nil:
		tests = []part{hidden{form: form, prefix: fd.prefix}}
	default:
		tests = []part{is(fd.family.destination(), network(fd.prefix))}
	}
	if fd.port != 0 {
		tests = append(tests, is(port, number(fd.port)))
	}
	return tests
}

// everyPort reports whether the finder does not look at ports.
func (fd *finder) everyPort() bool { return !fd.ports && fd.port == 0 }

// ask makes the rules that ask all finders about packets with a port in one of the fields, or with an address in the
// form, if that is not nil.
func ask(finders []finder, form *form, ports []field, do func(...part) rule) []rule {
	var rules []rule
	for i := range finders {
		fields := ports
		if finders[i].everyPort() {
			fields = ports[:1]
		}
		for _, port := range fields {
			rules = append(rules, do(finders[i].tests(form, port)...))
		}
	}
	return rules
}

var (
	bothPorts = []field{tcpPort, udpPort}
	onlyTCP   = []field{tcpPort}
	onlyUDP   = []field{udpPort}
)

// find makes finders for addresses on every port, which will be asked in so many rules.
func (b *builder) find(f family, name string, s spans, uses int) []finder {
	return b.finders(f, name, map[uint16]spans{0: s}, uses)
}

// finders makes finders for addresses by port, 0 being every port.
func (b *builder) finders(f family, name string, ports map[uint16]spans, uses int) []finder {
	var list []finder
	list = append(list, b.finderOf(f, name, false, map[uint16]spans{0: ports[0]}, uses)...)
	others := maps.Clone(ports)
	delete(others, 0)
	return append(list, b.finderOf(f, name+"_port", true, others, 2*uses)...)
}

func (b *builder) finderOf(f family, name string, withPort bool, ports map[uint16]spans, uses int) []finder {
	var singles, ranges []element
	var prefixes []finder
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		for _, s := range ports[port] {
			if s.single() {
				singles = append(singles, element{s, port})
				continue
			}
			ranges = append(ranges, element{s, port})
			if len(prefixes)*uses <= rulesForRanges { // then there is no need for the others
				for _, p := range s.prefixes() {
					prefixes = append(prefixes, finder{family: f, prefix: p, port: port})
				}
			}
		}
	}
	var list []finder
	if len(prefixes)*uses > rulesForRanges {
		elements, kind := append(ranges, singles...), "net"
		if withPort {
			elements = ranges // sets of ranges with ports are larger and slower than those of single addresses
		} else {
			singles = nil
			slices.SortFunc(elements, func(a, b element) int { return a.first.Compare(b.first) })
		}
		list = append(list, b.set(f, name+"_"+kind, withPort, true, elements))
	} else {
		list = append(list, prefixes...)
	}
	if len(singles)*uses > rulesForSingles {
		return append(list, b.set(f, name, withPort, false, singles))
	}
	for _, e := range singles {
		list = append(list, finder{family: f, prefix: single(e.first), port: e.port})
	}
	return list
}

// set makes a set and returns its finder.
func (b *builder) set(f family, name string, withPort, interval bool, elements []element) finder {
	name = b.name(fmt.Sprintf("%s%d", name, f))
	b.table.sets = append(b.table.sets, set{name: name, family: f, withPort: withPort, interval: interval, elements: elements})
	return finder{family: f, set: name, ports: withPort}
}

// endpoints are addresses of the family by port.
func endpoints(list []netip.AddrPort, f family) map[uint16]spans {
	ports := make(map[uint16]spans)
	for _, a := range list {
		if familyOf(a.Addr()) == f {
			ports[a.Port()] = append(ports[a.Port()], span{a.Addr(), a.Addr()})
		}
	}
	for port, s := range ports {
		ports[port] = each(s)
	}
	return ports
}

// each sorts single addresses and leaves those out that are there twice.
func each(s spans) spans {
	slices.SortFunc(s, func(a, b span) int { return a.first.Compare(b.first) })
	return slices.Compact(s)
}
