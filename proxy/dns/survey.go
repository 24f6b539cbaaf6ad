package dns

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnswire"
)

var errAnswer = errors.New("upstream's answer is malformed")

// survey is what one walk over an upstream's answer finds.
type survey struct {
	ttls         []uint16 // where the TTLs are, OPT's excepted
	answers      int      // how many of them belong to the answer section
	lowest       uint32   // of the TTLs in the answer section, in seconds
	negative     uint32   // how long "no such record" holds, by the SOA record; 0 without one
	answerEnd    int      // behind the answer section
	authorityEnd int
	end          int
	opt          dnswire.Record
	hasOPT       bool
	final        bool // there is a record of the type that was asked for
	change       bool // a record must be taken out or changed
	alias        bool // of a denied name
	dropped      matcher.Decision

	name [dnswire.MaxName]byte
}

// walk reads the whole of msg, an answer to q. With rules it also judges the answer section.
func (v *survey) walk(rules *Rules, q *query, msg []byte) error {
	*v = survey{ttls: v.ttls[:0], lowest: 1<<31 - 1}
	off := q.Question.End
	for section := 1; section <= 3; section++ {
		for range dnswire.Count(msg, section) {
			r, ok := dnswire.ReadRecord(msg, off)
			if !ok || r.TTL > 1<<16-1 {
				return errAnswer
			}
			off = r.End
			if r.Type == dnswire.TypeOPT {
				if section != 3 || v.hasOPT || msg[r.Name] != 0 {
					return errAnswer
				}
				v.opt, v.hasOPT = r, true
				continue
			}
			v.ttls = append(v.ttls, uint16(r.TTL))
			switch section {
			case 1:
				v.answers++
				v.lowest = min(v.lowest, dnswire.Seconds(msg, r))
				v.final = v.final || r.Type == q.Question.Type || q.Question.Type == typeANY
				if rules != nil && !v.judge(rules, q, msg, r) {
					return errAnswer
				}
			case 2:
				if r.Type == dnswire.TypeSOA && r.End-r.Data >= 20 { // the last of its fields is MINIMUM (RFC 2308)
					v.negative = min(dnswire.Seconds(msg, r), binary.BigEndian.Uint32(msg[r.End-4:]))
				}
			}
		}
		switch section {
		case 1:
			v.answerEnd = off
		case 2:
			v.authorityEnd = off
		}
	}
	v.end = off
	return nil
}

const typeANY = 255

// judge looks whether a record of the answer section may stay as it is. It reports false for a malformed one.
func (v *survey) judge(rules *Rules, q *query, msg []byte, r dnswire.Record) bool {
	rs := rules.Ruleset
	if r.Type == dnswire.TypeHTTPS || r.Type == dnswire.TypeSVCB {
		changes, ok := v.serviceChanges(rules, q, msg, r)
		v.change = v.change || changes
		return ok
	}
	if rs.Mode() == policy.Public {
		return true
	}
	switch r.Type {
	case dnswire.TypeA, dnswire.TypeAAAA:
		addr, ok := netip.AddrFromSlice(msg[r.Data:r.End])
		if !ok || addr.Is4() != (r.Type == dnswire.TypeA) {
			return false
		}
		if d := rs.Answer(q.decision, addr); d.Verdict != matcher.Allow {
			v.change, v.dropped = true, d
		}
	case dnswire.TypeCNAME:
		if rs.Mode() != policy.Denylist {
			break // an allowed name may be an alias of any
		}
		target, ok := dnswire.ReadName(v.name[:0], msg, r.Data)
		if d := rs.QueryBytes(target); !ok || d.Verdict == matcher.Refuse {
			v.alias, v.dropped = true, matcher.Decision{Reason: ReasonDeniedAlias, Rule: d.Rule}
		}
	}
	if r.Class != dnswire.ClassIN {
		v.change = true
	}
	return true
}

// Keys of service parameters (RFC 9460 section 14.3.2).
const (
	paramMandatory = 0
	paramALPN      = 1
	paramHint4     = 4
	paramECH       = 5
	paramHint6     = 6
)

// serviceChanges reports whether an HTTPS or SVCB record has something that must not stay.
func (v *survey) serviceChanges(rules *Rules, q *query, msg []byte, r dnswire.Record) (changes, ok bool) {
	off, ok := dnswire.SkipName(msg, r.Data+2)
	if !ok || off > r.End {
		return false, false
	}
	if rules.Ruleset.Mode() != policy.Public && msg[r.Data+2] != 0 {
		target, ok := dnswire.ReadName(v.name[:0], msg, r.Data+2)
		if !ok || !isUsable(rules, target) {
			changes = true
		}
	}
	for off < r.End {
		if off+4 > r.End {
			return false, false
		}
		key := binary.BigEndian.Uint16(msg[off:])
		value := off + 4
		off = value + int(binary.BigEndian.Uint16(msg[off+2:]))
		if off > r.End {
			return false, false
		}
		switch key {
		case paramECH:
			changes = changes || !rules.Options.KeepECH
		case paramALPN:
			for at := value; at < off && rules.Ruleset.HasNameRules(); {
				n := int(msg[at])
				if at+1+n > off {
					return false, false
				}
				changes = changes || isHTTP3(string(msg[at+1:at+1+n]))
				at += 1 + n
			}
		case paramHint4, paramHint6:
			size := 4
			if key == paramHint6 {
				size = 16
			}
			if (off-value)%size != 0 {
				return false, false
			}
			for at := value; at < off; at += size {
				addr, _ := netip.AddrFromSlice(msg[at : at+size])
				changes = changes || !hintAllowed(rules, q, addr)
			}
		}
	}
	return changes, true
}

// isUsable reports whether a service's other name could be looked up.
func isUsable(rules *Rules, name []byte) bool {
	return rules.Ruleset.QueryBytes(name).Verdict != matcher.Refuse
}

func hintAllowed(rules *Rules, q *query, addr netip.Addr) bool {
	if addr.Is4() && rules.NoIPv4 || addr.Is6() && rules.NoIPv6 {
		return false
	}
	return rules.Ruleset.Mode() == policy.Public || rules.Ruleset.Answer(q.decision, addr).Verdict == matcher.Allow
}

// isHTTP3 reports whether a protocol id is that of HTTP/3 or one of its drafts: it runs over QUIC, where a name
// cannot be judged.
func isHTTP3(alpn string) bool { return alpn == "h3" || len(alpn) > 3 && alpn[:3] == "h3-" }
