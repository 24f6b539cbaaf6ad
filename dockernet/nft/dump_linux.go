package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dumps is how often a question is asked until nothing changes while it is answered.
const dumps = 100

var errUnrest = fmt.Errorf("something changes nftables all the time: asked %d times in vain, try again", dumps)

// whole asks until the answer is of one moment. The kernel gives lists in parts and finds its place again by counting:
// if others have changed their tables meanwhile, it skips some of ours, and says so (NLM_F_DUMP_INTR).
func whole(ask func() ([]netlink.Message, error)) ([]netlink.Message, error) {
	for range dumps {
		list, err := ask()
		if err != nil {
			return nil, err
		}
		interrupted := false
		for _, m := range list {
			interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
		}
		if !interrupted {
			return list, nil
		}
	}
	return nil, errUnrest
}

// list calls do with the attributes of each object of a kind that the kernel has.
func (c *Conn) list(id ID, kind uint16, about attributes, do func(*netlink.AttributeDecoder)) error {
	if err := c.room(0, 0); err != nil {
		return err
	}
	const headerBytes = 4 // struct nfgenmsg
	answers, err := whole(func() ([]netlink.Message, error) {
		return c.sock.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | netlink.HeaderType(kind), Flags: netlink.Request | netlink.Dump},
			Data:   append([]byte{id.family(), unix.NFNETLINK_V0, 0, 0}, about...),
		})
	})
	if err != nil {
		return err
	}
	for _, m := range answers {
		if len(m.Data) < headerBytes {
			return errors.New("nftables gave an answer that is too short")
		}
		d, err := netlink.NewAttributeDecoder(m.Data[headerBytes:])
		if err != nil {
			return err
		}
		do(d)
		if err := d.Err(); err != nil {
			return err
		}
	}
	return nil
}

// ofTable is list for a table. Without the table there is nothing.
func (c *Conn) ofTable(id ID, kind uint16, about attributes, do func(*netlink.AttributeDecoder)) error {
	const table = unix.NFTA_SET_TABLE // as NFTA_OBJ_TABLE, NFTA_SET_ELEM_LIST_TABLE
	err := c.list(id, kind, append(attributes(nil).text(table, id.Name), about...), do)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// elements calls do with each key of a set, but not with the ends of ranges.
func (c *Conn) elements(id ID, set string, do func(key []byte)) error {
	err := c.ofTable(id, unix.NFT_MSG_GETSETELEM, attributes(nil).text(unix.NFTA_SET_ELEM_LIST_SET, set), func(d *netlink.AttributeDecoder) {
		inside(d, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(d *netlink.AttributeDecoder) {
			inside(d, unix.NFTA_LIST_ELEM, func(d *netlink.AttributeDecoder) {
				var key []byte
				end := false
				for d.Next() {
					switch d.Type() {
					case unix.NFTA_SET_ELEM_KEY:
						d.Nested(func(d *netlink.AttributeDecoder) error {
							for d.Next() {
								key = d.Bytes()
							}
							return nil
						})
					case unix.NFTA_SET_ELEM_FLAGS:
						flags := d.Bytes()
						end = len(flags) == 4 && flags[3]&unix.NFT_SET_ELEM_INTERVAL_END != 0
					}
				}
				if !end {
					do(key)
				}
			})
		})
	})
	if err != nil {
		return fmt.Errorf("read set %s of table %v: %w", set, id, err)
	}
	return nil
}

// inside calls do for each attribute of a kind that has others in it.
func inside(d *netlink.AttributeDecoder, kind uint16, do func(*netlink.AttributeDecoder)) {
	for d.Next() {
		if d.Type() == kind {
			d.Nested(func(d *netlink.AttributeDecoder) error { do(d); return nil })
		}
	}
}

// Sets with fewer elements than this fit into a message by far, so that none can be lost.
const fewElements = 128

// Verify reads back how many elements the sets of a table have, if they have many.
func (c *Conn) Verify(id ID, sets []Set) error {
	for i := range sets {
		s := &sets[i]
		if len(s.Elements) < fewElements {
			continue
		}
		n := 0
		if err := c.elements(id, s.Name, func([]byte) { n++ }); err != nil {
			return err
		}
		if n != len(s.Elements) {
			return fmt.Errorf("set %s of table %v has %d elements of %d: the kernel has lost some", s.Name, id, n, len(s.Elements))
		}
	}
	return nil
}

// Chains returns the names of the chains of a family, by table. The kernel counts those of all tables, and does not
// always say that others have changed theirs (nf_tables_commit takes chains away after the number that tells): so they
// are listed until two answers are the same.
func (c *Conn) Chains(family string) (map[string][]string, error) {
	var last map[string][]string
	for range dumps {
		names, err := c.chains(family)
		if err != nil {
			return nil, fmt.Errorf("list %s chains: %w", family, err)
		}
		if last != nil && maps.EqualFunc(last, names, slices.Equal) {
			return names, nil
		}
		last = names
	}
	return nil, fmt.Errorf("list %s chains: %w", family, errUnrest)
}

func (c *Conn) chains(family string) (map[string][]string, error) {
	names := make(map[string][]string)
	err := c.list(ID{Family: family}, unix.NFT_MSG_GETCHAIN, nil, func(d *netlink.AttributeDecoder) {
		var table, name string
		for d.Next() {
			switch d.Type() {
			case unix.NFTA_CHAIN_TABLE:
				table = d.String()
			case unix.NFTA_CHAIN_NAME:
				name = d.String()
			}
		}
		names[table] = append(names[table], name)
	})
	return names, err
}

// Has reports whether a table is there.
func (c *Conn) Has(id ID) (bool, error) {
	if err := c.room(0, 0); err != nil {
		return false, err
	}
	_, err := c.sock.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE, Flags: netlink.Request},
		Data:   attributes([]byte{id.family(), unix.NFNETLINK_V0, 0, 0}).text(unix.NFTA_TABLE_NAME, id.Name),
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for table %v: %w", id, err)
	}
	return true, nil
}

// Sets returns the names of a table's sets. Without the table there are none.
func (c *Conn) Sets(id ID) (names []string, err error) {
	err = c.ofTable(id, unix.NFT_MSG_GETSET, nil, func(d *netlink.AttributeDecoder) {
		for d.Next() {
			if d.Type() == unix.NFTA_SET_NAME {
				names = append(names, d.String())
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list sets of table %v: %w", id, err)
	}
	return names, nil
}

// Interfaces returns the elements of a set of interface names. Without the table there are none.
func (c *Conn) Interfaces(id ID, set string) (names []string, err error) {
	err = c.elements(id, set, func(key []byte) { names = append(names, unix.ByteSliceToString(key)) })
	return names, err
}

// Counters reads the counters of a table. Without the table there are none.
func (c *Conn) Counters(id ID) (map[string]Counter, error) {
	counters := make(map[string]Counter)
	err := c.ofTable(id, unix.NFT_MSG_GETOBJ, attributes(nil).number(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER), func(d *netlink.AttributeDecoder) {
		d.ByteOrder = binary.BigEndian
		var name string
		var counter Counter
		for d.Next() {
			switch d.Type() {
			case unix.NFTA_OBJ_NAME:
				name = d.String()
			case unix.NFTA_OBJ_DATA:
				d.Nested(func(d *netlink.AttributeDecoder) error {
					for d.Next() {
						switch d.Type() {
						case unix.NFTA_COUNTER_PACKETS:
							counter.Packets = d.Uint64()
						case unix.NFTA_COUNTER_BYTES:
							counter.Bytes = d.Uint64()
						}
					}
					return nil
				})
			}
		}
		counters[name] = counter
	})
	if err != nil {
		return nil, fmt.Errorf("read counters of table %v: %w", id, err)
	}
	return counters, nil
}
