package resolve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"sluice/proxy/outgoing"
	"sluice/proxy/upstream"
)

// What a failed look-up's error is, for errors.Is. A look-up whose context ended gives the context's error.
var (
	ErrNotFound   = errors.New("no such host")                 // NXDOMAIN, or no address of either family
	ErrTimeout    = errors.New("no name server answered")      // in time
	ErrServer     = errors.New("name servers failed")          // SERVFAIL, REFUSED, nothing listens there, …
	ErrBusy       = errors.New("too many look-ups under way")  //
	ErrBadName    = errors.New("not a host name")              // it cannot be asked for
	ErrNoUpstream = errors.New("no name server is configured") //
	ErrClosed     = errors.New("resolver is closed")           //
	ErrForbidden  = errors.New("may not be asked for")         // by [Resolver.LookupIf]
)

const (
	// maxOutstanding bounds the questions under way, two for each look-up.
	maxOutstanding = 4096
	// maxEntries bounds the names that are remembered.
	maxEntries = 4096
	// ttlMax bounds how long an answer is remembered, whatever it says.
	ttlMax = time.Hour
	// negativeMax bounds how long it is remembered that a name does not exist: a service that is being started is
	// asked for again and again. negativeTTL is for answers that do not say (RFC 2308 section 5).
	negativeMax = 10 * time.Second
	negativeTTL = time.Second
	// failureTTL keeps a name that cannot be looked up from being asked for without pause (RFC 9520 section 3.2).
	failureTTL = time.Second
	// partialTTL is for an answer with one family, when the other could not be had.
	partialTTL = 10 * time.Second
	// localTTL is for the answers of Options.Hosts.
	localTTL = 5 * time.Second
	// familyDelay is how long a look-up waits for the second family when it has addresses of the first: some servers
	// never answer for AAAA. It is longer than the 50 ms of RFC 8305 section 3, since a connection by original
	// destination needs the family that its client has chosen.
	familyDelay = 400 * time.Millisecond
)

// An Answer is what a name stands for.
type Answer struct {
	// Addrs are the addresses of both families, IPv4-mapped ones unmapped: IPv6 before IPv4, else in the order of
	// the answers. Shared: read only.
	Addrs []netip.Addr
	// Chain are the CNAME names behind the question, lower case, without trailing dot, in order. Shared: read only.
	Chain []string
	// Expires is when the answer must be asked for again.
	Expires time.Time
}

// Options of a [Resolver]. All are read once.
type Options struct {
	// Upstreams are the name servers, tried in this order. Without one every look-up that Hosts does not answer
	// fails with [ErrNoUpstream].
	Upstreams []netip.AddrPort
	// Hosts, if set, answers local names (siblings, extra hosts) before any name server is asked. It is given the
	// name in lower case without trailing dot; no addresses means that it does not know the name. It must not block.
	Hosts func(name string) []netip.Addr
	// Outgoing opens the sockets; nil opens them as anybody does.
	Outgoing *outgoing.Sockets
	// Logger takes rare notes on the state of upstreams; nil discards them.
	Logger *slog.Logger
}

// A Resolver is safe for concurrent use.
type Resolver struct {
	opts   Options
	client *upstream.Client
	now    func() time.Time
	delay  time.Duration // familyDelay
	gate   sync.Mutex    // held while questions are sent; taken before mu

	mu      sync.RWMutex // guards what follows, and all flights
	entries map[string]entry
	flights map[string]*flight
}

// entry is what is remembered of a name: an answer, or why there is none.
type entry struct {
	answer Answer
	err    error
}

// New makes a resolver. It opens no socket before the first look-up. [Resolver.Close] ends it.
func New(o Options) *Resolver { return newResolver(o, upstream.DefaultTimeout) }

func newResolver(o Options, timeout time.Duration) *Resolver {
	r := &Resolver{
		opts:    o,
		now:     time.Now,
		delay:   familyDelay,
		entries: make(map[string]entry),
		flights: make(map[string]*flight),
	}
	r.client = upstream.New(upstream.Options{
		Servers:        o.Upstreams,
		MaxOutstanding: maxOutstanding,
		Timeout:        timeout,
		NewSink:        func() upstream.Sink { return sink{r} },
		Again:          func(q *upstream.Query) bool { return r.wanted(q.Owner.(*half).flight) },
		Gate:           &r.gate,
		Outgoing:       o.Outgoing,
		Logger:         o.Logger,
	})
	return r
}

// Cached returns the remembered answer for name, which must be in lower case without trailing dot, and reports
// whether there is one that has not expired. It neither waits for a server nor allocates.
func (r *Resolver) Cached(name string) (Answer, bool) {
	r.mu.RLock()
	e, ok := r.entries[name]
	r.mu.RUnlock()
	if !ok || e.err != nil || !r.now().Before(e.answer.Expires) {
		return Answer{}, false
	}
	return e.answer, true
}

// Lookup returns the addresses behind name: remembered ones, else the answers to questions for A and AAAA that are
// asked at the same time. Look-ups of one name share their questions, so that the end of one caller's context does
// not end them for the others; once all have ended no name server is asked any more. If one family has addresses and the other is late or fails, those addresses are the
// answer.
func (r *Resolver) Lookup(ctx context.Context, name string) (Answer, error) {
	return r.LookupIf(ctx, name, nil)
}

// LookupIf is Lookup, and calls may, if it is not nil, before name servers are asked a question for each family. If it
// reports false, none is, and the error is [ErrForbidden]. It must be quick.
func (r *Resolver) LookupIf(ctx context.Context, name string, may func() bool) (Answer, error) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	answer, err := r.lookup(ctx, name, may)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return Answer{}, fmt.Errorf("looking up %q: %w", name, err)
	}
	return answer, nil
}

func (r *Resolver) lookup(ctx context.Context, name string, may func() bool) (Answer, error) {
	if r.opts.Hosts != nil {
		if addrs := r.opts.Hosts(name); len(addrs) > 0 {
			return local(addrs, r.now()), nil
		}
	}
	r.mu.Lock()
	if e, ok := r.entries[name]; ok && r.now().Before(e.answer.Expires) {
		r.mu.Unlock()
		return e.answer, e.err
	}
	f, ok := r.flights[name]
	if !ok {
		var err error
		if f, err = newFlight(name); err == nil && may != nil && !may() {
			err = ErrForbidden
		}
		if err != nil {
			r.mu.Unlock()
			return Answer{}, err
		}
		r.flights[name] = f
	}
	f.asked = append(f.asked, ctx)
	r.mu.Unlock()
	if !ok {
		r.start(f)
	}
	select {
	case <-f.done:
		return f.answer, f.err
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

func local(addrs []netip.Addr, now time.Time) Answer {
	a := Answer{Expires: now.Add(localTTL)}
	for _, v6 := range []bool{true, false} {
		for _, addr := range addrs {
			if addr = addr.Unmap(); addr.Is6() == v6 {
				a.Addrs = append(a.Addrs, addr)
			}
		}
	}
	return a
}

// rememberLocked keeps what a name stands for; for one that is new it may have to forget another.
func (r *Resolver) rememberLocked(name string, e entry, now time.Time) {
	if _, ok := r.entries[name]; !ok && len(r.entries) >= maxEntries {
		// The order of a map is random: look at a few for one that has expired, else take the last of them.
		tries, victim := 8, ""
		for other, o := range r.entries {
			victim = other
			if tries--; tries == 0 || !now.Before(o.answer.Expires) {
				break
			}
		}
		delete(r.entries, victim)
	}
	r.entries[name] = e
}

// Flush forgets every answer. Look-ups under way are answered to those who wait for them, and not remembered.
func (r *Resolver) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.entries)
	r.flights = make(map[string]*flight)
}

// Settle returns when no question is being sent any more for look-ups whose contexts had ended before.
func (r *Resolver) Settle() {
	r.gate.Lock()
	defer r.gate.Unlock()
}

// Close ends look-ups under way with [ErrClosed] and returns when everything that the resolver started has ended.
func (r *Resolver) Close() { r.client.Close() }
