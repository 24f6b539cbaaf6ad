package dns

import (
	"bytes"
	"net/netip"
	"strconv"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnswire"
)

// action is what is done with a query.
type action uint8

const (
	refuse     action = iota // NXDOMAIN, blocked
	notOffered               // REFUSED: nothing that the policy could change
	noData                   // NOERROR without records
	noSuchName               // NXDOMAIN, as the servers for private zones say
	forward                  // to an upstream
)

// decide judges a query by the rules alone.
func decide(rules *Rules, q *query) (matcher.Decision, action) {
	d := matcher.Decision{Reason: ReasonNoRules, Rule: matcher.NoRule}
	if rules.Ruleset == nil {
		return d, refuse
	}
	mode := rules.Ruleset.Mode()
	if q.plainName || mode == policy.Public || mode == policy.NoNetwork {
		d = rules.Ruleset.QueryBytes(q.name)
	} else {
		d.Reason = matcher.BadName
	}
	if d.Verdict == matcher.Refuse {
		return d, refuse
	}
	if q.Question.Class != dnswire.ClassIN || isMeta(q.Question.Type) {
		return matcher.Decision{Reason: ReasonUnsupported, Rule: matcher.NoRule}, notOffered
	}
	if mode == policy.Allowlist {
		if !listed(q.Question.Type, d.Verdict) {
			return matcher.Decision{Reason: ReasonType, Rule: d.Rule}, noData
		}
		return d, forward
	}
	if isPrivateReverse(q.name) {
		d.Reason = ReasonPrivateZone
		return d, noSuchName
	}
	return d, forward
}

// isMeta reports whether a type asks for more than records: transfers, signatures, OPT itself. ANY is left to the
// upstream.
func isMeta(t uint16) bool {
	return t == 0 || t == dnswire.TypeOPT || t >= 249 && t <= 254
}

// listed reports whether an allowlist passes questions of a type on. A name that may only be allowed by its addresses
// is asked for those alone.
func listed(t uint16, v matcher.Verdict) bool {
	switch t {
	case dnswire.TypeA, dnswire.TypeAAAA:
		return true
	case dnswire.TypeCNAME, dnswire.TypeHTTPS, dnswire.TypeSRV, dnswire.TypeTXT, dnswire.TypeMX:
		return v == matcher.Allow
	}
	return false
}

// isPrivateReverse reports whether name belongs to a private address or network: the public servers do not know it,
// and need not learn of it (RFC 6303, RFC 7793).
func isPrivateReverse(name []byte) bool {
	if !bytes.HasSuffix(name, []byte(".arpa")) {
		return false
	}
	if labels, ok := bytes.CutSuffix(name, []byte(".in-addr.arpa")); ok {
		var octets [4]byte
		return reverse(labels, octets[:], 10, 8) > 0 && isPrivate(netip.AddrFrom4(octets))
	}
	if labels, ok := bytes.CutSuffix(name, []byte(".ip6.arpa")); ok {
		var nibbles [32]byte
		n := reverse(labels, nibbles[:], 16, 4)
		var a [16]byte
		for i, nibble := range nibbles {
			a[i/2] = a[i/2]<<4 | nibble
		}
		// The zeros of ::1 begin the names of many others.
		addr := netip.AddrFrom16(a)
		return n > 0 && isPrivate(addr) && (n == len(nibbles) || !addr.IsUnspecified() && !addr.IsLoopback())
	}
	return false
}

// reverse writes the numbers that labels are, the last one first, to to, and returns how many there are. The name of
// a network has fewer, and others may stand in front (as in b._dns-sd._udp, RFC 6763 section 11).
func reverse(labels []byte, to []byte, base, bits int) int {
	for i := range to {
		dot := bytes.LastIndexByte(labels, '.')
		n, err := strconv.ParseUint(string(labels[dot+1:]), base, bits)
		if err != nil {
			return i
		}
		to[i] = byte(n)
		if dot < 0 {
			return i + 1
		}
		labels = labels[:dot]
	}
	return len(to)
}

var shared = netip.MustParsePrefix("100.64.0.0/10") // RFC 6598

func isPrivate(a netip.Addr) bool {
	return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || shared.Contains(a)
}
