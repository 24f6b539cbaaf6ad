package cut

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// Cut ends the connections that the Spec refuses. When it returns without an error, no socket of the container has
// one of them any more, and what the far end still sends reaches nobody.
//
// It looks at the sockets and asks conntrack for the entry of each, which takes time for the container's own
// connections only. Where something in the container takes datagrams from whoever sends them, it does the work of
// [Sweep] as well, which takes longer; otherwise that is left for later, and the Report says so.
//
// A connection that neither the namespace's conntrack nor the host's knows was opened by nobody knows whom: it ends if
// it is refused in either direction.
func Cut(ns *netns.Namespace, s Spec) (Report, error) {
	return run(ns, &s, func(c *cutter) error {
		receivers, err := c.cutSockets()
		if err == nil && receivers {
			err = c.sweep()
		}
		return err
	})
}

// Sweep deletes the conntrack entries that no socket stands for: of UDP sockets that are not connected, of processes
// that have ended, of raw frames. Nothing can be sent by them, since the rules refuse every packet; but until they time
// out the host translates what the far end sends, and they keep their ports from being redirected anew.
//
// It reads all of the namespace's entries and those of the host that have a source of the container's, which takes 10
// ms and more: [Cut] does it by itself where somebody could tell the difference.
func Sweep(ns *netns.Namespace, s Spec) (Report, error) {
	return run(ns, &s, (*cutter).sweep)
}

// cutter does the work in one namespace and on the host.
type cutter struct {
	*Spec
	inside, host *conn // to conntrack
	diag         *conn // to the sockets
	// own are the container's addresses. What has one of them at both ends does not leave the namespace.
	own map[netip.Addr]bool
	// raw is set if a process has a socket that gets packets of all ports.
	raw    bool
	report Report
}

func run(ns *netns.Namespace, s *Spec, do func(*cutter) error) (Report, error) {
	c := &cutter{Spec: s, own: make(map[netip.Addr]bool)}
	defer c.close()
	if s.Refused == nil {
		return c.report, errors.New("cut connections: nothing says which are refused")
	}
	err := ns.Do(c.enter)
	if err == nil && s.Host != nil {
		err = s.Host.Do(c.enterHost)
	} else if err == nil {
		err = c.enterHost()
	}
	if err == nil {
		err = do(c)
	}
	if err != nil {
		return c.report, fmt.Errorf("cut connections in network namespace %v: %w", ns.ID(), err)
	}
	return c.report, nil
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
	if c.inside, err = dial(unix.NETLINK_NETFILTER); err != nil {
		return err
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		if a, ok := netip.AddrFromSlice(a.IP); ok {
			c.own[a.Unmap()] = true
		}
	}
	for _, a := range c.Addresses {
		c.own[a] = true
	}
	for _, list := range []string{"raw", "raw6", "packet"} {
		b, err := os.ReadFile("/proc/thread-self/net/" + list)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		c.raw = c.raw || bytes.Count(b, []byte("\n")) > 1 // the first line has the names of the columns
	}
	return nil
}

func (c *cutter) close() {
	for _, conn := range []*conn{c.inside, c.host, c.diag} {
		if conn != nil {
			conn.close()
		}
	}
}

// local reports whether packets to the address stay in the namespace.
func (c *cutter) local(a netip.Addr) bool { return a.IsLoopback() || c.own[a] }

// cutSockets ends the refused connections that have a socket. It reports whether others may have a reader.
func (c *cutter) cutSockets() (receivers bool, err error) {
	sockets, receivers, err := c.diag.sockets()
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
	var inside, host [][]byte
	for i, s := range sockets {
		if !c.judge(&s, found[i]) {
			continue
		}
		dead = append(dead, s)
		inside = append(inside, request(s.protocol, s.flow))
		host = append(host, request(s.protocol, s.flow))
	}
	// The resets still need the entries.
	errs := make([]error, 3)
	c.report.Sockets, errs[0] = c.diag.destroy(dead)
	c.report.Ended = c.report.Sockets
	c.report.Entries, errs[1] = c.inside.remove(inside)
	c.report.HostEntries, errs[2] = c.host.remove(host)
	return receivers || c.raw, errors.Join(errs...)
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

// sweep deletes entries whether they have a socket or not.
func (c *cutter) sweep() error {
	var inside, host [][]byte
	end := func(e entry) {
		inside = append(inside, e.exact())
		if e.protocol != unix.IPPROTO_TCP {
			c.report.Ended++
		}
	}
	err := c.inside.all(func(e entry) {
		from, to := e.original.source.Addr(), e.original.destination
		switch {
		case !c.local(from):
			if c.refusedInbound(from) {
				end(e)
				host = append(host, e.answers())
			}
		case c.local(e.reply.source.Addr()): // redirected, or never to leave
		case c.Refused(to, e.protocol):
			end(e)
		}
	})
	if err != nil {
		return err
	}
	err = c.host.from(c.Addresses, func(e entry) {
		if c.Refused(e.original.destination, e.protocol) {
			host = append(host, e.exact())
		}
	})
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	entries, err1 := c.inside.remove(inside)
	hostEntries, err2 := c.host.remove(host)
	c.report.Entries += entries
	c.report.HostEntries += hostEntries
	c.report.Swept = true
	return errors.Join(err1, err2)
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
