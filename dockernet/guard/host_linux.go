package guard

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/nft"
)

// Host keeps the guards of all containers of one host. Its methods may be called by any number of goroutines.
//
// The rules stay when the process ends. Only one Host may look after a network namespace at a time.
type Host struct {
	config
	in    func(func() error) error
	links *netlink.Handle

	mu sync.Mutex // guards all below, and is held for moments only
	// free are connections that nobody uses at the moment; own are the port ids of all that are open.
	free []*nft.Conn
	own  map[uint32]bool
	// found are tables that were there before, by port.
	found map[string][]*group
	ports map[string]*Port
	// groups are all tables of ports, by name, and lastGroup is the highest of their numbers ever.
	groups    map[string]*group
	lastGroup int

	sets sync.Mutex // guards all below, and what the kernel has of it
	// names are what the host's sets hold.
	names map[nameSet]map[string]bool
	// indexes are those of the bridges that are looked after, as far as they are there.
	indexes map[int]string
}

var errBridge = errors.New("look after its bridge first")

// Open puts the rules for the whole host in force, and finds what an earlier process has left: its bridges are looked
// after, and the rules of its ports stay in force until [Port.Install] or [Port.Remove]. These must have the same mark.
func Open(c Config) (*Host, error) {
	h := &Host{config: config{c.Mark, c.LogGroup}, in: c.In, own: make(map[uint32]bool), found: make(map[string][]*group), groups: make(map[string]*group),
		ports: make(map[string]*Port), names: make(map[nameSet]map[string]bool), indexes: make(map[int]string)}
	for _, s := range allSets {
		h.names[s] = make(map[string]bool)
	}
	if h.mark == 0 {
		h.mark = DefaultMark
	}
	if h.in == nil {
		h.in = func(f func() error) error { return f() }
	}
	if err := h.mark.check(); err != nil {
		return nil, fmt.Errorf("open guard: %w", err)
	}
	err := h.in(func() (err error) {
		h.links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open guard: open netlink: %w", err)
	}
	if err := h.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open guard: %w", err), h.Close())
	}
	return h, nil
}

func (h *Host) open() error {
	return h.with(func(c *nft.Conn) error {
		chains, err := c.Chains("netdev")
		if err != nil {
			return err
		}
		h.findGroups(chains)
		if err := h.sameMark(c); err != nil {
			return err
		}
		for _, s := range allSets {
			names, err := c.Interfaces(s.table, s.name)
			if err != nil {
				return err
			}
			for _, n := range names {
				h.names[s][n] = true
			}
		}
		b := h.hostBatch()
		for name, g := range h.groups {
			if len(g.ports) == 0 {
				b.DeleteTable(g.id)
				delete(h.groups, name)
			}
		}
		return c.Send(b)
	})
}

// sameMark refuses to look after ports that set another mark than is asked for.
func (h *Host) sameMark(c *nft.Conn) error {
	chains, err := c.Chains(inetTable.Family)
	if err != nil {
		return err
	}
	for _, name := range chains[inetTable.Name] {
		if strings.HasPrefix(name, markChainPrefix) && name != h.mark.chain() && len(h.found) > 0 {
			return fmt.Errorf("containers have rules with the mark 0x%s and this process is to use 0x%s: start it with the former, or remove the rules first",
				strings.TrimPrefix(name, markChainPrefix), strings.TrimPrefix(h.mark.chain(), markChainPrefix))
		}
	}
	return nil
}

// hostBatch brings the host's tables into their form. Their sets keep what they have.
func (h *Host) hostBatch() *nft.Batch {
	b := new(nft.Batch)
	for _, t := range h.hostTables() {
		b.AddTable(t.ID)
		b.AddCounters(t.ID, t.Counters...)
		b.AddSets(t.ID, t.Sets...)
		b.AddChains(t.ID, t.Chains...)
		b.Replace(t.ID, t.Chains...)
	}
	return b
}

// Close lets go of the host. All rules stay.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.links.Close()
	var err error
	for _, c := range h.free {
		delete(h.own, c.PortID())
		err = errors.Join(err, c.Close())
	}
	h.free = nil
	return err
}

// Clear removes all rules, those of ports too. Nothing is refused any more. Ports have to be asked for again.
func (h *Host) Clear() error {
	h.mu.Lock()
	ports := slices.Collect(maps.Values(h.ports))
	clear(h.ports)
	clear(h.found)
	clear(h.groups)
	h.mu.Unlock()
	for _, p := range ports {
		p.mu.Lock()
		p.portState, p.at, p.former, p.removed = portState{}, nil, nil, true
		p.mu.Unlock()
	}
	h.sets.Lock()
	defer h.sets.Unlock()
	var errs error
	for name := range h.names[allBridges] {
		errs = errors.Join(errs, h.letGo(name))
	}
	err := h.with(func(c *nft.Conn) error {
		chains, err := c.Chains("netdev")
		if err != nil {
			return err
		}
		b := new(nft.Batch)
		for table := range chains {
			if number, ok := groupNumber(table); ok {
				b.DeleteTable(groupID(number))
			}
		}
		for _, t := range h.hostTables() {
			b.DeleteTable(t.ID)
		}
		return c.Send(b)
	})
	if err = errors.Join(errs, err); err != nil {
		return fmt.Errorf("clear guard: %w", err)
	}
	for _, names := range h.names {
		clear(names)
	}
	clear(h.indexes)
	return nil
}

// Found returns the ports that have rules of an earlier process, until [Port.Install] or [Port.Remove] is called for
// them. Where the port is gone the rules do nothing, but they stay until they are removed.
func (h *Host) Found() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.found))
}

// with runs f with a connection that nobody else uses.
func (h *Host) with(f func(*nft.Conn) error) error {
	c, err := h.take()
	if err != nil {
		return err
	}
	err = f(c)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		delete(h.own, c.PortID()) // somebody else may get it
		return errors.Join(err, c.Close())
	}
	h.free = append(h.free, c)
	return nil
}

func (h *Host) take() (c *nft.Conn, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.free); n > 0 {
		c, h.free = h.free[n-1], h.free[:n-1]
		return c, nil
	}
	err = h.in(func() (err error) {
		c, err = nft.Dial()
		return err
	})
	if err == nil {
		h.own[c.PortID()] = true
	}
	return c, err
}

// Counters reads the counters for the whole host.
func (h *Host) Counters() (c Counters, err error) {
	err = h.with(func(conn *nft.Conn) error {
		h.mu.Lock()
		ids := []nft.ID{inetTable, bridgeTable, arpTable}
		for _, g := range h.groups {
			ids = append(ids, g.id)
		}
		h.mu.Unlock()
		for _, id := range ids {
			got, err := conn.Counters(id)
			if err != nil {
				return err
			}
			add(&c.Refused, got[refusedCount])
			add(&c.Replies, got[repliesCount])
			add(&c.NotReply, got[notReplyCount])
			add(&c.NotOpen, got[notOpenCount])
			add(&c.Unmarked, got[unmarkedCount])
			add(&c.Unjudged, got[unjudgedCount])
		}
		return nil
	})
	return c, err
}

func add(to *nft.Counter, c nft.Counter) {
	to.Packets += c.Packets
	to.Bytes += c.Bytes
}

// change puts a name into a set, or takes it out.
type change struct {
	set  nameSet
	name string
	want bool
}

// change makes those changes that are needed, all or none.
func (h *Host) change(changes ...change) error {
	b := new(nft.Batch)
	return h.changeWith(b, func() error {
		return h.with(func(conn *nft.Conn) error { return conn.Send(b) })
	}, changes...)
}

// changeWith adds them to a batch, which send sends.
func (h *Host) changeWith(b *nft.Batch, send func() error, changes ...change) error {
	for _, c := range changes {
		if c.name == "" || len(c.name) >= unix.IFNAMSIZ {
			return fmt.Errorf("%q is no name of an interface", c.name)
		}
		set := nft.Set{Name: c.set.name, Type: nft.InterfaceName, Elements: elementsOf(c.name)}
		switch {
		case c.want == h.names[c.set][c.name]:
		case c.want:
			b.AddSets(c.set.table, set)
		default:
			b.DeleteElements(c.set.table, set)
		}
	}
	if err := send(); err != nil {
		return err
	}
	for _, c := range changes {
		if c.want {
			h.names[c.set][c.name] = true
		} else {
			delete(h.names[c.set], c.name)
		}
	}
	return nil
}

// addPort adds to a batch what puts a port into its sets, and sends it. The port must be one of a bridge that is looked
// after, or else nobody reads its marks.
func (h *Host) addPort(name string, b *nft.Batch, send func() error) error {
	h.sets.Lock()
	defer h.sets.Unlock()
	bridge, err := h.bridgeOf(name)
	if err != nil {
		return err
	}
	if !h.names[allBridges][bridge] {
		return fmt.Errorf("%w: it is a port of %q", errBridge, bridge)
	}
	return h.changeWith(b, send, change{guardedPorts, name, true}, change{managedPorts, name, h.names[managedBridges][bridge]})
}

// removePort takes a port out of its sets. One that is still there stays mute on a managed network.
func (h *Host) removePort(name string) error {
	h.sets.Lock()
	defer h.sets.Unlock()
	bridge, err := h.bridgeOf(name)
	if err != nil && !isNotFound(err) {
		return err
	}
	return h.change(change{guardedPorts, name, false}, change{managedPorts, name, h.names[managedBridges][bridge]})
}

// bridgeOf returns the name of the bridge that an interface is a port of, or "".
func (h *Host) bridgeOf(port string) (string, error) {
	link, err := h.links.LinkByName(port)
	if err != nil || link.Attrs().MasterIndex == 0 {
		return "", err
	}
	bridge, err := h.links.LinkByIndex(link.Attrs().MasterIndex)
	if err != nil {
		return "", err
	}
	return bridge.Attrs().Name, nil
}

func isNotFound(err error) bool { return errors.As(err, new(netlink.LinkNotFoundError)) }
