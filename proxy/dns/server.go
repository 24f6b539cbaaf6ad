package dns

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnswire"
	"sluice/proxy/outgoing"
	"sluice/proxy/upstream"
)

// Rules are what is in force.
type Rules struct {
	// Ruleset judges; nil refuses every name.
	Ruleset *matcher.Ruleset
	Options policy.Options
	// Budget counts questions from when the rules came into force; nil counts nothing.
	Budget *Budget
	// NoIPv4 and NoIPv6 say that the proxy has no route for the family: it hands out no address of it but those of
	// Options.Hosts and Open, so that clients take the other one.
	NoIPv4, NoIPv6 bool
	// Generation grows with every switch. Rules with another Ruleset are other rules even if it has not grown.
	Generation uint64
}

// lacks reports whether addresses of a type are not handed out.
func (r *Rules) lacks(qtype uint16) bool {
	return r.NoIPv4 && qtype == dnswire.TypeA || r.NoIPv6 && qtype == dnswire.TypeAAAA
}

// Options of a [Server]. All are read once.
type Options struct {
	// Rules returns what is in force now. It is called for every query and again for every answer, from several
	// goroutines, and must be cheap.
	Rules func() Rules
	// Fresh, if set, is called before queries are judged, for some of them together, from several goroutines. It brings
	// Rules up to date, and may wait for that, and for [Server.Flush].
	Fresh func()
	// Upstreams are the name servers at first, tried in this order. Without one every allowed query gets SERVFAIL.
	Upstreams []netip.AddrPort
	// Hosts, if set, answers A and AAAA for local names (siblings, extra hosts) that the policy allows. It is given
	// the name in lower case without trailing dot, which it must not keep; no addresses means that it does not know
	// the name. It is called for every allowed query and must not block.
	Hosts func(name []byte) []netip.Addr
	// Open, if set, answers A and AAAA for names that no policy refuses, and is called for every query, otherwise as
	// Hosts is.
	Open func(name []byte) []netip.Addr
	// Observe, if set, is called once for every query that gets an answer, just before that, from several
	// goroutines. It must be cheap, not keep the event, and not call the server.
	Observe func(*Event)
	// Learn, if set, is told of every address in an answer from upstream to a question for addresses, with the name
	// that was asked for, just before the answer is sent. It must be cheap, and not keep the name. Answers from the
	// cache are not told of again.
	Learn func(name []byte, addr netip.Addr)
	// MaxOutstanding bounds the queries that wait for an upstream; 0 is [upstream.DefaultOutstanding]. One more gets
	// SERVFAIL at once, and so does one more of a client that has as many as are free: one alone has half of them at most,
	// and leaves room for others.
	MaxOutstanding int
	// MaxTCP and MaxTCPPerClient bound the open TCP connections in all and of one client's address; 0 is 512 and
	// 128. When one more comes, the one that has been idle the longest is closed.
	MaxTCP, MaxTCPPerClient int
	// IdleTCP is how long a TCP connection may be without a whole query; 0 is 10 s.
	IdleTCP time.Duration
	// Outgoing opens the sockets for upstreams; nil opens them as anybody does.
	Outgoing *outgoing.Sockets
	// Logger takes rare notes on the state of upstreams; nil discards them.
	Logger *slog.Logger
}

// A Server filters DNS for one session. It is safe for concurrent use.
type Server struct {
	opts   Options
	asking atomic.Pointer[upstream.Client] // the present name servers
	cache  *cache
	tcp    tcpConns
	start  time.Time
	now    func() time.Duration // since start

	// switching is held for reading while queries are judged, sent on or answered, so that Flush can wait until
	// nothing is under way that was judged by former rules.
	switching sync.RWMutex

	mu      sync.Mutex                       // guards what follows
	retired map[*upstream.Client]*time.Timer // former name servers
	closed  bool
}

// New makes a server. It opens no socket before the first query is sent on.
func New(o Options) *Server {
	if o.MaxTCP <= 0 {
		o.MaxTCP = 512
	}
	if o.MaxTCPPerClient <= 0 {
		o.MaxTCPPerClient = 128
	}
	if o.IdleTCP <= 0 {
		o.IdleTCP = 10 * time.Second
	}
	s := &Server{opts: o, cache: newCache(), start: time.Now(), retired: make(map[*upstream.Client]*time.Timer)}
	s.now = func() time.Duration { return time.Since(s.start) }
	s.asking.Store(s.newClient(o.Upstreams))
	return s
}

func (s *Server) newClient(servers []netip.AddrPort) (c *upstream.Client) {
	c = upstream.New(upstream.Options{
		Servers:        servers,
		MaxOutstanding: s.opts.MaxOutstanding,
		NewSink:        func() upstream.Sink { return &sink{s: s, of: c} },
		Again:          func(q *upstream.Query) bool { return s.stillAllowed(q.Owner.(*query)) },
		Gate:           s.switching.RLocker(),
		Outgoing:       s.opts.Outgoing,
		Logger:         s.opts.Logger,
	})
	return c
}

// retireTime is how long answers of former name servers may take to come, a little more than the attempts of package
// upstream take together.
const retireTime = 6 * time.Second

// SetUpstreams asks other name servers from now on, and forgets what the former ones have said. Answers to what they were
// asked still come.
func (s *Server) SetUpstreams(servers []netip.AddrPort) {
	next := s.newClient(servers)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		next.Close()
		return
	}
	former := s.asking.Swap(next)
	s.retired[former] = time.AfterFunc(retireTime, func() {
		s.mu.Lock()
		delete(s.retired, former)
		s.mu.Unlock()
		former.Close()
	})
	s.mu.Unlock()
	s.switching.Lock() // an answer that is being kept is there now
	defer s.switching.Unlock()
	s.cache.flush()
}

// clientsLocked returns those of the present and of former name servers.
func (s *Server) clientsLocked() []*upstream.Client {
	return slices.AppendSeq([]*upstream.Client{s.asking.Load()}, maps.Keys(s.retired))
}

// Flush is to be called when the rules have changed, by whoever changed them. When it returns, no query leaves any
// more that the new rules refuse, no answer that was judged by the former ones, and nothing of the cache is left;
// queries under way that are refused now have their refusal. TCP connections stay open, as every query on them is
// judged anew, but for no-network, where they are closed.
func (s *Server) Flush() {
	s.switching.Lock()
	s.cache.flush()
	s.switching.Unlock()
	s.mu.Lock()
	clients := s.clientsLocked()
	s.mu.Unlock()
	for _, c := range clients {
		c.Cancel(func(q *upstream.Query) bool { return !s.stillAllowed(q.Owner.(*query)) })
	}
	if rules := s.opts.Rules(); rules.Ruleset == nil || rules.Ruleset.Mode() == policy.NoNetwork {
		s.tcp.closeAll()
	}
}

func (s *Server) fresh() {
	if s.opts.Fresh != nil {
		s.opts.Fresh()
	}
}

// Close answers what is under way with SERVFAIL and returns when everything that the server started has ended. The
// Serve methods are ended by their contexts.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	clients := s.clientsLocked()
	for _, timer := range s.retired {
		timer.Stop()
	}
	s.mu.Unlock()
	for _, c := range clients {
		c.Close()
	}
}

// stillAllowed reports whether the rules in force let q be sent on.
func (s *Server) stillAllowed(q *query) bool {
	rules := s.opts.Rules()
	if q.judgedBy(&rules) {
		return true
	}
	_, what := decide(&rules, q)
	return what == forward
}
