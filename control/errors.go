package control

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Code says what kind of error an [Error] is; each travels as one HTTP status.
type Code string

const (
	CodeInvalid     Code = "invalid"          // 400: the request, or a policy in it
	CodeForbidden   Code = "forbidden"        // 403: the caller looks like a browser
	CodeNotFound    Code = "not-found"        // 404: no such session, or no such path
	CodeMethod      Code = "method"           // 405
	CodeStale       Code = "stale-generation" // 409: the session has a newer rule set
	CodeTooLarge    Code = "too-large"        // 413: the request's body
	CodeInternal    Code = "internal"         // 500
	CodeQuarantined Code = "quarantined"      // 503: a switch failed and the session refuses everything
)

// statuses maps every code to its HTTP status, and back.
var statuses = map[Code]int{
	CodeInvalid:     http.StatusBadRequest,
	CodeForbidden:   http.StatusForbidden,
	CodeNotFound:    http.StatusNotFound,
	CodeMethod:      http.StatusMethodNotAllowed,
	CodeStale:       http.StatusConflict,
	CodeTooLarge:    http.StatusRequestEntityTooLarge,
	CodeInternal:    http.StatusInternalServerError,
	CodeQuarantined: http.StatusServiceUnavailable,
}

// Error is an error that crosses the wire. Both ends see the same value; compare kinds by [errors.Is] with the
// sentinels below, or by Code.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"` // what, where and what to do; complete without the other fields
	// Have and Got are the session's generation and the one that was sent; set with CodeStale.
	Have uint64 `json:"have,omitempty"`
	Got  uint64 `json:"got,omitempty"`
	// Entries are the faults of a policy, one each; set with CodeInvalid where a policy is to blame.
	Entries []EntryError `json:"entries,omitempty"`
}

// EntryError is one fault of a policy.
type EntryError struct {
	Pointer string `json:"pointer"` // RFC 6901, from the policy document's root
	Text    string `json:"text"`    // the offending text
	Want    string `json:"want"`    // the repair
}

// The kinds of [Error], for [errors.Is].
var (
	ErrInvalid     = &Error{Code: CodeInvalid, Message: "invalid request"}
	ErrForbidden   = &Error{Code: CodeForbidden, Message: "forbidden"}
	ErrNotFound    = &Error{Code: CodeNotFound, Message: "no such session"}
	ErrStale       = &Error{Code: CodeStale, Message: "stale generation"}
	ErrQuarantined = &Error{Code: CodeQuarantined, Message: "session is quarantined"}
)

// Error gives the message and, below it, one line for every fault of a policy.
func (e *Error) Error() string {
	if len(e.Entries) == 0 {
		return e.Message
	}
	var b strings.Builder
	b.WriteString(e.Message)
	for _, f := range e.Entries {
		fmt.Fprintf(&b, "\n  %s: %q: %s", f.Pointer, f.Text, f.Want)
	}
	return b.String()
}

// Is reports whether target is an *Error of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// StaleError says that got came too late: the session has generation have.
func StaleError(session string, have, got uint64) *Error {
	return &Error{Code: CodeStale, Have: have, Got: got, Message: fmt.Sprintf(
		"session %s has generation %d: %d is older; read the session and send a greater one", session, have, got)}
}

// NotFoundError says that there is no session of that id.
func NotFoundError(session string) *Error {
	return &Error{Code: CodeNotFound, Message: fmt.Sprintf("no session %q; GET /v1/sessions lists those there are", session)}
}

// InvalidError wraps err's text as the caller's fault.
func InvalidError(err error) *Error {
	return &Error{Code: CodeInvalid, Message: err.Error()}
}

// asError gives the wire form of any error. What a backend did not mark as the caller's fault is internal.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		if _, known := statuses[e.Code]; known {
			return e
		}
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}
