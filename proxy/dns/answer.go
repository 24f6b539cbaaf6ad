package dns

import (
	"encoding/binary"
	"errors"
	"time"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnswire"
	"sluice/proxy/udpbatch"
	"sluice/proxy/upstream"
)

// sink takes what becomes of the queries that were sent on, for one goroutine of the client, under its gate.
type sink struct {
	s     *Server
	of    *upstream.Client
	now   time.Duration // of the first call after Flush
	timed bool
	v     survey
	udp   *udpConn         // where what w holds goes; nil if there is nothing
	w     *udpbatch.Writer // nil if udp is
	send  func(fd uintptr) bool
	room  [dnswire.OPTLen]byte
}

// Answer implements [upstream.Sink].
func (k *sink) Answer(uq *upstream.Query, msg []byte) {
	q := uq.Owner.(*query)
	rules := k.s.opts.Rules()
	if !k.stillForwarded(&rules, q) {
		return
	}
	msg, ttl, err := k.filter(&rules, q, msg)
	switch {
	case err != nil:
		k.reply(q, matcher.Decision{Verdict: matcher.Allow, Reason: ReasonFailed, Rule: q.decision.Rule},
			dnswire.RcodeServFail, extendedNoReachable)
		return
	case k.v.alias:
		k.reply(q, k.v.dropped, dnswire.RcodeNXDomain, extendedBlocked)
		return
	}
	if ttl > 0 && k.of == k.s.asking.Load() {
		k.s.cache.put(q.Msg[2:], q.generation, msg, k.v.ttls, k.clock(), ttl)
	}
	d := q.decision
	if !k.v.final && q.dropped > 0 {
		d = k.v.dropped
	}
	rcode := int(msg[3] & dnswire.RcodeMask)
	if k.v.hasOPT {
		rcode |= int(msg[k.v.opt.TTL]) << 4
	}
	finish(q, msg)
	k.s.learn(q, msg)
	k.deliver(q, msg, d, rcode)
}

// Fail implements [upstream.Sink].
func (k *sink) Fail(uq *upstream.Query, err error) {
	q := uq.Owner.(*query)
	rules := k.s.opts.Rules()
	if !k.stillForwarded(&rules, q) {
		return
	}
	d, extended := failure(err)
	d.Rule = q.decision.Rule
	k.reply(q, d, dnswire.RcodeServFail, extended)
}

// failure says why an allowed query has no answer.
func failure(err error) (d matcher.Decision, extended int) {
	d, extended = matcher.Decision{Verdict: matcher.Allow, Reason: ReasonFailed}, extendedNoReachable
	switch {
	case errors.Is(err, upstream.ErrBusy):
		d.Reason, extended = ReasonCapacity, extendedNotReady
	case errors.Is(err, upstream.ErrTimeout):
		d.Reason = ReasonTimeout
	}
	return d, extended
}

// stillForwarded judges q again if the rules have changed since, and answers it if it would not be sent on now.
func (k *sink) stillForwarded(rules *Rules, q *query) bool {
	if q.judgedBy(rules) {
		return true
	}
	d, what := k.s.judge(rules, q)
	if what == forward {
		return true
	}
	rcode, extended := what.code()
	k.reply(q, d, rcode, extended)
	return false
}

// filter takes out of msg what the rules do not let stay, sets its TTLs, and says how long it may be kept. What it
// finds is in k.v; if that is an alias of a denied name, there is no msg.
func (k *sink) filter(rules *Rules, q *query, msg []byte) ([]byte, time.Duration, error) {
	v := &k.v
	if msg[2]&dnswire.FlagTruncated != 0 && q.tcp != nil {
		return nil, 0, errAnswer // there is no more to be had, and TCP knows no truncation
	}
	if err := v.walk(rules, q, msg); err != nil {
		return nil, 0, err
	}
	if v.alias {
		return nil, 0, nil
	}
	if v.change {
		dropped := v.dropped
		var err error
		if msg, q.dropped, err = rewrite(rules, q, msg); err != nil {
			return nil, 0, err
		}
		// It was encoded by other means than it was judged by, so look again.
		if err = v.walk(rules, q, msg); err != nil || v.change {
			return nil, 0, errAnswer
		}
		v.dropped = dropped
	}
	msg = k.cut(rules, q, msg)
	if len(msg) > maxMessage {
		return nil, 0, errAnswer
	}
	msg[2] |= dnswire.FlagResponse
	msg[3] |= dnswire.FlagRA
	return msg, v.setTTLs(msg), nil
}

// cut takes away what stands behind the part of msg that was judged: in list modes other servers' names and
// addresses. It leaves the SOA record of a negative answer, and the OPT record for a client that speaks EDNS.
func (k *sink) cut(rules *Rules, q *query, msg []byte) []byte {
	v := &k.v
	end := v.end
	listMode := rules.Ruleset.Mode() != policy.Public
	switch {
	case listMode && v.final:
		end = v.answerEnd
	case listMode, v.hasOPT && !q.edns:
		end = v.authorityEnd
	}
	if v.hasOPT {
		binary.BigEndian.PutUint16(msg[v.opt.TTL-2:], ownSize)
	}
	if v.hasOPT == q.edns && (end == v.end || q.edns && end == v.opt.Name && v.opt.End == v.end) {
		return msg[:v.end]
	}
	additional := 0
	if end == v.end {
		additional = dnswire.Count(msg, 3)
	}
	if end == v.answerEnd {
		dnswire.SetCount(msg, 2, 0)
	}
	left := end
	switch {
	case !q.edns:
		v.hasOPT = false
	case v.hasOPT:
		length := v.opt.End - v.opt.Name
		copy(msg[end:], msg[v.opt.Name:v.opt.End])
		v.opt.TTL += end - v.opt.Name
		v.opt.Name, v.opt.End = end, end+length
		left, additional = v.opt.End, 1
	default: // one for our part (RFC 6891 section 6.1.1)
		msg = q.appendOPT(msg[:end], 0, nil)
		left, additional = len(msg), additional+1
	}
	dnswire.SetCount(msg, 3, additional)
	kept := v.ttls[:0]
	for _, ttl := range v.ttls {
		if int(ttl) < end {
			kept = append(kept, ttl)
		}
	}
	v.ttls, v.end = kept, left
	return msg[:left]
}

// setTTLs gives all records of the answer section the lowest TTL there, so that a client never knows a part of a
// chain of aliases only, and bounds all others. It returns how long the answer may be kept.
func (v *survey) setTTLs(msg []byte) time.Duration {
	const most = uint32(ttlMax / time.Second)
	lowest := min(v.lowest, most)
	for i, at := range v.ttls {
		b := msg[at:]
		if i < v.answers {
			binary.BigEndian.PutUint32(b, lowest)
		} else if ttl := binary.BigEndian.Uint32(b); ttl > most {
			if ttl > 1<<31-1 {
				ttl = 0 // RFC 2181 section 8
			}
			binary.BigEndian.PutUint32(b, min(ttl, most))
		}
	}
	rcode := msg[3] & dnswire.RcodeMask
	switch {
	case msg[2]&dnswire.FlagTruncated != 0, v.hasOPT && msg[v.opt.TTL] != 0:
		return 0
	case rcode == dnswire.RcodeNoError && v.final:
		return time.Duration(lowest) * time.Second
	case rcode == dnswire.RcodeNoError, rcode == dnswire.RcodeNXDomain:
		return min(time.Duration(min(v.negative, lowest))*time.Second, negativeMax)
	}
	return 0
}

// finish gives an answer the id and the spelling of the question that the client sent.
func finish(q *query, msg []byte) {
	msg[0], msg[1] = q.id[0], q.id[1]
	copy(msg[dnswire.HeaderLen:], q.asked)
}

// reply answers q without records.
func (k *sink) reply(q *query, d matcher.Decision, rcode, extended int) {
	var dst []byte
	if q.udp != nil {
		dst = k.writer(q.udp).Scratch()
	}
	k.deliver(q, q.appendReply(dst, rcode, extended, q.told(d.Reason)), d, rcode)
}

// deliver ends q: msg is its answer.
func (k *sink) deliver(q *query, msg []byte, d matcher.Decision, rcode int) {
	k.s.observe(q, d, rcode, k.clock())
	if q.tcp != nil {
		q.tcp.answer(msg)
	} else if msg = truncate(k.room[:], msg, q.size); msg != nil {
		k.writer(q.udp).Add(msg, &q.peer)
	}
	q.release()
}

func (k *sink) clock() time.Duration {
	if !k.timed {
		k.now, k.timed = k.s.now(), true
	}
	return k.now
}

// writer returns a writer with room for one more packet to a client of udp.
func (k *sink) writer(udp *udpConn) *udpbatch.Writer {
	if k.udp != nil && (k.udp != udp || k.w.Full()) {
		k.Flush()
	}
	if k.udp == nil {
		k.udp = udp
		k.w = writers.Get().(*udpbatch.Writer)
	}
	return k.w
}

// Flush implements [upstream.Sink].
func (k *sink) Flush() {
	k.timed = false
	if k.udp == nil {
		return
	}
	if k.send == nil {
		k.send = func(fd uintptr) bool {
			_ = k.w.Flush(int(fd)) // what is lost will be asked for again
			return true
		}
	}
	if k.udp.raw.Write(k.send) != nil {
		k.w.Reset() // closed
	}
	writers.Put(k.w)
	k.udp, k.w = nil, nil
}
