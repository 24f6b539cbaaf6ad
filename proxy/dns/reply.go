package dns

import (
	"encoding/binary"

	"sluice/matcher"
	"sluice/proxy/dnswire"
	"sluice/proxy/refusal"
)

// Extended DNS errors (RFC 8914 section 4).
const (
	noExtended           = -1
	extendedNotReady     = 14
	extendedBlocked      = 15
	extendedNotSupported = 21
	extendedNoReachable  = 22
)

// appendReply appends an answer to q without records: a code, and, for a client that speaks EDNS, an extended error
// with a text. It is the same whether the name exists or not, and there is no SOA record, so that nobody remembers it
// (RFC 2308 section 5).
func (q *query) appendReply(dst []byte, rcode, extended int, text string) []byte {
	dst = append(dst, q.id[0], q.id[1],
		dnswire.FlagResponse|q.Msg[2]&dnswire.FlagRD,
		dnswire.FlagRA|q.Msg[3]&dnswire.FlagCD|byte(rcode)&dnswire.RcodeMask,
		0, byte(min(len(q.asked), 1)), 0, 0, 0, 0, 0, 0)
	if q.edns {
		dst[len(dst)-1] = 1 // the record below
	}
	dst = append(dst, q.asked...)
	if !q.edns {
		return dst
	}
	if extended == noExtended {
		return q.appendOPT(dst, rcode, nil)
	}
	var room [4 + 2 + 64]byte
	option := append(room[:0], 0, 15, 0, 0, 0, byte(extended)) // code, length, info code
	option = append(option, text[:min(len(text), 64)]...)
	binary.BigEndian.PutUint16(option[2:], uint16(len(option)-4))
	return q.appendOPT(dst, rcode, option)
}

// told is what an answer says of a reason. A budget that is spent looks like a fault, so the answer also has the id under
// which the audit has the refusal.
func (q *query) told(reason matcher.Reason) string {
	if reason != ReasonNameBudget {
		return string(reason)
	}
	q.reference = refusal.NewDecisionID()
	return string(reason) + ", decision " + q.reference
}

// truncate shortens a whole answer to at most size bytes: it keeps as many records as fit, since some resolvers
// never ask again over TCP, and the OPT record, and sets TC. It may write to room.
func truncate(room, msg []byte, size int) []byte {
	if len(msg) <= size {
		return msg
	}
	question, ok := dnswire.ReadQuestion(msg)
	if !ok {
		return nil
	}
	var opt []byte
	end, off := question.End, question.End
	kept, fits := 0, true
	answers := dnswire.Count(msg, 1)
	for i := range answers + dnswire.Count(msg, 2) + dnswire.Count(msg, 3) {
		r, ok := dnswire.ReadRecord(msg, off)
		if !ok {
			return nil
		}
		off = r.End
		switch {
		case r.Type == dnswire.TypeOPT:
			opt = append(room[:0], msg[r.Name:r.Data]...) // its options are left out
			opt[len(opt)-1], opt[len(opt)-2] = 0, 0
		case i < answers && fits && r.End+dnswire.OPTLen <= size:
			kept, end = kept+1, r.End
		default:
			fits = false
		}
	}
	msg = append(msg[:end], opt...)
	msg[2] |= dnswire.FlagTruncated
	dnswire.SetCount(msg, 1, kept)
	dnswire.SetCount(msg, 2, 0)
	dnswire.SetCount(msg, 3, min(len(opt), 1))
	return msg
}
