// Package refusal says no, in the same words wherever the proxy does: an HTTP answer with a status, the missing
// target, what to do, and the id under which the audit has it.
package refusal

import (
	"bytes"
	"io"
	"net/http"
	"strconv"

	"sluice/matcher"
)

// Refusal is why a request is not served. It is an error, and an HTTP response. Set its fields before use, then
// leave them alone: it may be read by any number of goroutines. No field may hold a secret: all of them are shown.
type Refusal struct {
	// Status is the HTTP status: 400..599; anything else is sent as 403.
	Status int
	// Kind is the error type of the Proxy-Status field; if empty, it follows from Status.
	Kind Kind
	// Reason says why, as in metrics and audit.
	Reason matcher.Reason
	// Target is the host:port that was asked for and is missing; empty if the request names none.
	Target string
	// Decision is the id that the audit record has too; see [NewDecisionID].
	Decision string
	// Text tells the reader what to do: one sentence or more.
	Text string
	// Realm is named in the challenge of a 407 (RFC 7617); empty means "sluice".
	Realm string
	// NoBody sends the headers alone, for callers whose clients expect it so.
	NoBody bool
}

// Error returns one line for logs: reason, target and decision.
func (r *Refusal) Error() string {
	b := make([]byte, 0, 96)
	b = append(b, "refused"...)
	if r.Target != "" {
		b = append(b, ' ')
		b = appendVisible(b, r.Target)
	}
	b = append(b, ": "...)
	b = appendVisible(b, string(r.Reason))
	b = append(b, " (decision "...)
	b = appendVisible(b, r.Decision)
	return string(append(b, ')'))
}

// AppendResponse appends the whole HTTP/1.1 response to b, with Connection: close.
func (r *Refusal) AppendResponse(b []byte) []byte {
	status := r.status()
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, http.StatusText(status)...)
	b = append(b, "\r\nContent-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nProxy-Status: "...)
	b = r.appendProxyStatus(b)
	b = append(b, "\r\nSluice-Decision: "...)
	b = appendVisible(b, r.Decision)
	if status == http.StatusProxyAuthRequired {
		b = append(b, "\r\nProxy-Authenticate: "...)
		b = r.appendChallenge(b)
	}
	var scratch [512]byte
	body := r.appendBody(scratch[:0])
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\nConnection: close\r\n\r\n"...)
	return append(b, body...)
}

// Respond writes the response to w. The connection stays open unless w's header says Connection: close.
func (r *Refusal) Respond(w http.ResponseWriter) {
	body := r.fields(w.Header())
	w.WriteHeader(r.status())
	_, _ = w.Write(body) // a client that is gone needs no answer
}

// Response returns the response to a request that was made with [http.RoundTripper].
func (r *Refusal) Response(request *http.Request) *http.Response {
	header := make(http.Header)
	body := r.fields(header)
	return &http.Response{
		StatusCode: r.status(), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: request,
	}
}

// fields sets the header fields, and returns the body.
func (r *Refusal) fields(h http.Header) (body []byte) {
	body = r.appendBody(nil)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Proxy-Status", string(r.appendProxyStatus(nil)))
	h.Set("Sluice-Decision", string(appendVisible(nil, r.Decision)))
	if r.status() == http.StatusProxyAuthRequired {
		h.Set("Proxy-Authenticate", string(r.appendChallenge(nil)))
	}
	return body
}

func (r *Refusal) status() int {
	if r.Status < 400 || r.Status > 599 {
		return http.StatusForbidden
	}
	return r.Status
}

// appendBody appends what a person reads.
func (r *Refusal) appendBody(b []byte) []byte {
	if r.NoBody {
		return b
	}
	b = append(b, "sluice: "...)
	if r.Target != "" {
		b = appendVisible(b, r.Target)
		b = append(b, ": "...)
	}
	b = appendVisible(b, string(r.Reason))
	b = append(b, '\n')
	if r.Text != "" {
		b = appendVisible(b, r.Text)
		b = append(b, '\n')
	}
	b = append(b, "decision: "...)
	b = appendVisible(b, r.Decision)
	return append(b, '\n')
}

// appendProxyStatus appends the value of the Proxy-Status field (RFC 9209 section 2).
func (r *Refusal) appendProxyStatus(b []byte) []byte {
	kind := r.Kind
	if kind == "" {
		kind = kindOf(r.status())
	}
	b = append(b, "sluice; error="...)
	b = append(b, kind...)
	b = append(b, `; details="`...)
	b = appendQuoted(b, string(r.Reason))
	if r.Target != "" {
		b = append(b, ": "...)
		b = appendQuoted(b, r.Target)
	}
	return append(b, '"')
}

func (r *Refusal) appendChallenge(b []byte) []byte {
	realm := r.Realm
	if realm == "" {
		realm = "sluice"
	}
	b = append(b, `Basic realm="`...)
	b = appendQuoted(b, realm)
	return append(b, '"')
}

// appendVisible appends s with everything but visible ASCII and spaces shown as "?", so that nothing a client sent
// can break a line of ours or talk to a terminal.
func appendVisible(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c < 0x7f {
			b = append(b, c)
		} else {
			b = append(b, '?')
		}
	}
	return b
}

// appendQuoted appends s as the inside of an sf-string (RFC 9651 section 3.3.3) or a quoted-string of visible ASCII.
func appendQuoted(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ' && c < 0x7f:
			b = append(b, c)
		default:
			b = append(b, '?')
		}
	}
	return b
}
