package proxy

import (
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice/control"
	"sluice/matcher"
	"sluice/proxy/audit"
	"sluice/proxy/refusal"
)

const (
	statusBad       = http.StatusBadRequest
	statusForbidden = http.StatusForbidden
	statusAuth      = http.StatusProxyAuthRequired
	statusSlow      = http.StatusRequestTimeout
	statusGateway   = http.StatusBadGateway
	statusBusy      = http.StatusServiceUnavailable
	statusTimeout   = http.StatusGatewayTimeout
)

// refuse answers the client that it may not, and why.
func (c *conn) refuse(status int, reason matcher.Reason) { c.answer(status, refused, reason) }

// fail answers the client that what it may do could not be done.
func (c *conn) fail(status int, reason matcher.Reason) { c.answer(status, failed, reason) }

func (c *conn) answer(status int, o outcome, reason matcher.Reason) {
	if c.direct { // there is no way to tell it why but the audit
		c.account(o, reason, refusal.NewDecisionID())
		c.abort()
		return
	}
	c.timer.Stop()
	c.stopDialling()
	c.worker.release(c.in)
	c.in = nil
	if c.rules == nil {
		c.rules = c.session.rules()
	}
	text := c.rules.explain(c.decision, reason, c.target)
	r := c.session.refusal(status, reason, c.target, text)
	c.account(o, reason, r.Decision)
	c.session.server.config.Personality.shape(r)
	c.client.held = c.worker.keep(nil, r.AppendResponse(c.worker.scratch[:0])) // sent to the client itself, by flushRefusal
	c.client.off = 0
	c.client.writable = true
	c.state = refusing
	c.worker.lingers.Start(&c.timer, c)
	c.flushRefusal()
}

// refuseTunnel ends an open tunnel for what the client showed in it. There is no way to tell it why but the audit.
func (c *conn) refuseTunnel(reason matcher.Reason) {
	c.account(refused, reason, refusal.NewDecisionID())
	c.abort()
}

// flushRefusal writes the answer, ends the stream behind it and waits for the client to read it.
func (c *conn) flushRefusal() {
	if _, err := c.client.flush(&c.client); err != nil {
		c.close()
		return
	}
	if c.client.holds() {
		return
	}
	c.linger()
}

// linger waits for the client to close, throwing away what it still sends: closing with unread bytes would be a reset
// that overtakes the answer.
func (c *conn) linger() {
	c.state = lingering
	c.dropUpstream()
	c.unlist()
	shutWrite(c.client.fd)
	c.worker.lingers.Start(&c.timer, c)
	c.drain()
}

const (
	// forgetBytes is what a client that lingers may have thrown away at a turn.
	forgetBytes = 256 << 10
	// forgetMost is what a refused client may send before it is cut off, whether it has read the answer or not.
	forgetMost = 512 << 10
)

// drain forgets what comes until the client closes. One that goes on sending is closed by the timer, or, if it was refused
// and not its upstream left it, once it has sent too much.
func (c *conn) drain() {
	n, err := forgetSocket(c.client.fd, forgetBytes)
	c.forgotten += n
	switch {
	case err == unix.EAGAIN:
	case err != nil || n == 0, c.forgotten > forgetMost && !c.cutShort:
		c.close()
	default:
		c.worker.Again(c.client.token)
	}
}

// refusal makes the answer to a client, with a fresh decision id. The personality has not shaped it yet.
func (s *Session) refusal(status int, reason matcher.Reason, e endpoint, text string) *refusal.Refusal {
	r := &refusal.Refusal{Status: status, Reason: reason, Decision: refusal.NewDecisionID(), Text: text}
	if e.host != "" {
		r.Target = e.String()
	}
	r.Kind = kinds[reason]
	return r
}

// account counts what became of the connection and writes its audit record.
func (c *conn) account(o outcome, reason matcher.Reason, decision string) {
	if c.protocol == "" {
		c.protocol = protocolConnect
	}
	if c.rules == nil {
		c.rules = c.session.rules()
	}
	target := c.target
	if c.direct && c.shown != "" {
		target = endpoint{host: c.shown, port: c.target.port}
	}
	c.session.report(&report{
		rules: c.rules, protocol: c.protocol, target: target, address: c.address, outcome: o, reason: reason,
		rule: c.decision.Rule, decision: decision, in: c.bytesIn, out: c.bytesOut, began: c.opened, now: c.worker.Now(),
	})
}

// report is one audit record to be.
type report struct {
	rules      *rules
	protocol   protocol
	target     endpoint
	address    netip.Addr
	outcome    outcome
	reason     matcher.Reason
	rule       matcher.RuleID
	decision   string
	in, out    uint64
	began, now time.Time
}

// report counts r and writes it to the audit.
func (s *Session) report(r *report) {
	if s.hidden {
		return
	}
	rule := r.rules.ruleText(r.rule)
	if r.outcome == allowed {
		rule = r.observe(rule)
	}
	s.tally.connections.at(connectionKey{r.rules.phase, r.protocol, r.outcome, r.reason}).Add(1)
	if r.outcome == cutOff {
		s.tally.cut.Add(1)
	}
	if s.server.config.Audit == nil && !s.server.events.Active() {
		return
	}
	about := s.about()
	s.server.write(&audit.Record{
		Time: r.now, Container: about.name, ContainerID: about.id, Phase: r.rules.phase.String(),
		Generation: r.rules.generation, Protocol: string(r.protocol), Target: r.target.host, Port: r.target.port,
		Address: r.address, Verdict: string(r.outcome), Reason: string(r.reason), Rule: rule, Decision: r.decision,
		BytesIn: r.in, BytesOut: r.out, Took: r.now.Sub(r.began),
	})
}

// write hands a record to the audit and to whoever listens to events.
func (s *Server) write(r *audit.Record) {
	if s.config.Audit != nil {
		s.config.Audit.Write(r)
	}
	if s.events.Active() {
		s.events.Publish(control.Event{
			Time: r.Time, Container: r.Container, ContainerID: r.ContainerID, Phase: r.Phase, Generation: r.Generation,
			Protocol: r.Protocol, Target: r.Target, Port: r.Port, Address: addressText(r.Address), Verdict: r.Verdict,
			Reason: r.Reason, Rule: r.Rule, Decision: r.Decision, BytesIn: r.BytesIn, BytesOut: r.BytesOut, Milliseconds: float64(r.Took) / float64(time.Millisecond),
		})
	}
}

func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
