package dns

import (
	"net/netip"
	"time"

	"sluice/matcher"
)

// Reasons of the filter's own, beside those of the matcher.
const (
	ReasonMalformed   matcher.Reason = "malformed"      // the message cannot be read
	ReasonUnsupported matcher.Reason = "unsupported"    // an operation, class, version or type that is not offered
	ReasonType        matcher.Reason = "type"           // an allowlist does not pass this type on
	ReasonNameBudget  matcher.Reason = "name-budget"    // the budget for names under wildcards is spent
	ReasonDeniedAlias matcher.Reason = "denied-alias"   // the name is an alias of a denied one
	ReasonNoRules     matcher.Reason = "no-rules"       // the session has no policy
	ReasonPrivateZone matcher.Reason = "private-zone"   // the reverse of a private address, answered locally
	ReasonNoRoute     matcher.Reason = "no-route"       // the proxy has no route for the family
	ReasonLocal       matcher.Reason = "local"          // a local name, answered locally
	ReasonFailed      matcher.Reason = "lookup-failed"  // no upstream gave an answer that could be used
	ReasonTimeout     matcher.Reason = "lookup-timeout" //
	ReasonCapacity    matcher.Reason = "capacity"       // too many queries under way
)

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

// An Event tells of one query that was answered.
type Event struct {
	// Decision is the one on the name; if the name was allowed and every address behind it was refused, that on the
	// address. A query that was allowed and has no answer (SERVFAIL) has verdict Allow and a reason of this package.
	Decision   matcher.Decision
	Generation uint64 // of the rules that decided
	Type       uint16 // of the question; 0 if it could not be read
	Rcode      uint16 // of the answer
	Dropped    int    // records that were taken out of the answer
	Proto      Proto
	Client     netip.AddrPort
	Latency    time.Duration
	// ID is that of the decision, if the answer names it; else empty.
	ID   string
	name []byte
}

// Name returns the name that was asked for, in lower case without trailing dot; "" if it could not be read. It
// allocates, and may only be called during the call of Observe.
func (e *Event) Name() string { return string(e.name) }

// observe tells of the answer to q.
func (s *Server) observe(q *query, d matcher.Decision, rcode int, now time.Duration) {
	if s.opts.Observe == nil {
		return
	}
	q.event = Event{
		Decision:   d,
		Generation: q.generation,
		Type:       q.Question.Type,
		Rcode:      uint16(rcode),
		Dropped:    q.dropped,
		Proto:      q.proto(),
		Client:     q.client(),
		Latency:    now - q.start,
		ID:         q.reference,
		name:       q.name,
	}
	s.opts.Observe(&q.event)
}
