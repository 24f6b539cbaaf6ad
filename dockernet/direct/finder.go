package direct

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice/dockernet/nft"
)

// finder is a way to find out whether a packet goes to some of the addresses that a policy or the container's network
// names: one rule can ask it. Few addresses are compared one by one; more of them are in a set.
//
// Sets of ranges take much room in the kernel, whatever they hold: 16 KiB without ports (an array for a thousand), and
// with ports, 25 KiB for IPv4 and 100 for IPv6 (nft_set_rbtree.c, nft_set_pipapo.c). A rule takes half a KiB.
type finder struct {
	set    string       // of addresses, or of addresses with a port each
	prefix netip.Prefix // without a set
	port   uint16       // beside prefix; 0 is every port
	ports  bool         // of the set
}

// How many rules are made instead of a set of ranges or of single addresses, in all, and that a packet meets.
const (
	rulesForRanges  = 48
	rangesInTurn    = 16
	rulesForSingles = 4
)

// anyPort reports whether the finder does not look at ports.
func (fd *finder) anyPort() bool { return !fd.ports && fd.port == 0 }

// tests returns what a rule asks about an address and a port, which does not matter where every port is meant.
func (fd *finder) tests(address, port *nft.Field) []nft.Part {
	if fd.set != "" {
		fields := []*nft.Field{address}
		if fd.ports {
			fields = append(fields, port)
		}
		return []nft.Part{nft.In{Fields: fields, Set: fd.set}}
	}
	tests := []nft.Part{nft.Is(address, nft.Network(fd.prefix))}
	if fd.port != 0 {
		tests = append(tests, nft.Is(port, nft.Number(fd.port)))
	}
	return tests
}

// ask makes the rules that ask all finders about an address and a port of packets of a family. The port is that of TCP,
// or AnyPort for all that have one.
func ask(finders []finder, f nft.Kind, address, port *nft.Field, do func(...nft.Part) nft.Rule) []nft.Rule {
	var rules []nft.Rule
	for i := range finders {
		tests := finders[i].tests(address, port)
		if port == nft.AnyPort && !finders[i].anyPort() {
			tests = append(tests, nft.Not(nft.Protocol, echo[f])) // last, for what the kernel knows takes longer than what is in a header
		}
		rules = append(rules, do(tests...))
	}
	return rules
}

// echo is the protocol of echo requests, which have no port.
var echo = map[nft.Kind]nft.Word{nft.IPv4: "icmp", nft.IPv6: "ipv6-icmp"}

// then makes rules that do something if their tests hold.
func then(do ...nft.Part) func(...nft.Part) nft.Rule {
	return func(tests ...nft.Part) nft.Rule { return slices.Concat(tests, do) }
}

// find makes finders for addresses on every port, which will be asked in so many rules.
func (p *Plan) find(f nft.Kind, name string, s spans, uses int) []finder {
	return p.finders(f, name, map[uint16]spans{0: s}, uses)
}

// finders makes finders for addresses by port, 0 being every port.
func (p *Plan) finders(f nft.Kind, name string, ports map[uint16]spans, uses int) []finder {
	list := p.findersOf(f, name, false, map[uint16]spans{0: ports[0]}, uses)
	others := maps.Clone(ports)
	delete(others, 0)
	return append(list, p.findersOf(f, name+"_port", true, others, uses)...)
}

func (p *Plan) findersOf(f nft.Kind, name string, withPort bool, ports map[uint16]spans, uses int) []finder {
	var singles, ranges []nft.Element
	var list []finder
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		for _, s := range ports[port] {
			e := nft.Element{First: s.first, Last: s.last, Port: port}
			if s.single() {
				singles = append(singles, e)
				continue
			}
			ranges = append(ranges, e)
			if few(len(list), uses) { // beyond that there is no need for more
				for _, prefix := range s.prefixes() {
					list = append(list, finder{prefix: prefix, port: port})
				}
			}
		}
	}
	if !few(len(list), uses) {
		elements := ranges
		if !withPort { // sets of ranges with ports are larger and slower than those of single addresses
			elements, singles = append(ranges, singles...), nil
			slices.SortFunc(elements, func(a, b nft.Element) int { return a.First.Compare(b.First) })
		}
		list = []finder{p.set(f, name+"_net", withPort, true, elements)}
	}
	if len(singles)*uses > rulesForSingles {
		return append(list, p.set(f, name, withPort, false, singles))
	}
	for _, e := range singles {
		list = append(list, finder{prefix: netip.PrefixFrom(e.First, e.First.BitLen()), port: e.Port})
	}
	return list
}

func few(ranges, uses int) bool { return ranges <= rangesInTurn && ranges*uses <= rulesForRanges }

// set makes a set and returns its finder.
func (p *Plan) set(f nft.Kind, name string, withPort, interval bool, elements []nft.Element) finder {
	kinds := map[nft.Kind][2]nft.Type{nft.IPv4: {nft.Address4, nft.Address4Port}, nft.IPv6: {nft.Address6, nft.Address6Port}}
	s := nft.Set{Name: p.name(fmt.Sprintf("%s%s", name, version(f))), Type: kinds[f][0], Interval: interval, Elements: elements}
	if withPort {
		s.Type = kinds[f][1]
	}
	p.Sets = append(p.Sets, s)
	return finder{set: s.Name, ports: withPort}
}

func version(f nft.Kind) string { return map[nft.Kind]string{nft.IPv4: "4", nft.IPv6: "6"}[f] }

// endpoints are addresses of the family by port.
func endpoints(list []netip.AddrPort, f nft.Kind) map[uint16]spans {
	ports := make(map[uint16]spans)
	for _, a := range list {
		if kindOf(a.Addr()) == f {
			ports[a.Port()] = append(ports[a.Port()], span{a.Addr(), a.Addr()})
		}
	}
	for port, s := range ports {
		ports[port] = each(s)
	}
	return ports
}

// addresses of the family, each once and in order.
func addresses(list []netip.Addr, f nft.Kind) spans {
	var all spans
	for _, a := range list {
		if kindOf(a) == f {
			all = append(all, span{a, a})
		}
	}
	return each(all)
}

// each sorts single addresses and leaves those out that are there twice.
func each(s spans) spans {
	slices.SortFunc(s, func(a, b span) int { return a.first.Compare(b.first) })
	return slices.Compact(s)
}
