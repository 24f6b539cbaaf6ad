package dns

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"sluice/matcher"
	"sluice/policy"
)

// Ruleset is what the filter asks of the rules in force; *matcher.Ruleset is one.
type Ruleset interface{}

// Rules are what is in force.
type Rules struct {
	// Ruleset judges; nil refuses every name.
	Ruleset Ruleset
	Options policy.Options
	// Generation grows with every switch.
	Generation uint64
}

// Proto is how a query came.
type Proto uint8

const (
	UDP Proto = iota
	TCP
)

// String returns "udp" or "tcp".
func (p Proto) String() string {
	if p == TCP {
		return "tcp"
	}
	return "udp"
}

// An Event tells of one query that was answered (or could not be).
type Event struct {
	Decision   matcher.Decision
	Generation uint64 // of the rules that decided
	Type       uint16 // of the question
	Rcode      uint8  // of the answer, extended codes cut to their low 8 bits
	Proto      Proto
	Client     netip.AddrPort
	Latency    time.Duration
	name       []byte
}

// Name returns the name that was asked for, in lower case without trailing dot. It allocates.
func (e *Event) Name() string { return string(e.name) }

// Options of a [Server]. All are read once.
type Options struct {
	// Rules returns what is in force now. It is called for every query and again for every answer, from several
	// goroutines, and must be cheap.
	Rules func() Rules
	// Upstreams are the name servers, tried in this order.
	Upstreams []netip.AddrPort
	// Hosts, if set, answers A and AAAA for local names (siblings, extra hosts) that the policy allows. It is given
	// the name in lower case without trailing dot; no addresses means that it does not know the name.
	Hosts func(name string) []netip.Addr
	// Observe, if set, is called once for every query, from several goroutines. The event is valid during the call
	// only. It must be cheap.
	Observe func(*Event)
	// Logger takes rare notes on the state of upstreams; nil discards them.
	Logger *slog.Logger
}

// A Server filters DNS for one session. It is safe for concurrent use.
type Server struct {
	opts Options
}

// New makes a server. It opens no socket before the first query is sent on.
func New(o Options) *Server { return &Server{opts: o} }

// ServeUDP answers queries that come in on conn until ctx is done. It does not close conn.
func (s *Server) ServeUDP(ctx context.Context, conn *net.UDPConn) error { <-ctx.Done(); return nil }

// ServeTCP answers queries on connections accepted from l until ctx is done. It does not close l.
func (s *Server) ServeTCP(ctx context.Context, l *net.TCPListener) error { <-ctx.Done(); return nil }

// ServeConn answers queries on one accepted connection, for callers that accept themselves, and closes it.
func (s *Server) ServeConn(ctx context.Context, conn *net.TCPConn) { conn.Close() }

// Flush is to be called when the rules have changed: it drops the cache. Queries under way are judged by the new
// rules before they are answered.
func (s *Server) Flush() {}

// Close ends what is under way and returns when everything that the server started has ended.
func (s *Server) Close() {}
