package forward

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/elazarl/goproxy"

	"sluice/proxy/refusal"
)

// Request is what is judged of an HTTP request. Host and Port are the authority that the upstream will see, and the
// only one.
type Request struct {
	Host     string // lower case, no dot at the end, IPv6 addresses without brackets
	Port     uint16
	Protocol string // "http", or "ws" for a WebSocket upgrade
	Method   string
}

// Target returns host:port, with brackets round an IPv6 address.
func (r Request) Target() string {
	return net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port)))
}

// Gate judges the requests of one client connection. It is called once a request, one after the other.
type Gate interface {
	// Judge returns the flow that carries the request, or why it is refused; never neither. client is the connection
	// given to [Server.ServeConn]. ctx ends when the client is gone.
	Judge(ctx context.Context, client net.Conn, r Request) (Flow, *refusal.Refusal)
}

// Flow carries one request that a [Gate] allowed.
//
// To cut it, the caller closes the client connection and the dialled one (with SO_LINGER 0 for resets). That ends
// the request, whatever it is doing, and then the flow is closed.
type Flow interface {
	// Dial connects to an address that was judged. It is called at most twice: again if an upstream connection that
	// [Reuser] gave turned out to be closed. An error may be, or wrap, a *refusal.Refusal, which is then the answer.
	Dial(ctx context.Context) (net.Conn, error)
	// Close is called once, when the request has ended. The bytes are those of the upstream connection, heads included:
	// in from the upstream, out to it. The dialled connection has been closed before, unless the flow is a Reuser.
	Close(bytesIn, bytesOut int64)
}

// Reuser is a [Flow] that may go over a connection which an earlier flow of the same client connection dialled for
// the same authority. Without it each request has a connection of its own.
type Reuser interface {
	Flow
	// Reuse reports whether the flow may use conn, the result of the earlier flow's Dial: whether its peer is an
	// address that this flow might dial. If so, conn is what a cut must close from now on.
	Reuse(conn net.Conn) bool
}

// Failer is a [Flow] that wants to know how its request failed after it was allowed: it is told of such a refusal in
// place of [Conn.Refused], before Close.
type Failer interface {
	Flow
	Fail(*refusal.Refusal)
}

// Mode is where a client connection comes from.
type Mode uint8

const (
	// Explicit: the client knows that it talks to a proxy. Requests are in absolute form (RFC 9112 section 3.2.2).
	Explicit Mode = iota
	// Tunnel: the client believes that it talks to the origin (inside a CONNECT tunnel, or redirected). Requests are in
	// origin form; one in absolute form is judged by its own authority.
	Tunnel
)

// Conn says how one client connection is served.
type Conn struct {
	Gate Gate
	Mode Mode

	// Host and Port are where a Tunnel leads. Port stands for a missing port in the Host field; Host for a missing Host
	// field, which HTTP/1.0 allows (empty: such a request gets a 400). The gate is told if a request names another
	// host or port.
	Host string
	Port uint16

	// Authorize judges the Proxy-Authorization field of every request in Explicit mode; header is "" if there is none
	// or more than one. If nil, everybody is let in. It must take the same time for all wrong values.
	Authorize func(header string) bool
	// Realm is named in the 407 that follows.
	Realm string

	// Self says whether the proxy works, for an Explicit client that asks the proxy itself: OPTIONS * with Max-Forwards: 0
	// (RFC 9110 section 7.6.2), which needs no credentials. It gets a 204, or a 503 with the error. If nil, such a request
	// gets a 400.
	Self func(context.Context) error

	// Connect takes over when a later request of an Explicit connection is a CONNECT: conn is the connection as it was
	// given to ServeConn, read is what was read from it and not answered, beginning with the CONNECT. When it returns
	// the connection is closed. If nil, such a request gets a 400 and the connection is closed.
	Connect func(conn net.Conn, read []byte)

	// Refused is told of every refusal that the Gate did not return itself: malformed requests, missing credentials, and
	// (unless the flow is a Failer) failed dials and broken answers. Its Request is as far as it was understood. It may
	// be nil.
	Refused func(Request, *refusal.Refusal)
}

// Options of a [Server]. The zero value of each field is its default.
type Options struct {
	// Logger gets what went wrong inside, never what clients sent. Default: nothing is logged.
	Logger *slog.Logger
	// HeaderLimit is the size of a request head, in bytes, beyond which it gets a 431. Default 64 KiB.
	HeaderLimit int
	// HeaderTimeout is how long a request head may take from its first byte, before it gets a 408. Default 30 s.
	HeaderTimeout time.Duration
	// IdleTimeout is how long a connection may wait for the next request. Default 5 min. There is no limit on the time
	// that a request itself takes.
	IdleTimeout time.Duration
	// Adapt, if not nil, may change the Status, Text and NoBody of any refusal before it is sent: what clients of
	// another proxy expect.
	Adapt func(*refusal.Refusal)

	finTimeout time.Duration // for tests to shorten
}

// Server serves client connections. Its methods may be called by any number of goroutines.
type Server struct {
	options   Options
	http      http.Server
	engine    *goproxy.ProxyHttpServer
	transport *http.Transport
	conns     *handover

	mu     sync.Mutex // guards what follows
	ended  bool
	open   map[net.Conn]struct{}
	served sync.WaitGroup // one for each of open
}

// New returns a server that serves while [Server.Run] does.
func New(o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.HeaderLimit = cmp.Or(o.HeaderLimit, 64<<10)
	o.HeaderTimeout = cmp.Or(o.HeaderTimeout, 30*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 5*time.Minute)
	o.finTimeout = cmp.Or(o.finTimeout, finTimeout)
	t := newTransport()
	s := &Server{options: o, engine: newEngine(t), transport: t, conns: newHandover(), open: make(map[net.Conn]struct{})}
	s.http = http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Context().Value(clientKey{}).(*client).serveHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, clientKey{}, c.(*guard).client)
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				close(c.(*guard).ended)
			}
		},
		DisableGeneralOptionsHandler: true,
		// The guard keeps the limit; what it makes of a head may be a little longer.
		MaxHeaderBytes: o.HeaderLimit + len(substitute),
		Protocols:      t.Protocols,
		ErrorLog:       slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
	}
	return s
}

// ServeConn serves the requests that come on conn until it ends, and closes it. It waits for Run, if that has not
// been called yet.
func (s *Server) ServeConn(conn net.Conn, c Conn) {
	defer conn.Close()
	if !s.enter(conn) {
		return
	}
	defer s.leave(conn)
	g := newGuard(conn, s.options)
	g.client = &client{Conn: c, server: s, guard: g}
	if s.conns.give(g) {
		<-g.ended
		g.client.end()
	}
}

// Run serves until ctx is done; then it closes all connections and returns nil when every ServeConn has returned. It
// is called once.
func (s *Server) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.end)()
	err := s.http.Serve(s.conns)
	s.end()
	s.served.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serving HTTP: %w", err)
}

// Drain closes the connections that wait for a next request, and from now on each with its next answer.
func (s *Server) Drain() { s.http.SetKeepAlivesEnabled(false) }

func (s *Server) enter(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.open[c] = struct{}{}
	s.served.Add(1)
	return true
}

func (s *Server) leave(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	s.served.Done()
}

// end closes the clients' connections, which ends everything else.
func (s *Server) end() {
	s.mu.Lock()
	s.ended = true
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	_ = s.conns.Close()
	for _, c := range open {
		_ = c.Close()
	}
}
