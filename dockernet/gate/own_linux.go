package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
	"sluice/dockernet/nft"
)

// Own tells the rules of a [Shared] namespace which connections the sidecar opens itself. Its methods may be called by
// any number of goroutines. Each takes a transaction of some 25 µs, or waits for one that is under way.
type Own struct {
	ns *netns.Namespace

	mu     sync.Mutex
	kernel *nft.Conn // nil until it is needed
}

// NewOwn makes an Own for the gate of a namespace, which stays the caller's.
func NewOwn(ns *netns.Namespace) *Own { return &Own{ns: ns} }

// Open lets a connection begin, from a port that the caller has bound a socket to. After the call that sends its first
// packet the caller takes that back by [Own.Opened]: what belongs to the connection is known by then.
func (o *Own) Open(to netip.AddrPort, from uint16) error {
	return o.change("open", to, from, (*nft.Batch).AddElements)
}

// Opened takes back what Open has said. It is no error if that has gone already, with the gate's rules.
func (o *Own) Opened(to netip.AddrPort, from uint16) error {
	err := o.change("forget", to, from, (*nft.Batch).DeleteElements)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (o *Own) change(what string, to netip.AddrPort, from uint16, change func(*nft.Batch, nft.ID, nft.Set)) error {
	a := to.Addr().Unmap().WithZone("")
	set := ownSets[nft.IPv4]
	if a.Is6() {
		set = ownSets[nft.IPv6]
	}
	set.Elements = []nft.Element{{First: a, Last: a, Port: to.Port(), Source: from}}
	o.mu.Lock()
	defer o.mu.Unlock()
	var err error
	if o.kernel == nil {
		err = o.ns.Do(func() (err error) {
			o.kernel, err = nft.Dial()
			return err
		})
	}
	if err == nil {
		b := new(nft.Batch)
		change(b, tableID, set)
		err = o.kernel.Send(b)
	}
	if err == nil {
		return nil
	}
	o.close()
	return fmt.Errorf("%s own connection from port %d to %v: %w", what, from, to, err)
}

// Close closes the connection to the kernel. A method that needs one opens another.
func (o *Own) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.close()
}

func (o *Own) close() {
	if o.kernel != nil {
		_ = o.kernel.Close()
		o.kernel = nil
	}
}
