package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"sluice/control"
	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/audit"
	"sluice/proxy/forward"
	"sluice/proxy/outgoing"
	"sluice/proxy/poll"
	"sluice/proxy/resolve"
)

// Config of a [Server]. It is read once; zero values take the defaults named.
type Config struct {
	// Upstreams are the DNS servers that names are looked up with at first.
	Upstreams []netip.AddrPort
	// UpstreamsChanged, if set, is asked before every look-up, and returns other servers once there are. It must be
	// quick. Sessions with Upstreams of their own keep to those.
	UpstreamsChanged func() ([]netip.AddrPort, bool)
	// Hosts, if set, answers names before any server is asked, as in [resolve.Options].
	Hosts func(name string) []netip.Addr
	// Outgoing opens the sockets of all connections to servers; nil opens them as anybody does.
	Outgoing *outgoing.Sockets
	// Matcher says how policies are judged.
	Matcher matcher.Options
	// Audit takes a record of each connection; nil writes none. The caller closes it after [Server.Close].
	Audit *audit.Writer
	// Logger takes what an operator must know; nil discards it.
	Logger *slog.Logger
	// Registry takes the metrics; nil makes a new one.
	Registry *prometheus.Registry
	// Personality shapes answers as an existing client expects them.
	Personality Personality
	// Version is shown by health.
	Version string

	HeaderLimit     int           // bytes of a request head; 64 KiB
	LargeHeadStatus int           // HTTP status of a larger one; 431
	HeaderTimeout   time.Duration // for a head, or a ClientHello that was begun, to be complete; 30 s
	DialTimeout     time.Duration // for looking a name up and connecting; 15 s
	IdleTimeout     time.Duration // for a flow that moves no byte either way, and a quarter more; no limit
	Memory          int64         // bytes that clients may make the proxy use, roughly; GOMEMLIMIT (no limit)
	MaxConnections  int64         // clients at one time, in all; what descriptors and Memory are enough for
	MaxRequests     int64         // those of them that do not ask for a tunnel; what Memory is enough for
	Workers         int           // event loops; GOMAXPROCS
}

// Server is the data plane: its event loops, resolver and sessions. Make one with [New]; all methods are safe for
// concurrent use.
type Server struct {
	config   Config
	context  context.Context // ends with Close; its cause says why
	cancel   context.CancelCauseFunc
	running  sync.WaitGroup
	workers  []*worker
	turn     atomic.Uint32
	resolver *lookups
	forward  *forward.Server
	nothing  *matcher.Ruleset // refuses everything
	events   *control.Hub
	log      *slog.Logger

	registry      *prometheus.Registry
	dialSeconds   prometheus.Histogram
	switchSeconds prometheus.Histogram

	places   places
	began    time.Time
	draining atomic.Pointer[time.Time] // nil until [Server.Drain]: when it ends
	recent   recent

	mu       sync.Mutex // guards what follows
	sessions map[string]*Session

	several atomic.Bool // there are two sessions or more

	following sync.Mutex                          // one change of name servers at a time
	servers   atomic.Pointer[[]netip.AddrPort]    // those of this moment; nil for those of config
	own       atomic.Pointer[map[uint16]struct{}] // ports that the proxy listens on; replaced under mu
}

// New starts a server. It serves nothing before a session gets a listener and a policy.
func New(config Config) (*Server, error) {
	setDefault := func(value *int, to int) {
		if *value == 0 {
			*value = to
		}
	}
	setDefault(&config.HeaderLimit, 64<<10)
	setDefault(&config.LargeHeadStatus, 431)
	setDefault(&config.Workers, runtime.GOMAXPROCS(0))
	if config.HeaderTimeout == 0 {
		config.HeaderTimeout = 30 * time.Second
	}
	if config.DialTimeout == 0 {
		config.DialTimeout = 15 * time.Second
	}
	if config.Memory == 0 {
		config.Memory = debug.SetMemoryLimit(-1)
	}
	if config.MaxConnections == 0 {
		config.MaxConnections = max(64, min(descriptorLimit()/4, config.Memory/connectionBytes))
	}
	if config.MaxRequests == 0 {
		config.MaxRequests = max(64, config.Memory/requestBytes)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Registry == nil {
		config.Registry = prometheus.NewRegistry()
	}
	s := &Server{
		config: config, began: time.Now(), log: config.Logger, registry: config.Registry, events: new(control.Hub),
		sessions: make(map[string]*Session),
		dialSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_dial_seconds",
			Help: "Time to connect to an upstream.", Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9)}),
		switchSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_switch_seconds",
			Help: "Time to put a policy in force and cut what it refuses.", Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9)}),
	}
	s.resolver = newLookups(resolve.Options{Upstreams: config.Upstreams, Hosts: config.Hosts, Outgoing: config.Outgoing, Logger: config.Logger}, s.followUpstreams)
	s.context, s.cancel = context.WithCancelCause(context.Background())
	var err error
	if s.nothing, err = matcher.Compile(policy.Policy{}, config.Matcher); err != nil {
		return nil, err
	}
	for i := range config.Workers {
		w, err := newWorker(s, i)
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("starting event loop %d: %w", i, err)
		}
		s.workers = append(s.workers, w)
		s.running.Go(func() {
			if err := w.run(s.context); err != nil {
				s.log.Error("an event loop failed: everything it served is closed", "error", err)
			}
		})
	}
	s.forward = forward.New(forward.Options{
		Logger: config.Logger, HeaderLimit: config.HeaderLimit, HeaderTimeout: config.HeaderTimeout,
		Adapt: config.Personality.shape,
	})
	s.running.Go(func() { _ = s.forward.Run(s.context) })
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_build_info", Help: "Always 1; the labels tell what runs.",
		ConstLabels: prometheus.Labels{"version": config.Version, "go": runtime.Version()}}, func() float64 { return 1 })
	for _, c := range []prometheus.Collector{s, s.dialSeconds, s.switchSeconds, build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := s.registry.Register(c); err != nil {
			s.Close()
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return s, nil
}

var errClosing = errors.New("shutting down")

// Close resets every connection and returns when everything that the server started has ended.
func (s *Server) Close() {
	for _, session := range s.list() {
		session.close()
	}
	s.cancel(errClosing)
	s.running.Wait()
	s.resolver.Close()
}

func (s *Server) nextWorker() int { return int(s.turn.Add(1)) % len(s.workers) }

// list returns the sessions, sorted by id.
func (s *Server) list() []*Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Session, 0, len(s.sessions))
	for _, session := range s.sessions {
		all = append(all, session)
	}
	slices.SortFunc(all, func(a, b *Session) int { return strings.Compare(a.id, b.id) })
	return all
}

// Open returns the session of that id, made now if there is none.
func (s *Server) Open(id string) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if session := s.sessions[id]; session != nil {
		return session, nil
	}
	session, err := s.newSession(id)
	if err != nil {
		return nil, err
	}
	s.sessions[id] = session
	s.several.Store(len(s.sessions) > 1)
	return session, nil
}

// AddOwn tells of a socket that the proxy's process listens on: no client gets a connection to it, whatever its policy
// says. The sockets that are given to sessions are known already.
func (s *Server) AddOwn(listening net.Addr) {
	a, err := netip.ParseAddrPort(listening.String())
	if err != nil {
		return // not a network address
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	own := map[uint16]struct{}{a.Port(): {}}
	if old := s.own.Load(); old != nil {
		maps.Copy(own, *old)
	}
	s.own.Store(&own)
}

// listensOn reports whether the proxy listens on a port, on whatever address.
func (s *Server) listensOn(port uint16) bool {
	own := s.own.Load()
	if own == nil {
		return false
	}
	_, ok := (*own)[port]
	return ok
}

// isOwn reports whether an address and port is a listener of the proxy itself.
func (s *Server) isOwn(a netip.Addr, port uint16) bool {
	if !s.listensOn(port) {
		return false
	}
	if a.IsLoopback() || a.IsUnspecified() {
		return true
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		return true // it cannot be told: refuse
	}
	return slices.ContainsFunc(local, func(l net.Addr) bool {
		p, err := netip.ParsePrefix(l.String())
		return err == nil && p.Addr().Unmap() == a
	})
}

// run serves the worker's loop until ctx is done, and then resets what is left.
func (w *worker) run(ctx context.Context) error {
	err := w.Run(ctx)
	w.Each(func(h poll.Handler) {
		switch h := h.(type) {
		case *conn:
			h.abort()
		case *acceptor:
			h.close()
		}
	})
	w.pipes.close()
	return err
}
