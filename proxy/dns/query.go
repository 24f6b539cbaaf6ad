package dns

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"sluice/matcher"
	"sluice/proxy/dnswire"
	"sluice/proxy/udpbatch"
	"sluice/proxy/upstream"
)

const (
	// ownSize is what the filter says it takes by UDP, to both sides: no fragments on any usual path (RFC 9715).
	ownSize = 1232
	// maxUDP is the longest answer by UDP to a client that says it takes more.
	maxUDP = 4096
	minUDP = 512 // RFC 1035 section 4.2.1
	// maxMessage is the longest message that TCP can carry (RFC 1035 section 4.2.2).
	maxMessage = 1<<16 - 1
)

// query is a question of a client, from its arrival to the answer.
type query struct {
	upstream.Query // what is sent on, and the question

	id         [2]byte
	asked      []byte // the question as the client spelt it
	name       []byte // in lower case, with dots
	plainName  bool   // name says it all: no label holds a dot
	edns, do   bool
	size       int              // of the longest answer
	ruleset    *matcher.Ruleset // that judged it, with generation
	generation uint64
	decision   matcher.Decision
	dropped    int
	start      time.Duration
	reference  string // the decision's id, where the answer names it

	udp  *udpConn // or
	tcp  *tcpConn
	peer udpbatch.Peer

	event      Event // kept here so that it need not be made
	msgRoom    [dnswire.HeaderLen + dnswire.MaxQuestion + dnswire.OPTLen]byte
	askedRoom  [dnswire.MaxQuestion]byte
	dottedRoom [dnswire.MaxName]byte
}

var queries = sync.Pool{New: func() any {
	q := new(query)
	q.Owner = q
	return q
}}

func newQuery() *query { return queries.Get().(*query) }

// release gives q back; nothing may refer to it any more.
func (q *query) release() {
	q.udp, q.tcp, q.ruleset = nil, nil, nil
	queries.Put(q)
}

func (q *query) judged(rules *Rules, d matcher.Decision) {
	q.ruleset, q.generation, q.decision = rules.Ruleset, rules.Generation, d
}

// judgedBy reports whether these are the rules that judged q last.
func (q *query) judgedBy(rules *Rules) bool {
	return q.ruleset == rules.Ruleset && q.generation == rules.Generation
}

func (q *query) proto() Proto {
	if q.tcp != nil {
		return TCP
	}
	return UDP
}

func (q *query) client() netip.AddrPort {
	if q.tcp != nil {
		return q.tcp.client
	}
	return q.peer.AddrPort()
}

// How reading a query ends, if not with the code of an answer.
const (
	readable   = dnswire.RcodeNoError
	unreadable = -1 // no answer
)

// read reads a client's message and makes the one to be sent on. It returns readable, unreadable, or the code of the
// answer that a message gets which cannot be served.
func (q *query) read(pkt []byte) int {
	q.Question = dnswire.Question{}
	q.asked, q.name, q.plainName = nil, nil, false
	q.edns, q.do, q.size, q.dropped = false, false, minUDP, 0
	q.ruleset, q.generation, q.decision, q.reference = nil, 0, matcher.Decision{Rule: matcher.NoRule}, ""
	// An answer is never answered, or two servers might go on for ever.
	if len(pkt) < dnswire.HeaderLen || pkt[2]&dnswire.FlagResponse != 0 {
		return unreadable
	}
	msg := q.msgRoom[:dnswire.HeaderLen]
	q.id = [2]byte(pkt)
	msg[2], msg[3] = pkt[2]&dnswire.FlagRD, pkt[3]&(dnswire.FlagAD|dnswire.FlagCD)
	clear(msg[4:])
	q.Msg = msg
	if pkt[2]&dnswire.OpcodeMask != 0 {
		return dnswire.RcodeNotImp
	}
	question, ok := dnswire.ReadQuestion(pkt)
	if !ok || dnswire.Count(pkt, 1)+dnswire.Count(pkt, 2) > 0 {
		return dnswire.RcodeFormErr
	}
	q.Question = question
	msg[5] = 1
	q.asked = q.askedRoom[:copy(q.askedRoom[:], pkt[dnswire.HeaderLen:question.End])]
	nameEnd := dnswire.HeaderLen + question.NameLen
	msg = dnswire.AppendLower(msg, pkt[dnswire.HeaderLen:nameEnd])
	msg = append(msg, pkt[nameEnd:question.End]...)
	q.Msg = msg
	q.name, q.plainName = dnswire.AppendDotted(q.dottedRoom[:0], msg[dnswire.HeaderLen:nameEnd])
	version, ok := q.readAdditional(pkt)
	if !ok {
		q.edns = false
		return dnswire.RcodeFormErr
	}
	if version != 0 {
		return dnswire.RcodeBadVers
	}
	if q.edns {
		// Options are between neighbours (RFC 6891 section 6.1.1): cookies and padding end here, and the client's
		// subnet is nobody's business.
		q.Msg = q.appendOPT(q.Msg, 0, nil)
		q.Msg[11] = 1
	}
	return readable
}

// readAdditional reads what follows the question: at most one OPT record, which says what EDNS says. It returns the
// version of EDNS.
func (q *query) readAdditional(pkt []byte) (version byte, ok bool) {
	off := q.Question.End
	for range dnswire.Count(pkt, 3) {
		r, ok := dnswire.ReadRecord(pkt, off)
		if !ok {
			return 0, false
		}
		off = r.End
		if r.Type != dnswire.TypeOPT {
			continue // a signature of the client's, for nobody else
		}
		if q.edns || pkt[r.Name] != 0 || !wellFormedOptions(pkt[r.Data:r.End]) {
			return 0, false
		}
		q.edns = true
		q.size = min(max(int(r.Class), minUDP), maxUDP)
		version = pkt[r.TTL+1]
		q.do = pkt[r.TTL+2]&dnswire.FlagDO != 0
	}
	return version, off == len(pkt)
}

func wellFormedOptions(b []byte) bool {
	for len(b) >= 4 {
		n := 4 + int(binary.BigEndian.Uint16(b[2:]))
		if n > len(b) {
			return false
		}
		b = b[n:]
	}
	return len(b) == 0
}

// appendOPT appends an OPT record with options and, in its TTL, the upper bits of rcode.
func (q *query) appendOPT(dst []byte, rcode int, options []byte) []byte {
	do := byte(0)
	if q.do {
		do = dnswire.FlagDO
	}
	dst = append(dst, 0, 0, dnswire.TypeOPT, ownSize>>8, ownSize&0xff, byte(rcode>>4), 0, do, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(options)))
	return append(dst, options...)
}

// withoutDO takes the wish for DNSSEC records out of what is sent on.
func (q *query) withoutDO() {
	if q.edns {
		q.Msg[q.Question.End+7] &^= dnswire.FlagDO
	}
}
