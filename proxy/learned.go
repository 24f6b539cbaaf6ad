package proxy

import (
	"net/netip"
	"sync"
)

// Limits of what a session remembers. A workload chooses what it looks up, so both are bounds on memory, not on
// what works: an address that is not remembered is looked up through the exact names before it is refused.
const (
	maxLearnedAddrs = 8192
	maxLearnedNames = 16      // of one address
	maxLearnedBytes = 2 << 20 // of names in all
)

// learned remembers under which names a container has looked addresses up. Connections that show no name are judged
// by them. What is in use does not expire: clients keep addresses for longer than their TTL. Its zero value is empty
// and ready; it is safe for concurrent use.
type learned struct {
	mu    sync.Mutex // guards what follows
	names map[netip.Addr]*learnedAddr
	head  learnedAddr // of a ring, the most recently used first
	bytes int         // of names
}

type learnedAddr struct {
	addr         netip.Addr
	names        []string // the newest last
	before, next *learnedAddr
}

// add remembers that name was answered with addrs.
func (l *learned) add(name string, addrs []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = make(map[netip.Addr]*learnedAddr)
		l.head.before, l.head.next = &l.head, &l.head
	}
	for _, a := range addrs {
		e := l.names[a]
		if e == nil {
			if len(l.names) >= maxLearnedAddrs {
				l.forget(l.head.before)
			}
			e = &learnedAddr{addr: a}
			l.names[a] = e
		} else {
			e.unlink()
		}
		e.link(&l.head)
		l.bytes += e.add(name)
		for l.bytes > maxLearnedBytes && l.head.before != e {
			l.forget(l.head.before)
		}
	}
}

func (l *learned) forget(e *learnedAddr) {
	e.unlink()
	delete(l.names, e.addr)
	for _, name := range e.names {
		l.bytes -= len(name)
	}
}

// add makes name the newest, and returns by how many bytes the names grow.
func (e *learnedAddr) add(name string) (grown int) {
	for i, n := range e.names {
		if n == name {
			copy(e.names[i:], e.names[i+1:])
			e.names[len(e.names)-1] = name
			return 0
		}
	}
	if len(e.names) == maxLearnedNames {
		grown = -len(e.names[0])
		e.names = append(e.names[:0], e.names[1:]...)
	}
	e.names = append(e.names, name)
	return grown + len(name)
}

func (e *learnedAddr) link(head *learnedAddr) {
	e.before, e.next = head, head.next
	head.next.before, head.next = e, e
}

func (e *learnedAddr) unlink() { e.before.next, e.next.before = e.next, e.before }

// of returns the names of an address, the newest last, and keeps the address from being forgotten.
func (l *learned) of(a netip.Addr) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.names[a]
	if e == nil {
		return nil
	}
	e.unlink()
	e.link(&l.head)
	return append([]string(nil), e.names...)
}
