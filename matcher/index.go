package matcher

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"sluice/policy"
)

// index is an immutable map from names to ports, made to be small and fast: a name costs its own bytes, 5 to 8 more in
// the arena and 20/namesPerGroup for its slot. A look-up visits far memory once if the name is there and rarely if it is
// not.
//
// It is a hash table of groups with eight slots. A name that finds its group full goes to the next one. The entries of
// a group lie one after the other in the arena. An entry is padding, the name, its length (1 byte) and its ports (4
// bytes, little-endian: its only port, 0 for every port, or firstList + where in lists its ports are).
//
// The tags tell of most names that they are not there. So they lie by themselves and stay near the processor: 1.6 MB
// for a million names.
type index struct {
	hash   func(name []byte) uint64
	tags   []uint64 // a group's each, slot 0 in the lowest byte; see tag
	groups []group
	arena  []byte
	// lists has, for each host with many ports, their number less one and the ports in ascending order (0: every
	// port).
	lists []uint16
	// lengths has bit n set if a name has n bytes.
	lengths [4]uint64
	// hosts is the number of names.
	hosts int
}

// group is eight slots, of which the first ones are taken.
type group struct {
	start uint32       // where in the arena the entries begin
	ends  [slots]uint8 // where the entries end, behind start, in units
}

// passesOn is set in a group's tags if a name that belongs there may be in the next group.
const passesOn = 1 << 63

const (
	slots         = 8
	namesPerGroup = 5   // on average: few look-ups have to go on to the next group
	unit          = 4   // entries are padded to multiples of it
	footerBytes   = 5   // behind a name: length and ports
	maxUnits      = 255 // in a group
	maxEntry      = (maxNameBytes + footerBytes + unit - 1) / unit
	arenaPad      = unit * maxEntry // in front of the entries, so that any name can be compared with any entry
	firstList     = 1 << 16
)

// noTags, noGroups and noArena are those of all indexes without a name.
var (
	noTags   [1]uint64
	noGroups = [1]group{{start: arenaPad}}
	noArena  [arenaPad]byte
)

// newIndex indexes those targets that are names, or all wildcards, by host. hash is hashOf where parents are asked for.
func newIndex(targets []policy.Target, hosts []span, hash func(name []byte) uint64) (index, error) {
	if len(hosts) == 0 {
		return index{hash: hash, tags: noTags[:], groups: noGroups[:], arena: noArena[:]}, nil
	}
	x := index{hash: hash, hosts: len(hosts)}
	units, most := 0, 0
	for _, h := range hosts {
		n := unitsOf(targets[h.first].Host)
		units, most = units+n, max(most, n)
	}
	if units > (math.MaxUint32-arenaPad)/unit {
		return x, fmt.Errorf("%d host names take more than 4 GiB: use wildcards", len(hosts))
	}
	// There are always groups left with room for any of the names, for one that passes on is full or has more than
	// maxUnits-most units.
	x.groups = make([]group, 1+max(len(hosts)/namesPerGroup, len(hosts)/slots+units/(maxUnits+1-most)))
	x.tags = make([]uint64, len(x.groups))
	used := make([]uint8, len(x.groups))
	places := make([]place, len(hosts))
	for i, h := range hosts {
		name, err := indexName(&targets[h.first])
		if err != nil {
			return x, err
		}
		places[i] = x.place(name, used)
	}
	size := arenaPad
	for i := range x.groups {
		g := &x.groups[i]
		g.start = uint32(size)
		size = g.endOf(max(0, int(used[i])-1))
	}
	x.arena = make([]byte, size)
	for i, h := range hosts {
		name := strings.TrimPrefix(targets[h.first].Host, "*.")
		entry := x.arena[:x.groups[places[i].group].endOf(int(places[i].slot))]
		entry = entry[len(entry)-footerBytes-len(name):]
		copy(entry, name)
		entry[len(name)] = byte(len(name))
		binary.LittleEndian.PutUint32(entry[len(name)+1:], x.portsOf(targets[h.first:h.end]))
	}
	return x, nil
}

// indexName returns the name that a target is indexed by, without the "*.".
func indexName(t *policy.Target) (string, error) {
	name, isWildcard := strings.CutPrefix(t.Host, "*.")
	_, ok := scanUsual(bytesOf(name))
	if !ok {
		var upper bool
		upper, ok = new(dots).scan(bytesOf(name), hostNames)
		ok = ok && !upper
	}
	if !ok || isWildcard != (t.Kind == policy.Wildcard) {
		return "", fmt.Errorf("target %q: not a host name or wildcard in normal form", t.Host)
	}
	return name, nil
}

// unitsOf returns the size of the entry for a name.
func unitsOf(name string) int { return (len(name) + footerBytes + unit - 1) / unit }

// place is where a name is.
type place struct {
	group uint32
	slot  uint8
}

// place takes a slot for a name. used says how many each group has taken.
func (x *index) place(name string, used []uint8) place {
	x.lengths[len(name)>>6] |= 1 << (len(name) & 63)
	units := unitsOf(name)
	hash := x.hash(bytesOf(name))
	for at := x.group(hash); ; at = x.after(at) {
		g, n := &x.groups[at], int(used[at])
		last := int(g.ends[max(0, n-1)])
		if n == slots || x.tags[at]&passesOn != 0 || last+units > maxUnits {
			x.tags[at] |= passesOn // also what comes later and would have room
			continue
		}
		x.tags[at] |= uint64(tag(hash)) << (8 * n) &^ passesOn
		g.ends[n] = uint8(last + units)
		used[at]++
		return place{uint32(at), uint8(n)}
	}
}

// portsOf returns what the arena holds for the ports of a host.
func (x *index) portsOf(host []policy.Target) uint32 {
	if len(host) == 1 {
		return uint32(host[0].Port)
	}
	at := len(x.lists)
	x.lists = append(x.lists, 0)
	for i := range host {
		if i == 0 || host[i].Port != host[i-1].Port {
			x.lists = append(x.lists, host[i].Port)
		}
	}
	x.lists[at] = uint16(len(x.lists) - at - 2)
	return firstList + uint32(at)
}

// group returns the number of the group that a hash belongs to, and after that of the next one.
func (x *index) group(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(len(x.groups)))
	return int(hi)
}

func (x *index) after(group int) int {
	if group++; group < len(x.groups) {
		return group
	}
	return 0
}

// find looks up a name with its hash. It returns where its entry ends in the arena, which is 0 if it is not there, and
// the entry's ports. A name in upper case or an invalid one is never there.
func (x *index) find(name []byte, hash uint64) (end int, ports uint32) {
	for at := x.group(hash); ; at = x.after(at) {
		tags := x.tags[at]
		for marked := marked(tags, hash); marked != 0; marked &= marked - 1 {
			end := x.groups[at].end(marked)
			entry, footer := x.arena[:end-footerBytes], x.arena[end-footerBytes:end]
			if int(footer[0]) == len(name) && bytes.HasSuffix(entry, name) {
				return end, binary.LittleEndian.Uint32(footer[1:])
			}
		}
		if tags&passesOn == 0 {
			return 0, 0
		}
	}
}

// tag returns what a slot keeps of a hash, to pass over most other names: seven bits and one that tells that the slot is
// taken, for which there is no room in the last one.
func tag(hash uint64) uint8 { return 0x80 | uint8(hash) }

// marked marks the slots whose tags are the hash's by the highest bit of a byte each. Others may be marked too: one above
// such a slot, and the last one if it is free. What ends where they say is some other entry, or the padding in front of
// all.
func marked(tags, hash uint64) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	differ := (tags | passesOn) ^ ones*uint64(tag(hash))
	return (differ - ones) &^ differ & high
}

// end returns the offset in the arena where the entry in the first marked slot ends. There must be one.
func (g *group) end(marked uint64) int { return g.endOf(bits.TrailingZeros64(marked) / 8) }

// endOf is the same for a slot by its number.
func (g *group) endOf(slot int) int { return int(g.start) + unit*int(g.ends[slot&(slots-1)]) }

// anyPort stands for a port that is not known yet: it matches if any port would.
const anyPort = -1

// covers reports whether one of the ports that find has given covers a port, by itself or being 0 for every port, and
// which of them: the n-th.
func (x *index) covers(ports uint32, port int) (n int, ok bool) {
	switch {
	case ports == 0 || port == anyPort || int(ports) == port:
		return 0, true
	case ports < firstList:
		return 0, false
	}
	list := x.lists[ports-firstList:]
	list = list[1:][:int(list[0])+1]
	if list[0] == 0 {
		return 0, true
	}
	return slices.BinarySearch(list, uint16(port))
}

// targetAt returns name and port of the n-th target of the host whose entry ends at end, or "" if there is none.
func (x *index) targetAt(end, n int) (name string, port uint16) {
	if end < arenaPad || end > len(x.arena) {
		return "", 0
	}
	entry, footer := x.arena[:end-footerBytes], x.arena[end-footerBytes:end]
	name = string(entry[len(entry)-min(int(footer[0]), maxNameBytes):])
	ports := binary.LittleEndian.Uint32(footer[1:])
	if ports < firstList {
		return name, uint16(ports)
	}
	if n += int(ports - firstList + 1); n >= len(x.lists) {
		return "", 0
	}
	return name, x.lists[n]
}
