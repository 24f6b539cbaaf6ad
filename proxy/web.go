package proxy

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/control"
	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/forward"
	"sluice/proxy/outgoing"
	"sluice/proxy/refusal"
	"sluice/proxy/resolve"
)

// handToWeb gives a client that asked for something else than a tunnel to the HTTP engine.
func (c *conn) handToWeb(head []byte) {
	if c.session.crowdedRequests() {
		c.protocol = protocolHTTP
		c.fail(statusBusy, reasonCapacity)
		return
	}
	first, fd, session := bytes.Clone(head), c.client.fd, c.session
	c.worker.Detach(c.client.token, fd)
	c.client.fd = -1
	session.count(1) // before c is counted off: [Server.Drain] must not see none
	c.close()
	session.serveWeb(fd, first, forward.Conn{Gate: &webGate{session: session}, Mode: forward.Explicit})
}

// handTunnelToWeb gives a tunnel in which the client speaks HTTP to the HTTP engine, so that every request in it is
// judged. The upstream that is open serves the first of them.
func (c *conn) handTunnelToWeb(first []byte) {
	if c.session.crowdedRequests() {
		c.refuseTunnel(reasonCapacity)
		return
	}
	// Where the address is refused only its requests decide, and where it is observed they tell of it by name.
	if c.decision.Verdict == matcher.Allow && !(c.direct && c.rules.set.Observed() != nil) {
		c.account(allowed, c.decision.Reason, "")
	}
	session := c.session
	gate := &webGate{session: session, tunnel: true, within: c.subject(), decision: c.decision}
	data := bytes.Clone(first)
	c.worker.Detach(c.client.token, c.client.fd)
	client := c.client.fd
	c.client.fd = -1
	switch {
	case c.up.fd < 0:
	case c.passed > 0:
		// It got a part of the first line already, and is of no use to an engine that sends whole requests. The end of
		// its stream must not look like that of the line.
		c.worker.Remove(c.up.token)
		reset(c.up.fd)
		c.up.fd = -1
	default:
		c.worker.Detach(c.up.token, c.up.fd)
		if upstream, err := socketConn(c.up.fd); err == nil {
			gate.upstream = session.web.add(session, upstream, nil, gate.within)
		}
		c.up.fd = -1
	}
	host, port := c.target.host, c.target.port
	if c.direct {
		host = "" // a request without a host names nothing that could be judged
	}
	session.count(1)
	c.close()
	// A switch that came meanwhile has not seen the upstream in either list.
	session.web.recheck(session, gate.upstream)
	session.serveWeb(client, data, forward.Conn{Gate: gate, Mode: forward.Tunnel, Host: host, Port: port})
}

// serveWeb serves HTTP on a client's socket, which it takes over; first was read from it. The caller has counted it as a
// connection.
func (s *Session) serveWeb(fd int, first []byte, how forward.Conn) {
	s.countRequests(1)
	s.server.running.Go(func() {
		defer s.count(-1)
		defer s.countRequests(-1)
		raw, err := socketConn(fd)
		if err != nil {
			return
		}
		client := &resumed{Conn: raw, tcp: raw, first: first}
		if how.Mode == forward.Explicit {
			how.Authorize = func(header string) bool { return s.auth.Load().allows([]byte(header)) }
			how.Realm = s.server.config.Personality.Realm
			how.Self = s.server.Works
			how.Connect = func(_ net.Conn, read []byte) { s.takeBack(raw, read) }
		}
		how.Refused = func(r forward.Request, no *refusal.Refusal) {
			e, _ := endpointOf(r.Host, r.Port)
			s.reportWeb(r.Protocol, e, netip.Addr{}, s.rules(), outcomeOf(no.Status), no.Reason, matcher.NoRule, no.Decision, time.Now(), 0, 0)
		}
		s.server.forward.ServeConn(client, how)
		if gate, ok := how.Gate.(*webGate); ok && gate.upstream != nil {
			gate.upstream.Close()
		}
	})
}

// outcomeOf tells a refusal from a failure by its status.
func outcomeOf(status int) outcome {
	if status >= 500 {
		return failed
	}
	return refused
}

// takeBack gives a client connection back to the event loops: it asks for a tunnel now.
func (s *Session) takeBack(client *net.TCPConn, read []byte) {
	fd, err := duplicate(client)
	if err != nil {
		return
	}
	w := s.server.workers[s.server.nextWorker()]
	// Only when it is counted there it is counted off here.
	if w.Do(context.Background(), func() { w.serve(fd, s, nil, read...) }) != nil {
		unix.Close(fd)
	}
}

// duplicate returns another descriptor of c's socket, non-blocking as all of Go's are.
func duplicate(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	if failed := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 3) }); failed != nil {
		return -1, failed
	}
	return fd, err
}

// socketConn makes a net.Conn of a TCP socket, and closes fd.
func socketConn(fd int) (*net.TCPConn, error) {
	file := os.NewFile(uintptr(fd), "tcp")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		c.Close()
		return nil, errors.New("not a TCP socket")
	}
	return tcp, nil
}

// resumed is a connection of which something was read before.
type resumed struct {
	net.Conn
	tcp   *net.TCPConn
	first []byte
}

func (r *resumed) Read(b []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(b, r.first)
		if r.first = r.first[n:]; len(r.first) == 0 {
			r.first = nil
		}
		return n, nil
	}
	return r.Conn.Read(b)
}

func (r *resumed) CloseWrite() error                           { return r.tcp.CloseWrite() }
func (r *resumed) SetLinger(seconds int) error                 { return r.tcp.SetLinger(seconds) }
func (r *resumed) SyscallConn() (raw syscall.RawConn, e error) { return r.tcp.SyscallConn() }

// webGate judges the requests of one client connection, one after the other.
type webGate struct {
	session *Session

	// Inside a tunnel only:
	tunnel   bool
	within   subject
	decision matcher.Decision
	upstream *webUpstream // opened by the CONNECT and not used yet
}

// Judge implements [forward.Gate].
func (g *webGate) Judge(ctx context.Context, client net.Conn, request forward.Request) (forward.Flow, *refusal.Refusal) {
	s := g.session
	if source := s.source.Load(); source != nil && !(*source).Unchanged() {
		(*source).Fresh()
	}
	f := &webFlow{gate: g, client: client, request: request, began: time.Now(), rules: s.rules(),
		decision: matcher.Decision{Rule: matcher.NoRule}}
	e, err := endpointOf(request.Host, request.Port)
	if err != nil {
		return nil, f.no(statusBad, refused, reasonMalformed)
	}
	f.subject = subject{target: e}
	ctx, cancel := context.WithTimeout(ctx, s.server.config.DialTimeout)
	defer cancel()
	if g.within.direct {
		return g.judgeDirect(ctx, f)
	}
	if g.tunnel {
		return g.judgeInside(ctx, f)
	}
	f.decision = f.rules.target(e)
	if f.decision.Verdict == matcher.Refuse {
		if f.decision.Reason == matcher.BadName {
			return nil, f.no(statusBad, refused, reasonMalformed)
		}
		return nil, f.no(statusForbidden, refused, f.decision.Reason)
	}
	answer := resolve.Answer{Addrs: []netip.Addr{e.addr}}
	if !e.addr.IsValid() {
		if answer, err = s.resolveFor(ctx, f.rules, e); err != nil {
			if now := s.rules(); now != f.rules { // a switch may have ended the look-up
				f.rules, f.decision = now, now.target(e)
			}
			if f.decision.Verdict == matcher.Refuse {
				return nil, f.no(statusForbidden, refused, f.decision.Reason)
			}
			return nil, f.no(lookupFailure(err))
		}
	}
	f.subject.chain = answer.Chain
	f.addresses, f.decision = s.reach(f.rules, f.decision, e, answer)
	if len(f.addresses) == 0 {
		return nil, f.no(statusForbidden, refused, f.decision.Reason)
	}
	return f, nil
}

// judgeInside judges a request in a tunnel: its authority must be the tunnel's own, or allowed at the tunnel's address.
func (g *webGate) judgeInside(ctx context.Context, f *webFlow) (forward.Flow, *refusal.Refusal) {
	s := g.session
	asked := f.subject.target
	f.subject = g.within
	f.addresses = []netip.Addr{g.within.address}
	if f.decision = s.flow(f.rules, f.subject); f.decision.Verdict == matcher.Refuse {
		return nil, f.no(statusForbidden, refused, f.decision.Reason)
	}
	if asked.port != g.within.target.port && f.rules.needsName(f.decision) {
		return nil, f.no(statusForbidden, refused, reasonOtherName)
	}
	shown := asked.host
	switch {
	case !asked.addr.IsValid():
	case asked.addr == g.within.target.addr:
		shown = ""
	case asked.addr == g.within.address && f.rules.policy.Mode != policy.Allowlist:
		shown = "" // in an allowlist it is no name, and its server may have others there
	}
	answer, known := s.resolver().Cached(shown)
	d, lookUp := f.rules.inner(f.subject, f.decision, shown, answer.Addrs, known)
	if lookUp {
		var err error // without an answer it has no address that could be right
		if answer, err = s.resolveFor(ctx, f.rules, endpoint{host: shown, port: asked.port}); errors.Is(err, resolve.ErrForbidden) {
			return nil, f.no(lookupFailure(err))
		}
		d, _ = f.rules.inner(f.subject, f.decision, shown, answer.Addrs, true)
	}
	if f.decision = d; d.Verdict != matcher.Allow {
		return nil, f.no(statusForbidden, refused, d.Reason)
	}
	if shown != g.within.target.host {
		f.subject.shown, f.subject.proven = shown, slices.Contains(answer.Addrs, g.within.address)
	}
	return f, nil
}

// judgeDirect judges a request of a redirected client by its authority, at the address that the client chose or at one
// that the authority stands for.
func (g *webGate) judgeDirect(ctx context.Context, f *webFlow) (forward.Flow, *refusal.Refusal) {
	s := g.session
	asked := f.subject.target
	f.subject = g.within
	f.subject.classified = true
	f.addresses = []netip.Addr{g.within.address}
	f.subject.shown = asked.host
	f.decision = s.direct(f.rules, f.subject)
	if asked.port != g.within.target.port && f.rules.needsDirectName(f.decision) {
		return nil, f.no(statusForbidden, refused, reasonOtherName)
	}
	if f.decision.Reason == reasonOtherAddress {
		e := endpoint{host: f.subject.shown, port: asked.port}
		answer, err := s.lookUp(ctx, f.rules, e)
		if f.decision = s.direct(f.rules, f.subject); errors.Is(err, resolve.ErrForbidden) {
			return nil, f.no(lookupFailure(err))
		} else if f.decision.Reason == reasonOtherAddress && err == nil {
			f.addresses, f.decision = s.reach(f.rules, f.rules.target(e), e, answer)
		}
	}
	if f.decision.Verdict != matcher.Allow || len(f.addresses) == 0 {
		return nil, f.no(statusForbidden, refused, f.decision.Reason)
	}
	return f, nil
}

// webFlow is one HTTP request that was allowed.
type webFlow struct {
	gate      *webGate
	client    net.Conn
	request   forward.Request
	began     time.Time
	rules     *rules
	decision  matcher.Decision
	subject   subject
	addresses []netip.Addr
	upstream  *webUpstream

	refusal *refusal.Refusal // the answer, if the flow failed after it was judged
}

// no counts and records that the request is not served, and returns what the client is told.
func (f *webFlow) no(status int, o outcome, reason matcher.Reason) *refusal.Refusal {
	s := f.gate.session
	e, _ := endpointOf(f.request.Host, f.request.Port)
	r := s.refusal(status, reason, e, f.rules.explain(f.decision, reason, e))
	s.reportWeb(f.request.Protocol, e, netip.Addr{}, f.rules, o, reason, f.decision.Rule, r.Decision, f.began, 0, 0)
	return r
}

// Dial implements [forward.Flow].
func (f *webFlow) Dial(ctx context.Context) (net.Conn, error) {
	s, g := f.gate.session, f.gate
	if opened := g.upstream; opened != nil {
		g.upstream = nil
		if slices.Contains(f.addresses, opened.address()) && f.use(opened) {
			return opened, nil
		}
		opened.Close()
	}
	began := time.Now()
	raw, done, err := dialAny(ctx, s.server.config.Outgoing, f.addresses, f.subject.target.port, s.server.config.DialTimeout, f.mayDial)
	switch {
	case errors.Is(err, errSwitched):
		to := f.subject
		to.address = f.addresses[0]
		f.rules = s.rules()
		if f.decision = s.flow(f.rules, to); f.decision.Verdict == matcher.Allow { // a third switch
			return nil, f.refuse(dialFailure(err))
		}
		return nil, f.refuse(statusForbidden, f.decision.Reason)
	case err != nil:
		return nil, f.refuse(dialFailure(err))
	}
	defer done()
	s.server.dialSeconds.Observe(time.Since(began).Seconds())
	f.subject.address = raw.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	opened := s.web.add(s, raw, f.client, f.subject)
	if !f.use(opened) {
		opened.reset(f.decision.Reason)
		return nil, f.refuse(statusForbidden, f.decision.Reason)
	}
	return opened, nil
}

// mayDial reports whether an address that was judged may be dialled by the rules in force: a switch may have come since.
// If so, one that comes from now on calls stop if it refuses the address, and waits for done.
func (f *webFlow) mayDial(a netip.Addr, stop func()) (done func(), may bool) {
	s := f.gate.session
	to := f.subject
	to.address = a
	done = s.web.addDial(to, stop)
	// A switch before this line is seen here, one after it sees the dial.
	now := s.rules()
	if now == f.rules {
		return done, true
	}
	if s.flow(now, to).Verdict != matcher.Allow {
		done()
		return nil, false
	}
	return done, true
}

// refuse returns what the client is told, and has the flow end with it.
func (f *webFlow) refuse(status int, reason matcher.Reason) *refusal.Refusal {
	e, _ := endpointOf(f.request.Host, f.request.Port)
	f.refusal = f.gate.session.refusal(status, reason, e, f.rules.explain(f.decision, reason, e))
	return f.refusal
}

// Fail implements [forward.Failer].
func (f *webFlow) Fail(r *refusal.Refusal) { f.refusal = r }

// use makes u the flow's upstream, if the rules in force allow that.
func (f *webFlow) use(u *webUpstream) bool {
	s := f.gate.session
	u.mu.Lock()
	f.subject.address = u.subject.address
	u.subject, u.client, u.busy, u.idle = f.subject, f.client, true, idleness{}
	gone := u.closed
	u.mu.Unlock()
	f.upstream = u
	// A switch before this line is seen here, one after it sees u.
	if now := s.rules(); now != f.rules {
		f.rules = now
		f.decision = s.flow(now, f.subject)
	}
	return !gone && f.decision.Verdict == matcher.Allow
}

// Reuse implements [forward.Reuser].
func (f *webFlow) Reuse(conn net.Conn) bool {
	u, ok := conn.(*webUpstream)
	if !ok {
		return false
	}
	return slices.Contains(f.addresses, u.address()) && f.use(u)
}

// Close implements [forward.Flow].
func (f *webFlow) Close(in, out int64) {
	o, reason, decision := allowed, f.decision.Reason, ""
	if f.refusal != nil {
		o, reason, decision = outcomeOf(f.refusal.Status), f.refusal.Reason, f.refusal.Decision
	}
	address := f.subject.address
	if u := f.upstream; u != nil {
		u.mu.Lock()
		u.busy = false
		if u.cut != "" {
			o, reason = cutOff, u.cut
		}
		u.mu.Unlock()
	}
	f.rules.received.Add(uint64(max(in, 0)))
	f.rules.sent.Add(uint64(max(out, 0)))
	asked, _ := endpointOf(f.request.Host, f.request.Port) // inside a tunnel, perhaps another name than the tunnel's
	f.gate.session.reportWeb(f.request.Protocol, asked, address, f.rules, o, reason, f.decision.Rule, decision,
		f.began, uint64(max(in, 0)), uint64(max(out, 0)))
}

func (s *Session) reportWeb(p string, e endpoint, a netip.Addr, r *rules, o outcome, reason matcher.Reason,
	rule matcher.RuleID, decision string, began time.Time, in, out uint64) {
	kind := protocolHTTP
	if p == "ws" {
		kind = protocolWebSocket
	}
	s.report(&report{rules: r, protocol: kind, target: e, address: a, outcome: o, reason: reason, rule: rule,
		decision: decision, in: in, out: out, began: began, now: time.Now()})
}

// endpointOf makes an endpoint of a host as the HTTP engine gives it, IPv6 addresses without brackets.
func endpointOf(host string, port uint16) (endpoint, error) {
	if a, err := netip.ParseAddr(host); err == nil && a.Zone() == "" {
		return endpoint{host: host, addr: a.Unmap(), port: port}, nil
	}
	return makeEndpoint(host, port)
}

// webUpstream is an upstream connection of the HTTP engine. It belongs to one client connection.
type webUpstream struct {
	*net.TCPConn
	session *Session
	since   time.Time
	id      uint64
	moved   atomic.Uint64 // bytes both ways

	mu      sync.Mutex // guards what follows
	idle    idleness
	client  net.Conn
	subject subject
	busy    bool // a request is under way
	cut     matcher.Reason
	closed  bool
}

func (u *webUpstream) address() netip.Addr {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.subject.address
}

// Close closes the connection and takes it out of the session's list, once its server has everything: what the kernel
// still held, or had sent and would send again, would go on after a switch that refuses it.
func (u *webUpstream) Close() error {
	u.mu.Lock()
	was := u.closed
	u.closed = true
	u.mu.Unlock()
	if was {
		return net.ErrClosed
	}
	if !u.undelivered() {
		return u.end()
	}
	if u.session.server.context.Err() != nil {
		_ = u.SetLinger(0)
		return u.end()
	}
	_ = u.SetDeadline(time.Now()) // nothing is written or read any more
	_ = u.CloseWrite()
	u.session.count(1)
	u.session.server.running.Go(func() {
		defer u.session.count(-1)
		u.finish()
	})
	return nil
}

// finishTime is how long an upstream may take to read what its client has left.
const finishTime = time.Minute

// finish ends the connection when its server has everything, or a switch has ended it.
func (u *webUpstream) finish() {
	ctx, cancel := context.WithTimeout(u.session.server.context, finishTime)
	defer cancel()
	turn := time.NewTicker(endingTime)
	defer turn.Stop()
	for u.undelivered() {
		select {
		case <-turn.C:
		case <-ctx.Done():
			_ = u.SetLinger(0)
			_ = u.end()
			return
		}
	}
	_ = u.end()
}

// undelivered reports whether the kernel would still send something of it.
func (u *webUpstream) undelivered() (would bool) {
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { would = undelivered(int(fd)) })
	return would
}

func (u *webUpstream) end() error {
	u.session.web.remove(u)
	return u.TCPConn.Close()
}

// reset ends the upstream, and the client too if a request is under way on it.
func (u *webUpstream) reset(reason matcher.Reason) {
	u.mu.Lock()
	u.cut, u.closed = reason, true
	client := u.client
	if !u.busy {
		client = nil
	}
	u.mu.Unlock()
	// The client first: the engine closes it in order as soon as it sees the upstream fail.
	if c, ok := client.(interface{ SetLinger(int) error }); ok {
		_ = c.SetLinger(0)
		_ = client.Close()
	}
	_ = u.SetLinger(0)
	_ = u.end()
}

// webFlows are the upstream connections of a session's HTTP clients.
type webFlows struct {
	mu    sync.Mutex // guards what follows
	open  map[*webUpstream]struct{}
	dials map[*webDial]struct{}
}

// webDial is a connect that is under way.
type webDial struct {
	subject subject
	stop    func()
	done    chan struct{} // closed once it has failed, or its connection is in open or closed
}

// addDial has a switch that refuses subject call stop, and wait until done is called.
func (w *webFlows) addDial(subject subject, stop func()) (done func()) {
	d := &webDial{subject, stop, make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dials == nil {
		w.dials = make(map[*webDial]struct{})
	}
	w.dials[d] = struct{}{}
	return func() {
		w.mu.Lock()
		delete(w.dials, d)
		w.mu.Unlock()
		close(d.done)
	}
}

// stopDials ends the connects that r refuses, which the kernel would go on to send.
func (w *webFlows) stopDials(s *Session, r *rules) {
	w.mu.Lock()
	dials := slices.Collect(maps.Keys(w.dials))
	w.mu.Unlock()
	dials = slices.DeleteFunc(dials, func(d *webDial) bool { return s.flow(r, d.subject).Verdict == matcher.Allow })
	for _, d := range dials {
		d.stop()
	}
	for _, d := range dials {
		<-d.done
	}
}

func (w *webFlows) add(s *Session, c *net.TCPConn, client net.Conn, subject subject) *webUpstream {
	u := &webUpstream{TCPConn: c, session: s, since: time.Now(), id: flowIDs.Add(1), client: client, subject: subject}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = make(map[*webUpstream]struct{})
	}
	w.open[u] = struct{}{}
	s.flows.Add(1)
	return u
}

func (w *webFlows) remove(u *webUpstream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.open[u]; ok {
		delete(w.open, u)
		u.session.flows.Add(-1)
	}
}

func (w *webFlows) all() []*webUpstream {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*webUpstream, 0, len(w.open))
	for u := range w.open {
		all = append(all, u)
	}
	return all
}

// rejudge judges every upstream connection under r, those that are being opened too, and resets those that r refuses.
func (w *webFlows) rejudge(s *Session, r *rules) (cut, kept int) {
	w.stopDials(s, r)
	for _, u := range w.all() {
		if w.judge(s, r, u) {
			kept++
		} else {
			cut++
		}
	}
	return cut, kept
}

func (w *webFlows) judge(s *Session, r *rules, u *webUpstream) bool {
	u.mu.Lock()
	subject := u.subject
	u.mu.Unlock()
	d := s.flow(r, subject)
	if d.Verdict != matcher.Allow {
		u.reset(d.Reason)
		return false
	}
	return true
}

// recheck judges one upstream under the rules in force.
func (w *webFlows) recheck(s *Session, u *webUpstream) {
	if u != nil {
		w.judge(s, s.rules(), u)
	}
}

func (w *webFlows) describe() (all []control.Flow) {
	for _, u := range w.all() {
		u.mu.Lock()
		all = append(all, control.Flow{ID: formatID(u.id), Protocol: string(protocolHTTP), Target: u.subject.target.String(),
			Address: joinAddress(u.subject.address, u.subject.target.port), Since: u.since.Round(time.Millisecond)})
		u.mu.Unlock()
	}
	return all
}

var errSwitched = errors.New("no address may be dialled any more")

// dialAny connects to one of addrs, all judged, as [race] does for tunnels. It asks may before each, one after the other.
// What may says no to is passed over; if that are all, the error is errSwitched. To what it says yes to, the connect ends
// when stop is called; then done is. The caller calls that of the connection that is returned.
func dialAny(ctx context.Context, own *outgoing.Sockets, addrs []netip.Addr, port uint16, limit time.Duration,
	may func(a netip.Addr, stop func()) (done func(), ok bool)) (_ *net.TCPConn, done func(), _ error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type result struct {
		conn net.Conn
		done func()
		err  error
	}
	addrs = interleave(addrs)
	results := make(chan result, len(addrs))
	pending, next := 0, 0
	start := func() {
		for next < len(addrs) {
			ctx, stop := context.WithCancelCause(ctx)
			to := netip.AddrPortFrom(addrs[next], port)
			done, ok := may(addrs[next], func() { stop(errSwitched) })
			next++
			if !ok {
				stop(nil)
				continue
			}
			pending++
			go func() {
				defer stop(nil)
				c, err := own.DialTCP(ctx, to)
				if err != nil {
					done()
					if context.Cause(ctx) == errSwitched {
						err = errSwitched
					}
				}
				results <- result{c, done, err}
			}()
			return
		}
	}
	if start(); pending == 0 {
		return nil, nil, errSwitched
	}
	stagger := time.NewTicker(attemptDelay)
	defer stagger.Stop()
	for {
		select {
		case <-stagger.C:
			if next < len(addrs) && pending < maxAttempts {
				start()
			}
		case r := <-results:
			pending--
			if r.err == nil {
				cancel() // the losers end; one that connected meanwhile is closed
				go func() {
					for range pending {
						if late := <-results; late.err == nil {
							late.conn.Close()
							late.done()
						}
					}
				}()
				return r.conn.(*net.TCPConn), r.done, nil
			}
			if start(); pending == 0 {
				return nil, nil, r.err
			}
		}
	}
}
