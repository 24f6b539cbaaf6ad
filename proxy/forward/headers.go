package forward

import (
	"iter"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// hopFields are for one connection only (RFC 9110 section 7.6.1, and what predates it), or for a proxy.
var hopFields = []string{
	"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
	"Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Authentication-Info",
}

// removeHopFields removes what must not be passed on, the fields that Connection names included.
func removeHopFields(h http.Header) {
	for name := range elements(h["Connection"]) {
		h.Del(name)
	}
	for _, name := range hopFields {
		delete(h, name)
	}
}

// upgrades returns the protocols that a request asks to upgrade to, in lower case; none if its Connection does not
// say upgrade (RFC 9110 section 7.8).
func upgrades(h http.Header) []string {
	for option := range elements(h["Connection"]) {
		if option == "upgrade" {
			return slices.Collect(elements(h["Upgrade"]))
		}
	}
	return nil
}

// elements yields the elements of a comma-separated field (RFC 9110 section 5.6.1), in lower case.
func elements(values []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, value := range values {
			for e := range strings.SplitSeq(value, ",") {
				if e = textproto.TrimString(e); e != "" && !yield(strings.ToLower(e)) {
					return
				}
			}
		}
	}
}
