package resolve

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"
)

// What a failed look-up's error is, for errors.Is. A look-up whose context ended gives the context's error.
var (
	ErrNotFound   = errors.New("no such host")                    // NXDOMAIN, or no address of either family
	ErrTimeout    = errors.New("no name server answered in time") //
	ErrServer     = errors.New("name servers failed")             // SERVFAIL, REFUSED or another error code
	ErrBusy       = errors.New("too many look-ups under way")     // the limit on questions under way
	ErrBadName    = errors.New("not a host name")                 // cannot be asked in the DNS
	ErrNoUpstream = errors.New("no name server is configured")    //
	ErrClosed     = errors.New("resolver is closed")              //
)

// An Answer is what a name stands for.
type Answer struct {
	// Addrs are the addresses of both families, IPv4-mapped ones unmapped, in the order of the answers (IPv6
	// before IPv4). Shared: read only.
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
	// Logger takes rare notes on the state of upstreams; nil discards them.
	Logger *slog.Logger
}

// A Resolver is safe for concurrent use.
type Resolver struct {
	opts Options
}

// New makes a resolver. It opens no socket before the first look-up. [Resolver.Close] ends it.
func New(o Options) *Resolver { return &Resolver{opts: o} }

// Cached returns the remembered answer for name, which must be in lower case without trailing dot, and reports
// whether there is one that has not expired. It neither blocks nor allocates.
func (r *Resolver) Cached(name string) (Answer, bool) { return Answer{}, false }

// Lookup returns the addresses behind name: remembered ones, else the answers to questions for A and AAAA that are
// asked at the same time. Look-ups of one name share their questions, so that the end of one caller's context does
// not end them for the others.
func (r *Resolver) Lookup(ctx context.Context, name string) (Answer, error) {
	return Answer{}, ErrNoUpstream
}

// Flush forgets every answer. Look-ups under way are answered, but not remembered.
func (r *Resolver) Flush() {}

// Close ends look-ups under way with [ErrClosed] and returns when everything that the resolver started has ended.
func (r *Resolver) Close() {}

// Upstreams reads the name servers of a resolv.conf(5) file.
func Upstreams(resolvConf string) ([]netip.AddrPort, error) { return nil, ErrNoUpstream }
