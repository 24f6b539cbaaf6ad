package forward

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"

	"sluice/matcher"
	"sluice/proxy/refusal"
)

// head is a request head as far as it decides who is judged and where the body ends. Everything else in it is left
// to net/http, which is shown neither the target nor the Host field.
type head struct {
	method string
	target string
	minor  byte   // of HTTP/1.minor
	host   string // value of the Host field
	length int64  // of the body in bytes; chunked if it has no length
	hosts  int    // number of Host fields
	bad    *refusal.Refusal
	raw    []byte // of a CONNECT: the whole head
}

// chunked is the length of a body that has none.
const chunked = -1

// maxFields bounds the fields of a head, since each costs some hundred bytes once it is parsed.
const maxFields = 1000

// substitute is what net/http gets to read in place of a head that it shall not see: the handler knows better.
const substitute = "GET / HTTP/1.1\r\nHost: -\r\n\r\n"

// headEnd returns the length of the head that b begins with, up to and with its empty line, or 0 if it is not
// complete. A line may end in LF alone (RFC 9112 section 2.2). The first seen bytes are known to hold no end.
func headEnd(b []byte, seen int) int {
	for i := max(seen-2, 0); i < len(b); i++ {
		next := bytes.IndexByte(b[i:], '\n')
		if next < 0 {
			return 0
		}
		i += next
		switch rest := b[i+1:]; {
		case len(rest) > 0 && rest[0] == '\n':
			return i + 2
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return i + 3
		}
	}
	return 0
}

// parseHead reads b, a complete head, strictly: where two readers could differ, it is bad. It returns what net/http
// shall read instead, appended to out.
func parseHead(b []byte, out []byte) (*head, []byte) {
	h := new(head)
	line, fields := cutLine(b)
	if h.bad = h.requestLine(line); h.bad == nil && h.method == http.MethodConnect {
		h.raw = bytes.Clone(b)
		return h, append(out, substitute...)
	}
	if h.bad == nil {
		start := len(out)
		out = append(out, h.method...)
		out = append(out, " / HTTP/1."...)
		out = append(append(out, h.minor), "\r\nHost: -\r\n"...)
		if out, h.bad = h.fields(fields, out); h.bad == nil {
			return h, append(out, "\r\n"...)
		}
		out = out[:start]
	}
	return h, append(out, substitute...)
}

// cutLine cuts b behind its first line, and the end off that line.
func cutLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r")), rest
}

// requestLine reads method SP target SP version (RFC 9112 section 3). The target's syntax is looked at later.
func (h *head) requestLine(line []byte) *refusal.Refusal {
	method, rest, _ := bytes.Cut(line, []byte(" "))
	target, version, _ := bytes.Cut(rest, []byte(" "))
	switch {
	case !isToken(method) || len(target) == 0:
		return malformed("The request line is not a method, a target and a version.")
	case bytes.ContainsFunc(target, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return malformed("There are control characters in the request target.")
	case !bytes.Equal(version, []byte("HTTP/1.1")) && !bytes.Equal(version, []byte("HTTP/1.0")):
		return malformed("Only HTTP/1.0 and HTTP/1.1 are spoken here.")
	}
	h.method, h.target, h.minor = string(method), string(target), version[len(version)-1]
	return nil
}

// fields reads the field lines, and appends to out those that are net/http's to read.
func (h *head) fields(b []byte, out []byte) ([]byte, *refusal.Refusal) {
	var line []byte
	lengths, encodings := 0, 0
	for count := 0; ; count++ {
		line, b = cutLine(b)
		if len(line) == 0 {
			break
		}
		if count == maxFields {
			return out, tooLarge("There are more than 1000 header fields.")
		}
		name, value, found := bytes.Cut(line, []byte(":"))
		// A line that begins with a space would fold into the one before it.
		if !found || !isToken(name) || !isFieldValue(value) {
			return out, malformed("A header field is folded, has no name or holds control characters.")
		}
		value = bytes.Trim(value, " \t")
		switch {
		case foldedIs(name, "Host"):
			h.host = string(value)
			h.hosts++
			continue
		case foldedIs(name, "Trailer"):
			continue // trailers of requests end here
		case foldedIs(name, "Content-Length"):
			n, err := strconv.ParseUint(string(value), 10, 63)
			if err != nil || lengths > 0 {
				return out, malformed("Content-Length is not one number.")
			}
			h.length = int64(n)
			lengths++
		case foldedIs(name, "Transfer-Encoding"):
			if !foldedIs(value, "chunked") || encodings > 0 || h.minor != '1' {
				return out, &refusal.Refusal{Status: http.StatusNotImplemented, Kind: refusal.BadRequest, Reason: Malformed,
					Text: "The only Transfer-Encoding understood is a single chunked, in HTTP/1.1."}
			}
			h.length = chunked
			encodings++
		case foldedIs(name, "Expect"):
			if !foldedIs(value, "100-continue") {
				return out, &refusal.Refusal{Status: http.StatusExpectationFailed, Reason: Malformed,
					Text: "The only expectation understood is 100-continue."}
			}
		}
		out = append(out, line...)
		out = append(out, "\r\n"...)
	}
	switch {
	case lengths > 0 && encodings > 0:
		return out, malformed("Content-Length and Transfer-Encoding exclude each other.")
	case h.hosts > 1:
		return out, malformed("There is more than one Host field.")
	case h.hosts == 0 && h.minor != '0':
		return out, malformed("The Host field is missing.")
	}
	return out, nil
}

// Reasons of refusals that are made here, next to those of [matcher].
const (
	Malformed     matcher.Reason = "malformed"          // the request cannot be read safely
	HeaderSize    matcher.Reason = "header-too-large"   //
	SlowHead      matcher.Reason = "slow-header"        //
	Unauthorized  matcher.Reason = "authentication"     // no or wrong credentials for the proxy
	Upgrade       matcher.Reason = "upgrade"            // an upgrade to a protocol that cannot be judged, or a broken one
	NestedConnect matcher.Reason = "nested-connect"     // a CONNECT where none can be served
	Refused       matcher.Reason = "connection-refused" // by the upstream
	DialTimeout   matcher.Reason = "dial-timeout"       //
	Unreachable   matcher.Reason = "unreachable"        //
	NoSuchName    matcher.Reason = "no-such-name"       //
	LookupFailed  matcher.Reason = "lookup-failed"      //
	LookupTimeout matcher.Reason = "lookup-timeout"     //
	Broken        matcher.Reason = "upstream-broken"    // the upstream's answer is not HTTP, too large, or cut short
	Internal      matcher.Reason = "internal"           // a fault of the proxy
)

func malformed(text string) *refusal.Refusal {
	return &refusal.Refusal{Status: http.StatusBadRequest, Reason: Malformed, Text: text}
}

func tooLarge(text string) *refusal.Refusal {
	return &refusal.Refusal{Status: http.StatusRequestHeaderFieldsTooLarge, Reason: HeaderSize, Text: text}
}

// tokenBytes are the bytes that a token may hold (RFC 9110 section 5.6.2).
var tokenBytes = func() (is [256]bool) {
	for c := range is {
		is[c] = c > ' ' && c < 0x7f && !strings.ContainsRune(`"(),/:;<=>?@[\]{}`, rune(c))
	}
	return is
}()

// isToken reports whether b is a token.
func isToken(b []byte) bool {
	for _, c := range b {
		if !tokenBytes[c] {
			return false
		}
	}
	return len(b) > 0
}

// isFieldValue reports whether b may stand in a field line (RFC 9110 section 5.5): no control characters but tabs.
func isFieldValue(b []byte) bool {
	for _, c := range b {
		if !isFieldByte(c) {
			return false
		}
	}
	return true
}

func isFieldByte(c byte) bool { return c >= ' ' && c != 0x7f || c == '\t' }

// foldedIs reports whether b is s in any mix of upper and lower case, ASCII only: the letters beyond it that fold to
// an ASCII one are longer.
func foldedIs(b []byte, s string) bool {
	return len(b) == len(s) && bytes.EqualFold(b, []byte(s))
}
