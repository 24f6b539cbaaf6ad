package proxy

import (
	"net/netip"
	"strconv"

	"sluice/matcher"
	"sluice/proxy/dns"
	"sluice/proxy/refusal"
)

// texts say what to do about the proxy's own reasons. Those of the matcher have theirs there.
var texts = map[matcher.Reason]string{
	reasonMalformed:      "The request cannot be read safely: use CONNECT host:port or an http:// URL with a plain host name or address.",
	reasonHeaderSize:     "The request head is larger than the proxy takes.",
	reasonSlowHead:       "The request head did not arrive in time.",
	reasonAuth:           "The proxy wants a user name and password: put them into the proxy URL.",
	reasonNoAddress:      "The name has no address that could be dialled.",
	reasonDeniedHost:     "The address belongs to a denied host.",
	reasonOtherName:      "The request names another host than the tunnel was opened for, and that host is not allowed here.",
	reasonOtherAddress:   "The request names a host that is allowed, but not at the address that the tunnel was opened to.",
	reasonCapacity:       "The proxy has no room for another connection now: try again.",
	dns.ReasonNameBudget: "This phase has looked up as many names under wildcards as its policy allows: name the host itself there, or raise dns_unique_names or dns_question_bytes.",
	reasonNoSuchName:     "The name does not exist, or has no address.",
	reasonLookupFailed:   "The name could not be looked up: the DNS servers failed.",
	reasonLookupTimeout:  "The name could not be looked up: no DNS server answered in time.",
	reasonDialRefused:    "The destination is allowed, but refused the connection.",
	reasonDialTimeout:    "The destination is allowed, but did not answer in time.",
	reasonUnreachable:    "The destination is allowed, but cannot be reached.",
	reasonNoRules:        "No valid policy is in force, so everything is refused: see the proxy's log or status.",
	reasonQuarantine:     "The last switch of policies failed, so everything is refused until one succeeds.",
}

// explain gives the sentence for a client that is not served.
func (r *rules) explain(d matcher.Decision, reason matcher.Reason, e endpoint) string {
	if text, ok := texts[reason]; ok {
		return text
	}
	return r.set.Explain(d, e.host, e.port)
}

// ruleText is the target that decided, as a policy writes it; "" if none did.
func (r *rules) ruleText(id matcher.RuleID) string { return ruleText(r.set, id) }

func ruleText(set *matcher.Ruleset, id matcher.RuleID) string {
	if id == matcher.NoRule || set == nil {
		return ""
	}
	return set.Target(id).String()
}

// kinds are the error types of RFC 9209 for the proxy's own reasons.
var kinds = map[matcher.Reason]refusal.Kind{
	reasonNoSuchName:    refusal.DNSError,
	reasonLookupFailed:  refusal.DNSError,
	reasonLookupTimeout: refusal.DNSTimeout,
	reasonDialRefused:   refusal.ConnectRefused,
	reasonDialTimeout:   refusal.ConnectTimeout,
	reasonUnreachable:   refusal.Unroutable,
	reasonCapacity:      refusal.LimitReached,
}

func joinAddress(a netip.Addr, port uint16) string {
	if !a.IsValid() {
		return ""
	}
	return netip.AddrPortFrom(a, port).String()
}

func formatID(id uint64) string { return strconv.FormatUint(id, 10) }
