package control

import (
	"errors"
	"fmt"
	"math"
	"net/http"

	"sluice/policy"
)

// Code says what kind of error an [Error] is; each travels as one HTTP status.
type Code string

const (
	CodeInvalid     Code = "invalid"          // 400: the request, or a policy in it
	CodeForbidden   Code = "forbidden"        // 403: the caller looks like a browser
	CodeNotFound    Code = "not-found"        // 404: no such session, or no such path
	CodeMethod      Code = "method"           // 405
	CodeStale       Code = "stale-generation" // 409: the session has a newer rule set
	CodeConflict    Code = "conflict"         // 409: what is there stands in the way
	CodeTooLarge    Code = "too-large"        // 413: the request's body
	CodeRefused     Code = "refused"          // 422: understood, but not to be done with this container
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
	CodeConflict:    http.StatusConflict,
	CodeRefused:     http.StatusUnprocessableEntity,
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
	// Policy holds the faults of a policy, at most 100 of them; set with CodeInvalid where a policy is to blame.
	Policy []*policy.Error `json:"policy,omitempty"`
}

// The kinds of [Error], for [errors.Is].
var (
	ErrInvalid     = &Error{Code: CodeInvalid, Message: "invalid request"}
	ErrForbidden   = &Error{Code: CodeForbidden, Message: "forbidden"}
	ErrNotFound    = &Error{Code: CodeNotFound, Message: "no such session"}
	ErrStale       = &Error{Code: CodeStale, Message: "stale generation"}
	ErrConflict    = &Error{Code: CodeConflict, Message: "conflict"}
	ErrRefused     = &Error{Code: CodeRefused, Message: "refused"}
	ErrQuarantined = &Error{Code: CodeQuarantined, Message: "session is quarantined"}
)

func (e *Error) Error() string { return e.Message }

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

// MaxGeneration is the greatest that may be asked for; a time in nanoseconds is less. Behind it there are more than the
// changes that follow will ever take.
const MaxGeneration = math.MaxInt64

// CheckGeneration refuses, with an *[Error], a generation that is too great to be asked for.
func CheckGeneration(asked uint64) error {
	if asked <= MaxGeneration {
		return nil
	}
	return &Error{Code: CodeInvalid, Message: fmt.Sprintf("generation %d is greater than %d: leave it out to take the next one", asked, uint64(MaxGeneration))}
}

// NotFoundError says that there is no session of that id.
func NotFoundError(session string) *Error {
	return &Error{Code: CodeNotFound, Message: fmt.Sprintf("no session %q; GET /v1/sessions lists those there are", session)}
}

// InvalidError says that the request is at fault. The faults of a policy travel one by one.
func InvalidError(err error) *Error {
	e := &Error{Code: CodeInvalid, Message: err.Error()}
	if all, ok := errors.AsType[*policy.Errors](err); ok {
		e.Policy = all.All
	} else if one, ok := errors.AsType[*policy.Error](err); ok {
		e.Policy = []*policy.Error{one}
	}
	return e
}

// asError gives the wire form of any error. What is neither an *[Error] nor the fault of a policy is internal.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		if _, known := statuses[e.Code]; known {
			return e
		}
	}
	if e := InvalidError(err); e.Policy != nil {
		return e
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}
