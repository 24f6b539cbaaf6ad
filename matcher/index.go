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
// the arena and 20/namesPerGroup for its slot. A look-up visits far memory once if the name is there and rarely
// if it is not.
//
// It is a hash table of groups with eight slots. A name that finds its group full goes to the next one. The entries of
// a group lie one after the other in the arena. An entry is padding, the name, its length (1 byte) and its ports (4
// bytes, little-endian: its only port, 0 for every port, or firstList + where in lists its ports are).
type index struct {
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

// group is eight slots, of which the first ones are taken. Its size counts: all groups should be near the processor.
type group struct {
	start uint32   // where in the arena the entries begin
	tags  [8]uint8 // 0 if the slot is free, else 0x80 and seven bits of the hash, to pass over most other names
	ends  [8]uint8 // where the entries end, behind start, in units
}

const (
	namesPerGroup = 6   // on average
	unit          = 4   // entries are padded to multiples of it
	footerBytes   = 5   // behind a name: length and ports
	maxUnits      = 255 // in a group
	maxEntry      = (maxNameBytes + footerBytes + unit - 1) / unit
	arenaPad      = unit * maxEntry // in front of the entries, so that any name can be compared with any entry
	firstList     = 1 << 16
)

// noGroups and noArena are those of all indexes without a name.
var (
	noGroups [1]group
	noArena  [arenaPad]byte
)

// newIndex indexes those targets that are names, or all wildcards, by host.
func newIndex(targets []policy.Target, hosts []span) (index, error) {
	if len(hosts) == 0 {
		return index{groups: noGroups[:], arena: noArena[:]}, nil
	}
	x := index{hosts: len(hosts)}
	units := 0
	for _, h := range hosts {
		units += unitsOf(targets[h.first].Host)
	}
	if units > (math.MaxUint32-arenaPad)/unit {
		return x, fmt.Errorf("%d host names take more than 4 GiB: use wildcards", len(hosts))
	}
	// There are always groups left with room for any name, for a closed one has more than maxUnits-maxEntry units.
	x.groups = make([]group, 1+max(len(hosts)/namesPerGroup, len(hosts)/8+units/(maxUnits-maxEntry)))
	slots := make([]uint32, len(hosts))
	for i, h := range hosts {
		name, err := indexName(&targets[h.first])
		if err != nil {
			return x, err
		}
		slots[i] = x.place(name)
	}
	size := arenaPad
	for i := range x.groups {
		g := &x.groups[i]
		g.start = uint32(size)
		size = g.end(max(0, g.used()-1))
	}
	x.arena = make([]byte, size)
	for i, h := range hosts {
		name := strings.TrimPrefix(targets[h.first].Host, "*.")
		entry := x.arena[:x.groups[slots[i]/8].end(int(slots[i]%8))]
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

// place takes a slot for a name.
func (x *index) place(name string) uint32 {
	x.lengths[len(name)>>6] |= 1 << (len(name) & 63)
	units := unitsOf(name)
	hash := hashOf(bytesOf(name))
	for at := x.group(hash); ; at = x.after(at) {
		g := &x.groups[at]
		n := g.used()
		if n == 8 {
			continue
		}
		last := int(g.ends[max(0, n-1)])
		if last+units > maxUnits {
			for ; n < 8; n++ { // closed, by slots that repeat the last entry under a tag that is none
				g.tags[n] = 0xff
				g.ends[n] = uint8(last)
			}
			continue
		}
		g.tags[n] = tag(hash)
		g.ends[n] = uint8(last + units)
		return uint32(8*at + n)
	}
}

// used returns how many slots are taken.
func (g *group) used() int { return 8 - bits.LeadingZeros64(g.word())/8 }

// isFull reports whether all slots are taken.
func (g *group) isFull() bool { return g.tags[7] != 0 }

// word returns the tags, that of slot 0 in the lowest byte.
func (g *group) word() uint64 { return binary.LittleEndian.Uint64(g.tags[:]) }

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
		g := &x.groups[at]
		for marked := g.marked(hash); marked != 0; marked &= marked - 1 {
			end := g.end(bits.TrailingZeros64(marked) / 8)
			entry, footer := x.arena[:end-footerBytes], x.arena[end-footerBytes:end]
			if int(footer[0]) == len(name) && bytes.HasSuffix(entry, name) {
				return end, binary.LittleEndian.Uint32(footer[1:])
			}
		}
		if !g.isFull() {
			return 0, 0
		}
	}
}

// tag returns what a slot keeps of a hash.
func tag(hash uint64) uint8 { return 0x80 | uint8(hash) }

// marked marks, by the highest bit, the tags that are the hash's. One above such a tag may be marked too; then its entry
// is that of another name.
func (g *group) marked(hash uint64) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	differ := g.word() ^ ones*uint64(tag(hash))
	return (differ - ones) &^ differ & high
}

// end returns the offset in the arena where the entry in slot i ends.
func (g *group) end(i int) int { return int(g.start) + unit*int(g.ends[i&7]) }

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
