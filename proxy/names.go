package proxy

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"time"

	"sluice/control"
	"sluice/matcher"
	"sluice/proxy/audit"
	"sluice/proxy/dns"
	"sluice/proxy/refusal"
	"sluice/proxy/resolve"
)

// ServeDNS filters DNS on a UDP socket and a TCP listener, which it takes over, until the session ends. Either may be
// nil.
func (s *Session) ServeDNS(udp *net.UDPConn, tcp *net.TCPListener) {
	filter := s.names()
	s.switching.Lock()
	defer s.switching.Unlock()
	if s.ended || filter == nil {
		if udp != nil {
			udp.Close()
		}
		if tcp != nil {
			tcp.Close()
		}
		return
	}
	ended, end := context.WithCancel(s.server.context)
	s.closing = append(s.closing, end)
	serve := func(kind string, c interface{ Close() error }, at net.Addr, serve func(context.Context) error) {
		s.server.AddOwn(at)
		ctx, stop := context.WithCancel(ended)
		s.addLocked(kind, at, func(bool) { stop() })
		s.server.running.Go(func() {
			defer c.Close()
			if err := serve(ctx); err != nil && ctx.Err() == nil {
				s.server.log.Error("the DNS filter has stopped: restart the proxy", "session", s.label(), "error", err)
			}
			select { // for queries that are under way
			case <-ended.Done():
			case <-time.After(answerTime):
			}
		})
	}
	if udp != nil {
		serve(control.KindUDP, udp, udp.LocalAddr(), func(ctx context.Context) error { return filter.ServeUDP(ctx, udp) })
	}
	if tcp != nil {
		serve("dns", tcp, tcp.Addr(), func(ctx context.Context) error { return filter.ServeTCP(ctx, tcp) })
	}
}

// names returns the session's DNS filter, nil if the session has ended.
func (s *Session) names() *dns.Server {
	s.switching.Lock()
	defer s.switching.Unlock()
	if s.ended {
		return nil
	}
	if filter := s.dns.Load(); filter != nil {
		return filter
	}
	return s.makeFilter()
}

// freshTime is how long the DNS filter goes by the policy file, and by the name servers, as they were: short beside what a
// query takes on its way.
const freshTime = time.Millisecond

// freshen brings the rules up to date with the policy file, and the name servers with the machine's, if they are followed.
func (s *Session) freshen() {
	source := s.source.Load()
	if source == nil && s.server.config.UpstreamsChanged == nil {
		return
	}
	now := time.Since(s.server.began)
	if now-time.Duration(s.fresh.Load()) < freshTime {
		return
	}
	s.server.followUpstreams()
	if source != nil && !(*source).Unchanged() {
		(*source).Fresh()
	}
	s.fresh.Store(int64(now))
}

// learn remembers that the container was told that name has an address, if connections are judged by that.
func (s *Session) learn(name []byte, a netip.Addr) {
	if s.redirects.Load() {
		s.learned.add(string(name), []netip.Addr{a})
	}
}

// observe counts a query, and records it if it was refused.
func (s *Session) observe(e *dns.Event) {
	r := s.rules()
	o := allowed
	if e.Decision.Verdict == matcher.Refuse {
		o = refused
	}
	reason, rule := e.Decision.Reason, r.ruleText(e.Decision.Rule)
	if watched := r.set.Observed(); o == allowed && watched != nil {
		if d := watched.Query(e.Name()); d.Verdict == matcher.Refuse {
			o, reason, rule = observed, d.Reason, ruleText(watched, d.Rule)
		}
	}
	s.tally.queries.at(queryKey{r.phase, o, reason}).Add(1)
	if o == allowed || s.server.config.Audit == nil && !s.server.events.Active() {
		return
	}
	now, about := time.Now(), s.about()
	s.server.write(&audit.Record{
		Time: now, Container: about.name, ContainerID: about.id, Phase: r.phase.String(), Generation: e.Generation,
		Protocol: "dns-" + e.Proto.String(), Target: e.Name(), Port: 53, Verdict: string(o), Reason: string(reason),
		Rule: rule, Decision: cmp.Or(e.ID, refusal.NewDecisionID()),
		Took: e.Latency,
	})
}

// lookUp looks up the host of an endpoint that r allows, and remembers what it stands for.
func (s *Session) lookUp(ctx context.Context, r *rules, e endpoint) (resolve.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.server.config.DialTimeout)
	defer cancel()
	answer, err := s.resolveFor(ctx, r, e)
	if err == nil {
		s.learned.add(e.host, answer.Addrs)
	}
	return answer, err
}
