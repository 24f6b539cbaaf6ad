package dns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"sluice/matcher"
	"sluice/policy"
)

// rewrite makes msg again without what the rules do not let stay, and returns how many records that were.
func rewrite(rules *Rules, q *query, msg []byte) ([]byte, int, error) {
	m := new(dns.Msg)
	if err := m.Unpack(msg); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errAnswer, err)
	}
	before := len(m.Answer)
	m.Answer = slices.DeleteFunc(m.Answer, func(rr dns.RR) bool { return !keep(rules, q, rr) })
	m.AuthenticatedData = false
	m.Compress = true
	packed, err := m.Pack()
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errAnswer, err)
	}
	return packed, before - len(m.Answer), nil
}

// keep reports whether a record may stay, and takes out of it what may not. It is [survey.judge] for records that are
// decoded.
func keep(rules *Rules, q *query, rr dns.RR) bool {
	rs := rules.Ruleset
	listMode := rs.Mode() != policy.Public
	switch rr := rr.(type) {
	case *dns.A:
		return !listMode || rr.Hdr.Class == dns.ClassINET && answerAllowed(rs, q, rr.A)
	case *dns.AAAA:
		return !listMode || rr.Hdr.Class == dns.ClassINET && answerAllowed(rs, q, rr.AAAA)
	case *dns.HTTPS:
		return keepService(rules, q, &rr.SVCB)
	case *dns.SVCB:
		return keepService(rules, q, rr)
	default:
		return !listMode || rr.Header().Class == dns.ClassINET
	}
}

func answerAllowed(rs *matcher.Ruleset, q *query, ip net.IP) bool {
	addr, ok := netip.AddrFromSlice(ip)
	return ok && rs.Answer(q.decision, addr).Verdict == matcher.Allow
}

func keepService(rules *Rules, q *query, rr *dns.SVCB) bool {
	target := strings.ToLower(strings.TrimSuffix(rr.Target, "."))
	if rules.Ruleset.Mode() != policy.Public && target != "" && !isUsable(rules, []byte(target)) {
		return false
	}
	gone := map[dns.SVCBKey]bool{}
	useless := false
	rr.Value = slices.DeleteFunc(rr.Value, func(kv dns.SVCBKeyValue) bool {
		left := true
		switch kv := kv.(type) {
		case *dns.SVCBECHConfig:
			left = rules.Options.KeepECH
		case *dns.SVCBAlpn:
			if rules.Ruleset.HasNameRules() {
				kv.Alpn = slices.DeleteFunc(kv.Alpn, isHTTP3)
			}
			left = len(kv.Alpn) > 0
			useless = !left
		case *dns.SVCBIPv4Hint:
			kv.Hint = slices.DeleteFunc(kv.Hint, func(ip net.IP) bool { return !hintIPAllowed(rules, q, ip) })
			left = len(kv.Hint) > 0
		case *dns.SVCBIPv6Hint:
			kv.Hint = slices.DeleteFunc(kv.Hint, func(ip net.IP) bool { return !hintIPAllowed(rules, q, ip) })
			left = len(kv.Hint) > 0
		}
		if !left {
			gone[kv.Key()] = true
		}
		return !left
	})
	for i, kv := range rr.Value {
		m, ok := kv.(*dns.SVCBMandatory)
		if !ok {
			continue
		}
		// A mandatory key must be there (RFC 9460 section 8).
		if m.Code = slices.DeleteFunc(m.Code, func(k dns.SVCBKey) bool { return gone[k] }); len(m.Code) == 0 {
			rr.Value = slices.Delete(rr.Value, i, i+1)
		}
		break
	}
	// Without a protocol left, only the default one of HTTPS can be meant, unless the record rules it out.
	noDefault := slices.ContainsFunc(rr.Value, func(kv dns.SVCBKeyValue) bool { return kv.Key() == dns.SVCB_NO_DEFAULT_ALPN })
	return !useless || rr.Hdr.Rrtype == dns.TypeHTTPS && !noDefault
}

func hintIPAllowed(rules *Rules, q *query, ip net.IP) bool {
	addr, ok := netip.AddrFromSlice(ip)
	return ok && hintAllowed(rules, q, addr)
}
