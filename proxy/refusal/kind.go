package refusal

import "net/http"

// Kind is an error type of RFC 9209 section 2.3, a token.
type Kind string

const (
	Denied              Kind = "http_request_denied"
	BadRequest          Kind = "http_request_error"
	DNSError            Kind = "dns_error"
	DNSTimeout          Kind = "dns_timeout"
	ConnectTimeout      Kind = "connection_timeout"
	ConnectRefused      Kind = "connection_refused"
	Terminated          Kind = "connection_terminated"
	LimitReached        Kind = "connection_limit_reached"
	Unavailable         Kind = "destination_unavailable"
	Unroutable          Kind = "destination_ip_unroutable"
	ProtocolError       Kind = "http_protocol_error"
	UpgradeFailed       Kind = "http_upgrade_failed"
	ResponseHeaderLimit Kind = "http_response_header_section_size"
	InternalError       Kind = "proxy_internal_error"
)

// kindOf returns the error type that fits a status best.
func kindOf(status int) Kind {
	switch status {
	case http.StatusForbidden, http.StatusProxyAuthRequired:
		return Denied
	case http.StatusBadGateway:
		return Unavailable
	case http.StatusServiceUnavailable:
		return LimitReached
	case http.StatusGatewayTimeout:
		return ConnectTimeout
	}
	if status >= 500 {
		return InternalError
	}
	return BadRequest
}
