package guard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/nft"
)

// watchBuffer is how much the kernel may have told that has not been read yet. If that is not enough, all rules are
// put in force again, whatever has happened to them.
const watchBuffer = 8 << 20

const retryAfter = time.Second

// Watch puts rules in force again when somebody else changes them: another nft, firewalld, a table flushed by hand. It
// takes bridges and ports that come under the host's rules, see [Host.AddBridge]. It tells report of each time that
// rules were not in force, and returns when ctx is done. report is not called by two goroutines at once.
func (h *Host) Watch(ctx context.Context, report func(Gap)) error {
	return h.watch(ctx, func() {}, report)
}

// listenTo opens a socket on which the kernel tells of changes.
func (h *Host) listenTo(protocol int, group uint32) (sock *mdnetlink.Conn, err error) {
	err = h.in(func() (err error) {
		sock, err = mdnetlink.Dial(protocol, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("watch guard: open netlink: %w", err)
	}
	if err := errors.Join(sock.SetReadBuffer(watchBuffer), sock.JoinGroup(group)); err != nil {
		return nil, errors.Join(fmt.Errorf("watch guard: %w", err), sock.Close())
	}
	return sock, nil
}

// watch calls ready when nothing will be missed any more.
func (h *Host) watch(ctx context.Context, ready func(), report func(Gap)) error {
	sock, err := h.listenTo(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return err
	}
	defer sock.Close()
	links, err := h.listenTo(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return err
	}
	defer links.Close()
	h.sets.Lock()
	err = h.findLinks()
	h.sets.Unlock()
	if err != nil {
		return fmt.Errorf("watch guard: %w", err)
	}
	ready()

	// Putting rules in force makes the kernel tell a lot, so somebody else has to listen meanwhile.
	w := &watcher{host: h, wake: make(chan struct{}, 1), since: make(map[string]time.Time)}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var listener sync.WaitGroup
	listener.Go(func() { fail(w.listen(sock, w.read)) })
	listener.Go(func() { fail(w.listen(links, w.readLinks)) })
	defer listener.Wait()
	defer sock.SetReadDeadline(time.Unix(1, 0))
	defer links.SetReadDeadline(time.Unix(1, 0))
	for {
		var retry <-chan time.Time
		if w.restore(report) {
			retry = time.After(retryAfter)
		}
		select {
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("watch guard: %w", err)
			}
			return nil
		case <-w.wake:
		case <-retry:
		}
	}
}

// watcher knows since when which rules are not what they should be, by port; "" stands for the whole host's.
type watcher struct {
	host *Host
	wake chan struct{} // has something when rules have to be put in force

	mu    sync.Mutex // guards since
	since map[string]time.Time
}

// listen reads what the kernel tells until the socket's deadline has passed. read reports whether there may be something
// to put in force.
func (w *watcher) listen(sock *mdnetlink.Conn, read func([]mdnetlink.Message) bool) error {
	for {
		messages, err := sock.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			w.all()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		case !read(messages):
			continue
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (w *watcher) changed(port string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.since[port]; !ok {
		w.since[port] = time.Now()
	}
}

func (w *watcher) all() {
	w.changed("")
	w.host.mu.Lock()
	names := slices.Collect(maps.Keys(w.host.ports))
	w.host.mu.Unlock()
	for _, name := range names {
		w.changed(name)
	}
}

// Every message begins with a header of its subsystem, and has the table as its first attribute (linux/netfilter).
const (
	genHeader      = 4
	tableAttribute = 1
)

// read takes what the kernel tells, and reports whether a transaction has ended.
func (w *watcher) read(messages []mdnetlink.Message) (ended bool) {
	for _, m := range messages {
		if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < genHeader {
			continue
		}
		if m.Header.Type&0xff == unix.NFT_MSG_NEWGEN {
			ended = true
			continue
		}
		w.host.mu.Lock()
		own := w.host.own[m.Header.PID]
		w.host.mu.Unlock()
		if own {
			continue
		}
		attributes, err := mdnetlink.NewAttributeDecoder(m.Data[genHeader:])
		if err != nil {
			continue
		}
		attributes.ByteOrder = binary.BigEndian
		for attributes.Next() {
			if attributes.Type() == tableAttribute {
				w.table(m.Data[0], attributes.String())
				break
			}
		}
	}
	return ended
}

// readLinks takes what the kernel tells of interfaces. Where that does not succeed, all of them are looked at again.
func (w *watcher) readLinks(messages []mdnetlink.Message) (failed bool) {
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK {
			continue
		}
		if err := w.host.linkNews(m); err != nil {
			w.changed("")
			failed = true
		}
	}
	return failed
}

func (w *watcher) table(family byte, name string) {
	switch family {
	case unix.NFPROTO_NETDEV:
		w.host.mu.Lock()
		var ports []string
		if g := w.host.groups[name]; g != nil {
			g.closed = true
			ports = slices.Collect(maps.Keys(g.ports))
		}
		w.host.mu.Unlock()
		for _, p := range ports {
			w.changed(p)
		}
	case unix.NFPROTO_INET, unix.NFPROTO_BRIDGE, unix.NFPROTO_ARP:
		if name == hostName {
			w.changed("")
		}
	}
}

// restore puts in force again what has changed, the rules for the whole host first, and reports whether that has failed
// for some.
func (w *watcher) restore(report func(Gap)) (failed bool) {
	w.mu.Lock()
	todo := w.since
	w.since = make(map[string]time.Time)
	w.mu.Unlock()
	for _, port := range slices.Sorted(maps.Keys(todo)) {
		needed, err := w.host.restore(port)
		if needed || err != nil {
			report(Gap{Port: port, Uncovered: time.Since(todo[port]), Err: err})
		}
		if err != nil {
			failed = true
			w.mu.Lock()
			w.since[port] = todo[port]
			w.mu.Unlock()
		}
	}
	return failed
}

// restore reports whether there is still something to put in force.
func (h *Host) restore(port string) (needed bool, err error) {
	if port != "" {
		h.mu.Lock()
		p := h.ports[port]
		h.mu.Unlock()
		if p == nil {
			return false, nil
		}
		return p.restore()
	}
	h.sets.Lock()
	defer h.sets.Unlock()
	b := new(nft.Batch)
	for _, t := range h.hostTables() {
		for i := range t.Sets {
			t.Sets[i].Elements = elementsOf(slices.Sorted(maps.Keys(h.names[nameSet{t.ID, t.Sets[i].Name}]))...)
		}
		b.DeleteTable(t.ID)
		b.AddTable(t.ID)
		b.AddCounters(t.ID, t.Counters...)
		b.AddSets(t.ID, t.Sets...)
		b.AddChains(t.ID, t.Chains...)
		b.AddRules(t.ID, t.Chains...)
	}
	err = h.with(func(c *nft.Conn) error { return c.Send(b) })
	if err == nil {
		err = h.findLinks()
	}
	if err != nil {
		return true, fmt.Errorf("restore the guard's rules for the host: %w", err)
	}
	return true, nil
}

// restore puts in force what has been, in another table: what this one still has of the port's rules is in force
// meanwhile.
func (p *Port) restore() (needed bool, err error) {
	err = p.do("restore", func() error {
		if p.at == nil || p.staged == nil && !p.quarantined {
			return nil
		}
		if err := p.isThere(p.staged); err != nil {
			if errors.Is(err, ErrGone) {
				return nil
			}
			return err
		}
		needed = true
		before, from := p.portState, p.at
		p.host.close(from)
		p.portState, p.at = portState{}, nil
		err := p.again(before)
		if err == nil {
			p.former = append(p.former, from)
			return p.leaveFormer()
		}
		if p.at != nil {
			p.host.close(p.at) // it has who knows what
			p.former = append(p.former, p.at)
		}
		p.portState, p.at = before, from
		return err
	})
	return needed, err
}

// again installs, stages and narrows what was.
func (p *Port) again(before portState) error {
	if before.quarantined {
		if err := p.quarantine(); err != nil {
			return err
		}
	}
	if before.current != nil {
		if err := p.stage(before.current.spec); err != nil {
			return err
		}
		if err := p.enforce(p.staged.ref(before.inForce[0].phase)); err != nil {
			return err
		}
	}
	if before.staged != nil && before.staged != before.current {
		if err := p.stage(before.staged.spec); err != nil {
			return err
		}
	}
	if len(before.inForce) > 1 {
		return p.both(p.staged.ref(before.inForce[1].phase))
	}
	return nil
}
