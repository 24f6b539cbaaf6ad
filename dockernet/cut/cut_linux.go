package cut

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// Cut ends the connections that the Spec refuses. When it returns without an error, no socket of the container has
// one of them any more, and what the far end still sends reaches nobody. Where the host does not put its own address in
// place of the container's, it may come in; there the entries stay, so that it is an answer to what is over, which the
// rules refuse to go on with, and not a connection into the container.
//
// It looks at the sockets and asks conntrack for the entry of each, which takes time for the container's own
// connections only. Where something in the container takes datagrams from whoever sends them, it reads all of the
// namespace's entries too. Where that may not have seen everything, because there are raw sockets or [Spec.First] is
// set, it also does the work of [Sweep] for this container, which takes longest; otherwise that is left for later, and the
// Report says so.
//
// With [Spec.First] it deletes what the container may have forged before, which takes one or two walks through the
// host's table, unless that is short.
//
// A connection that neither the namespace's conntrack nor the host's knows was opened by nobody knows whom: it ends if
// it is refused in either direction.
func Cut(ns *netns.Namespace, s Spec) (Report, error) {
	return run(ns, &s, func(c *cutter) error {
		receivers, err := c.cutSockets()
		if err == nil && c.First && !c.Muted {
			err = c.sweepForged()
		} else if err == nil {
			err = c.sweepDoubtful()
		}
		if err == nil && (receivers || c.raw) {
			if err = c.sweepInside(); err == nil && (c.raw || c.First) {
				err = c.sweepHost()
			}
		}
		return err
	})
}

// cutter does the work in one namespace and on the host.
type cutter struct {
	*Spec
	inside, host *conn // to conntrack
	diag, udp    *conn // to the sockets, and to those of UDP
	// in and on run functions in the container's namespace and in that of the bridges.
	in, on func(func() error) error
	// own are the container's addresses. What has one of them at both ends does not leave the namespace.
	own map[netip.Addr]bool
	// links are its networks.
	links []netip.Prefix
	// raw is set if a process has a socket that gets packets of all ports.
	raw    bool
	report Report
}

func run(ns *netns.Namespace, s *Spec, do func(*cutter) error) (Report, error) {
	c := &cutter{Spec: s, own: make(map[netip.Addr]bool), in: ns.Do, on: onHost(s.Host)}
	if s.Refused == nil {
		return c.report, errors.New("cut connections: nothing says which are refused")
	}
	defer func() {
		if s.Later == nil {
			c.close()
			return
		}
		s.Later(c.close)
	}()
	err := ns.Do(c.enter)
	if err == nil {
		err = c.on(c.enterHost)
	}
	if err == nil {
		err = do(c)
	}
	if err != nil {
		return c.report, fmt.Errorf("cut connections in network namespace %v: %w", ns.ID(), err)
	}
	return c.report, nil
}

// onHost returns what runs functions in the namespace of the bridges.
func onHost(host *netns.Namespace) func(func() error) error {
	if host != nil {
		return host.Do
	}
	return func(f func() error) error { return f() }
}

func (c *cutter) enterHost() (err error) {
	c.host, err = dial(unix.NETLINK_NETFILTER)
	return err
}

// enter opens what the work needs inside of the namespace.
func (c *cutter) enter() (err error) {
	if c.diag, err = dial(unix.NETLINK_SOCK_DIAG); err != nil {
		return err
	}
	if c.udp, err = dial(unix.NETLINK_SOCK_DIAG); err != nil {
		return err
	}
	for _, list := range []string{"raw", "raw6", "packet"} {
		b, err := os.ReadFile("/proc/thread-self/net/" + list)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		c.raw = c.raw || bytes.Count(b, []byte("\n")) > 1 // the first line has the names of the columns
	}
	return c.enterConntrack()
}

// enterConntrack opens what the namespace's entries need.
func (c *cutter) enterConntrack() (err error) {
	if c.inside, err = dial(unix.NETLINK_NETFILTER); err != nil {
		return err
	}
	addresses, err := netns.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			c.own[ip.Unmap()] = true
			bits, _ := a.Mask.Size()
			c.links = append(c.links, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	for _, a := range c.Addresses {
		c.own[a] = true
	}
	return nil
}

// fewEntries is up to when text is faster: older kernels begin a walk anew for every page of it.
const fewEntries = 500

// openTable opens the text of a namespace's entries, nil where there are many of them or the kernel has no such text.
func openTable(in func(func() error) error, to *conn) (table *os.File, err error) {
	// Not nf_conntrack_count of /proc/sys: the kernel looks such a name up among those of all namespaces.
	if n, err := to.count(); err != nil || n > fewEntries {
		return nil, err
	}
	err = in(func() (err error) {
		table, err = os.Open("/proc/thread-self/net/nf_conntrack")
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return table, err
}

func (c *cutter) close() {
	for _, conn := range []*conn{c.inside, c.host, c.diag, c.udp} {
		if conn != nil {
			conn.close()
		}
	}
}

// local reports whether packets to the address stay in the namespace.
func (c *cutter) local(a netip.Addr) bool { return a.IsLoopback() || c.own[a] }

// cutSockets ends the refused connections that have a socket. It reports whether others may have a reader.
func (c *cutter) cutSockets() (receivers bool, err error) {
	sockets, receivers, err := c.sockets()
	if err != nil {
		return false, err
	}
	sockets = deleteLocal(sockets, c.local)
	found, err := c.inside.entries(sockets)
	if err != nil {
		return false, err
	}
	if err := c.askHost(sockets, found); err != nil {
		return false, err
	}
	var dead []socket
	var victims []victim
	for i, s := range sockets {
		if !c.judge(&s, found[i]) {
			continue
		}
		dead = append(dead, s)
		entry := request(s.protocol, s.flow)
		victims = append(victims, victim{
			inbound: found[i] != nil && found[i].original != s.flow, far: s.destination, protocol: s.protocol, inside: entry, host: entry,
		})
	}
	// The resets still need the entries, so those come second.
	c.report.Sockets, err = c.diag.destroy(dead)
	c.report.Ended = c.report.Sockets
	if err != nil {
		return receivers, err
	}
	victims, err = c.unreachable(victims)
	if err != nil {
		return receivers, err
	}
	inside, host := requests(victims)
	return receivers, c.remove(inside, host)
}

func deleteLocal(sockets []socket, local func(netip.Addr) bool) []socket {
	kept := sockets[:0]
	for _, s := range sockets {
		if !local(s.destination.Addr()) {
			kept = append(kept, s)
		}
	}
	return kept
}

// askHost fills in the entries of connections that only the host knows: those from before the gate was there.
func (c *cutter) askHost(sockets []socket, found []*entry) error {
	if c.Spared != nil {
		return nil
	}
	var unknown []socket
	var at []int
	for i, s := range sockets {
		if found[i] == nil && (c.Refused(s.destination, s.protocol) || c.refusedInbound(s.destination.Addr())) {
			unknown = append(unknown, s)
			at = append(at, i)
		}
	}
	if unknown == nil {
		return nil
	}
	onHost, err := c.host.entries(unknown)
	if err != nil {
		return err
	}
	for i, e := range onHost {
		if e != nil {
			e.onHost = true
		}
		found[at[i]] = e
	}
	return nil
}

// judge reports whether a socket has to go, and counts those that stay.
func (c *cutter) judge(s *socket, e *entry) bool {
	to := s.destination
	if e != nil && !e.onHost && c.Joined != 0 && e.mark == c.Joined {
		e = nil
	}
	switch {
	case e == nil && s.protocol == unix.IPPROTO_UDP:
		return false // a socket that has not sent anything yet, or not for long: its next packet is judged
	case e == nil:
		if c.Refused(to, s.protocol) || c.refusedInbound(to.Addr()) {
			return true
		}
		c.report.Kept++
		return false
	case e.original == s.flow:
		if !e.onHost && c.local(e.reply.source.Addr()) {
			return false // redirected
		}
		if c.Refused(to, s.protocol) {
			return true
		}
		c.report.Kept++
		return false
	default:
		if c.refusedInbound(to.Addr()) {
			return true
		}
		c.report.Inbound++
		return false
	}
}

// victim is an entry to be deleted as long as the rules refuse what goes by it.
type victim struct {
	inbound  bool
	far      netip.AddrPort // where it leads, or comes from
	protocol uint8
	// The requests to delete it, inside and on the host; nil if it is not known there.
	inside, host []byte
}

func (v *victim) refusedBy(s *Spec) bool {
	if v.inbound {
		return s.refusedInbound(v.far.Addr())
	}
	return s.Refused(v.far, v.protocol)
}

// sweepInside deletes entries whether they have a socket or not, and on the host those of the same connections.
func (c *cutter) sweepInside() error {
	victims, err := c.victimsInside(func(*entry) {})
	if err != nil {
		return err
	}
	return c.end(victims)
}

// victimsInside are the namespace's entries of refused connections. It calls local with those that do not leave it.
func (c *cutter) victimsInside(local func(*entry)) (all []victim, err error) {
	err = c.everyEntry(func(e *entry) {
		if c.Spared.entry(e.mark) {
			return
		}
		from := e.original.source
		v := victim{far: e.original.destination, protocol: e.protocol}
		if !c.local(from.Addr()) {
			v.inbound, v.far = true, from
		} else if c.local(e.reply.source.Addr()) {
			local(e) // redirected, or never to leave
			return
		}
		if !v.refusedBy(c.Spec) {
			return
		}
		if v.inside = e.exact(); v.inbound {
			v.host = e.answers()
		} else {
			v.host = e.packets()
		}
		all = append(all, v)
	})
	return all, err
}

// unreachable are those of the victims whose far end reaches nobody once its entry is deleted: the host has put its own
// address in place of the container's. Others are left for as long as the far end keeps them. The rules refuse what the
// container sends by them; but without them what the far end still sends, an answer that comes late or a segment once
// more, would begin a connection into the container, which it might answer for good.
func (c *cutter) unreachable(victims []victim) ([]victim, error) {
	if c.Spec != nil && c.Spared != nil {
		return victims, nil // where no connection comes in
	}
	var asked []int
	var requests [][]byte
	for i := range victims {
		if v := &victims[i]; !v.inbound && v.inside != nil {
			asked, requests = append(asked, i), append(requests, v.host)
		}
	}
	if asked == nil {
		return victims, nil
	}
	onHost, err := c.host.lookUp(requests)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	stays := make([]bool, len(victims))
	for n, i := range asked {
		if e := onHost[n]; e != nil {
			stays[i] = !e.masked()
		} else { // of bridges that did not call the rules the host knows nothing
			stays[i] = slices.ContainsFunc(c.links, func(p netip.Prefix) bool { return p.Contains(victims[i].far.Addr()) })
		}
	}
	kept := victims[:0]
	for i, v := range victims {
		if !stays[i] {
			kept = append(kept, v)
		}
	}
	return kept, nil
}

// end deletes entries.
func (c *cutter) end(victims []victim) error {
	victims, err := c.unreachable(victims)
	if err != nil {
		return err
	}
	for _, v := range victims {
		if v.inside != nil && v.protocol != unix.IPPROTO_TCP {
			c.report.Ended++
		}
	}
	inside, host := requests(victims)
	return c.remove(inside, host)
}

// requests are those to delete the victims' entries.
func requests(victims []victim) (inside, host [][]byte) {
	for _, v := range victims {
		if v.inside != nil {
			inside = append(inside, v.inside)
		}
		host = append(host, v.host)
	}
	return inside, host
}

// everyEntry calls each with all of the namespace's. Where they are few the kernel writes them down as text much
// faster, for it takes no lock to look into a slot of its table.
func (c *cutter) everyEntry(each func(*entry)) error {
	err := everyLine(c.in, c.inside, each)
	if err == errMany {
		err = c.inside.all(func(e entry) { each(&e) })
	}
	return err
}

// errMany is the error where the text is not the faster way.
var errMany = errors.New("there are many entries")

func everyLine(in func(func() error) error, to *conn, each func(*entry)) error {
	table, err := openTable(in, to)
	if err != nil {
		return fmt.Errorf("list conntrack entries: %w", err)
	}
	if table == nil {
		return errMany
	}
	defer table.Close()
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		e, err := parseLine(lines.Text())
		if err != nil {
			return err
		}
		each(&e)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("list conntrack entries: %w", err)
	}
	return nil
}

// sweepHost deletes the host's entries that began with a packet from one of the container's addresses.
func (c *cutter) sweepHost() error {
	if c.Spared != nil {
		return nil
	}
	var host [][]byte
	each := func(e *entry) {
		if slices.Contains(c.Addresses, e.original.source.Addr()) && e.masked() && c.Refused(e.original.destination, e.protocol) {
			host = append(host, e.exact())
		}
	}
	if err := c.everyHostEntry(c.Addresses, each, c.host.from); err != nil {
		return err
	}
	c.report.Swept = true
	return c.remove(nil, host)
}

// sweepForged deletes the host's entries of connections to one of the container's addresses, as it is, from where the
// rules let nothing go, and keeps the others in mind ([Spec.Doubtful]): frames of the container with a false source make such
// entries, by which it could answer. If the host has translated the destination they are left, for whoever that is may dial
// the container anyway.
func (c *cutter) sweepForged() error {
	if c.Spared != nil {
		return nil
	}
	var host [][]byte
	var doubts []doubt
	each := func(e *entry) {
		to := e.original.destination.Addr()
		if !slices.Contains(c.Addresses, to) || to != e.reply.source.Addr() {
			return
		}
		d := doubt{e.original.source, e.protocol, e.exact()}
		if c.Refused(d.from, d.protocol) || c.Doubtful != nil && len(doubts) >= mostDoubts {
			host = append(host, d.host)
		} else if c.Doubtful != nil {
			doubts = append(doubts, d)
		}
	}
	if err := c.everyHostEntry(c.Addresses, each, c.host.into); err != nil {
		return err
	}
	if c.Doubtful != nil {
		c.Doubtful.entries = doubts
	}
	return c.remove(nil, host)
}

// Doubts are entries of the host's from before a container came under rules, by which it could answer somebody who has
// never asked. They stay for as long as the container may send there anyway. The zero value has none; it is used by one
// call of Cut at a time.
type Doubts struct{ entries []doubt }

type doubt struct {
	from     netip.AddrPort
	protocol uint8
	host     []byte // the request to delete it
}

// mostDoubts bounds how many are remembered, of some 100 bytes each. Beyond that they do not stay.
const mostDoubts = 4096

// sweepDoubtful deletes those that the rules let nothing go to any more.
func (c *cutter) sweepDoubtful() error {
	if c.Doubtful == nil || c.Spared != nil {
		return nil
	}
	var host [][]byte
	var kept []doubt
	for _, d := range c.Doubtful.entries {
		if c.Refused(d.from, d.protocol) {
			host = append(host, d.host)
		} else {
			kept = append(kept, d)
		}
	}
	if err := c.remove(nil, host); err != nil {
		return err
	}
	c.Doubtful.entries = kept
	return nil
}

// everyHostEntry calls each with the host's entries: with all if they are few, and else with what list finds of the
// addresses.
func (c *cutter) everyHostEntry(addresses []netip.Addr, each func(*entry), list func([]netip.Addr, func(entry)) error) (err error) {
	if err = everyLine(c.on, c.host, each); err == errMany {
		err = list(addresses, func(e entry) { each(&e) })
	}
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	return nil
}

// remove deletes both at the same time, for there may be hundreds of thousands.
func (c *cutter) remove(inside, host [][]byte) (err error) {
	if c.Spec != nil && c.Spared != nil { // a sweep of many has no Spec of its own
		host = nil
	}
	var deleted int
	onHost := make(chan error, 1)
	go func() {
		var err error
		deleted, err = c.host.remove(host)
		onHost <- err
	}()
	n, err := c.inside.remove(inside)
	err = errors.Join(err, <-onHost)
	c.report.Entries, c.report.HostEntries = c.report.Entries+n, c.report.HostEntries+deleted
	return err
}

// Check finds out whether the kernel does what this package asks of it, in the namespace of the calling thread, where
// it changes nothing.
func Check() error {
	diag, err := dial(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	defer diag.close()
	// What nobody has is not found, unless it is not looked for.
	nothing := socket{protocol: unix.IPPROTO_TCP, family: unix.AF_INET}
	if _, err := diag.destroy([]socket{nothing}); err != nil {
		return err
	}
	inside, err := dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer inside.close()
	loopback := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 1)
	_, err = inside.entries([]socket{{protocol: unix.IPPROTO_TCP, flow: flow{loopback, loopback}}})
	return err
}
