package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"

	"sluice/proxy/refusal"
)

// dialError marks what [Flow.Dial] returned.
type dialError struct{ error }

// Unwrap returns the error itself.
func (e dialError) Unwrap() error { return e.error }

// failed returns the answer to a request for which the upstream has none. If there is nobody to answer, it panics
// with [http.ErrAbortHandler].
func (x *exchange) failed(r *http.Request, err error) *http.Response {
	var fault error
	if x.upload != nil {
		fault = x.upload.stop(x.client.guard.giveUp)
	}
	var dial dialError
	var no *refusal.Refusal
	switch {
	case fault != nil && x.client.guard.isMalformed():
		no = x.own(malformed("The request's chunked body is malformed."))
	case r.Context().Err() != nil || x.client.guard.isClosed():
		panic(http.ErrAbortHandler)
	case errors.As(err, &dial) && errors.As(err, &no):
	case errors.As(err, &dial):
		no = x.own(dialFailure(err))
	case fault != nil && !errors.Is(fault, errGivenUp):
		no = x.own(malformed("The request's body is malformed."))
	default:
		no = x.own(brokenAnswer(err, x.received()))
	}
	return x.client.server.adapted(no).Response(r)
}

// own completes a refusal that was made here, and tells of it.
func (x *exchange) own(no *refusal.Refusal) *refusal.Refusal {
	if f, ok := x.flow.(Failer); ok {
		no.Decision, no.Target = refusal.NewDecisionID(), x.request.Target()
		f.Fail(no)
		return no
	}
	return x.client.own(x.request, no)
}

// dialFailure says why there is no connection to the upstream.
func dialFailure(err error) *refusal.Refusal {
	var lookup *net.DNSError
	var timeout net.Error
	r := &refusal.Refusal{Status: http.StatusBadGateway}
	switch {
	case errors.As(err, &lookup) && lookup.IsNotFound:
		r.Kind, r.Reason, r.Text = refusal.DNSError, NoSuchName, "The name does not exist."
	case errors.As(err, &lookup) && lookup.IsTimeout:
		r.Status, r.Kind, r.Reason, r.Text = http.StatusGatewayTimeout, refusal.DNSTimeout, LookupTimeout, "Looking the name up took too long."
	case errors.As(err, &lookup):
		r.Kind, r.Reason, r.Text = refusal.DNSError, LookupFailed, "The name could not be looked up."
	case errors.Is(err, syscall.ECONNREFUSED):
		r.Kind, r.Reason, r.Text = refusal.ConnectRefused, Refused, "The policy allows it, but the server refused the connection."
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		r.Status, r.Kind, r.Reason, r.Text = http.StatusGatewayTimeout, refusal.ConnectTimeout, DialTimeout, "The policy allows it, but the server did not answer in time."
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		r.Kind, r.Reason, r.Text = refusal.Unroutable, Unreachable, "The policy allows it, but there is no route to the server."
	default:
		r.Kind, r.Reason, r.Text = refusal.Unavailable, Unreachable, "The policy allows it, but the server could not be reached."
	}
	return r
}

// brokenAnswer says why the upstream's answer, of which so many bytes have come, cannot be passed on.
func brokenAnswer(err error, received int64) *refusal.Refusal {
	r := &refusal.Refusal{Status: http.StatusBadGateway, Kind: refusal.ProtocolError, Reason: Broken,
		Text: "The server's answer is not HTTP/1."}
	switch {
	case errors.Is(err, errUpgrade):
		r.Kind, r.Text = refusal.UpgradeFailed, "The server did not upgrade to WebSocket as it said."
	case received >= maxResponseHead:
		r.Kind, r.Text = refusal.ResponseHeaderLimit, "The head of the server's answer is larger than 256 KiB."
	case received == 0, errors.Is(err, io.ErrUnexpectedEOF):
		r.Kind, r.Text = refusal.Terminated, "The server closed the connection before it had answered."
	}
	return r
}
