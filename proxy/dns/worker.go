package dns

import (
	"net/netip"
	"sync"
	"time"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnswire"
	"sluice/proxy/udpbatch"
	"sluice/proxy/upstream"
)

var writers = sync.Pool{New: func() any { return new(udpbatch.Writer) }}

// worker handles the queries of one goroutine.
type worker struct {
	s      *Server
	asks   *upstream.Client
	sender *upstream.Sender // of asks
	q      *query           // the next one
	now    time.Duration
	room   [dnswire.OPTLen]byte
}

func (s *Server) newWorker() *worker {
	return &worker{s: s, q: newQuery()}
}

// begin is to be called before the first of some queries, with Server.switching held. Sender.Flush comes after the last.
func (w *worker) begin() {
	w.now = w.s.now()
	if now := w.s.asking.Load(); now != w.asks {
		w.asks, w.sender = now, now.NewSender()
	}
}

func (w *worker) release() { w.q.release() }

// handle judges the query in pkt, which came from peer by udp or from tcp. It appends the answer to dst, if there is
// one already; else it has sent the query on or dropped it. Server.switching must be held.
func (w *worker) handle(dst, pkt []byte, udp *udpConn, peer *udpbatch.Peer, tcp *tcpConn) []byte {
	q := w.q
	q.udp, q.tcp, q.start = udp, tcp, w.now
	if peer != nil {
		q.peer = *peer
	}
	rcode := q.read(pkt)
	switch rcode {
	case readable:
	case unreadable:
		return dst
	default:
		d := matcher.Decision{Reason: ReasonMalformed, Rule: matcher.NoRule}
		if rcode != dnswire.RcodeFormErr {
			d.Reason = ReasonUnsupported
		}
		return w.reply(dst, d, rcode, noExtended)
	}
	rules := w.s.opts.Rules()
	if w.s.opts.Open != nil && rules.Ruleset != nil && q.Question.Class == dnswire.ClassIN {
		if addrs := w.s.opts.Open(q.name); len(addrs) > 0 {
			q.judged(&rules, matcher.Decision{Verdict: matcher.Allow, Rule: matcher.NoRule})
			dst, d := q.appendLocal(dst, func(netip.Addr) matcher.Decision { return q.decision }, addrs)
			w.s.observe(q, d, dnswire.RcodeNoError, w.now)
			return dst
		}
	}
	d, what := decide(&rules, q)
	q.judged(&rules, d)
	if what != forward {
		rcode, extended := what.code()
		return w.reply(dst, d, rcode, extended)
	}
	if w.s.opts.Hosts != nil {
		if addrs := w.s.opts.Hosts(q.name); len(addrs) > 0 {
			dst, d = q.appendLocal(dst, func(a netip.Addr) matcher.Decision { return rules.Ruleset.Answer(d, a) }, addrs)
			w.s.observe(q, d, dnswire.RcodeNoError, w.now)
			return dst
		}
	}
	if rules.lacks(q.Question.Type) {
		d.Reason = ReasonNoRoute
		return w.reply(dst, d, dnswire.RcodeNoError, noExtended)
	}
	if rules.Ruleset.Mode() == policy.Allowlist {
		q.withoutDO() // what is filtered cannot be verified
	}
	at := len(dst)
	dst, ok := w.s.cache.appendTo(dst, q.Msg[2:], q.generation, w.now)
	if ok {
		return w.fromCache(dst, at, d)
	}
	if !rules.Budget.Spend(d, q.name, 1) {
		d = matcher.Decision{Reason: ReasonNameBudget, Rule: d.Rule}
		return w.reply(dst, d, dnswire.RcodeNXDomain, extendedBlocked)
	}
	q.Client = q.client().Addr()
	if err := w.sender.Add(&q.Query); err != nil {
		d, extended := failure(err)
		return w.reply(dst, d, dnswire.RcodeServFail, extended)
	}
	w.q = newQuery()
	return dst
}

func (w *worker) fromCache(dst []byte, at int, d matcher.Decision) []byte {
	q := w.q
	msg := dst[at:]
	rcode := int(msg[3] & dnswire.RcodeMask)
	finish(q, msg)
	if q.tcp == nil {
		msg = truncate(w.room[:], msg, q.size)
	}
	w.s.observe(q, d, rcode, w.now)
	return dst[:at+len(msg)]
}

func (w *worker) reply(dst []byte, d matcher.Decision, rcode, extended int) []byte {
	dst = w.q.appendReply(dst, rcode, extended, w.q.told(d.Reason))
	w.s.observe(w.q, d, rcode, w.now)
	return dst
}

// judge judges a query again, by new rules.
func (s *Server) judge(rules *Rules, q *query) (matcher.Decision, action) {
	d, what := decide(rules, q)
	q.judged(rules, d)
	if what == forward && !rules.Budget.Spend(d, q.name, 1) {
		return matcher.Decision{Reason: ReasonNameBudget, Rule: d.Rule}, refuse
	}
	return d, what
}

// code returns the answer that an action other than forward stands for.
func (a action) code() (rcode, extended int) {
	switch a {
	case notOffered:
		return dnswire.RcodeRefused, extendedNotSupported
	case noData:
		return dnswire.RcodeNoError, noExtended
	case noSuchName:
		return dnswire.RcodeNXDomain, noExtended
	}
	return dnswire.RcodeNXDomain, extendedBlocked
}
