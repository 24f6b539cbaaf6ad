package proxy

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/proxy/resolve"
)

// lookups is the resolver of the present name servers. A container's change when it is connected to another network
// (the engine then writes its resolv.conf anew), and the C library of other programs follows that too.
type lookups struct {
	options resolve.Options
	before  func()
	current atomic.Pointer[resolve.Resolver]

	mu      sync.Mutex // guards what follows
	retired map[*resolve.Resolver]*time.Timer
	closed  bool
}

// newLookups looks names up by o. before, which may be nil, is called before each look-up, and may replace the name servers.
func newLookups(o resolve.Options, before func()) *lookups {
	l := &lookups{options: o, before: before, retired: make(map[*resolve.Resolver]*time.Timer)}
	l.current.Store(resolve.New(o))
	return l
}

// Cached is [resolve.Resolver.Cached].
func (l *lookups) Cached(name string) (resolve.Answer, bool) { return l.current.Load().Cached(name) }

// LookupIf is [resolve.Resolver.LookupIf] with the name servers of this moment.
func (l *lookups) LookupIf(ctx context.Context, name string, may func() bool) (resolve.Answer, error) {
	if l.before != nil {
		l.before()
	}
	return l.current.Load().LookupIf(ctx, name, may)
}

// retireTime is how long look-ups by former name servers may take; none takes longer.
const retireTime = time.Minute

func (l *lookups) replace(servers []netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	o := l.options
	o.Upstreams = servers
	former := l.current.Swap(resolve.New(o))
	l.retired[former] = time.AfterFunc(retireTime, func() {
		l.mu.Lock()
		delete(l.retired, former)
		l.mu.Unlock()
		former.Close()
	})
}

// Settle is [resolve.Resolver.Settle], of the former name servers too.
func (l *lookups) Settle() {
	l.mu.Lock()
	all := slices.AppendSeq([]*resolve.Resolver{l.current.Load()}, maps.Keys(l.retired))
	l.mu.Unlock()
	for _, r := range all {
		r.Settle()
	}
}

// Close ends the look-ups under way.
func (l *lookups) Close() {
	l.mu.Lock()
	l.closed = true
	retired := l.retired
	l.retired = nil
	l.mu.Unlock()
	for r, timer := range retired {
		timer.Stop()
		r.Close()
	}
	l.current.Load().Close()
}
